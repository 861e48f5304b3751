#!/usr/bin/env python3
"""Records the results of the tokenizers library for tokenizer.json (needs tokenizers, sentencepiece and protobuf).

    python3 tools/record_tokenizers.py record tests/data/tokenizer_json
    python3 tools/record_tokenizers.py check NEBULA-I TEXT...

`record` trains a small tokenizer of each kind on the texts of record_bpe.py and writes KIND.json, KIND.config.json and KIND.cases.json:
texts with the ids that the library gives them, and its text for these ids. tests/test_tokenizer_json.c compares. `check` trains larger
ones on the lines of the TEXT files, cuts other lines of them with both programs and counts the lines that differ.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from record_bpe import TEXTS, random_text

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# transformers writes a length that has more than 64 bits
ENDS = {"model_max_length": 1000000000000000019884624838656, "bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}


def byte_level(texts, size, split, normalizer=None, whole=False, names=("<|begin|>", "<|end|>")):
    t = Tokenizer(models.BPE(ignore_merges=whole))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer, t.decoder = split, decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=list(names), show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t, {"bos_token": names[0], "eos_token": names[-1]}


def by_pattern(digits):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS % digits), "isolated", False),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_fallback(texts, size):
    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    names = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)]
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=names, limit_alphabet=200, max_token_length=12,
                                                     show_progress=False))
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    return j


def llama2(texts, size):
    return Tokenizer.from_str(json.dumps(byte_fallback(texts, size))), ENDS


def phi3(texts, size):
    """Llama 2's with added tokens that take the white space beside them along, or stand alone."""
    t, ends = llama2(texts, size)
    t.add_tokens([AddedToken("[end]", rstrip=True, normalized=False), AddedToken("[user]", lstrip=True, normalized=False),
                  AddedToken("[both]", lstrip=True, rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False)])
    return t, ends


STRIPS = ["a [end]  b [user]c  [user] [end]\t x", "word words sword word. word-word _word word", "[both] [both]  [both]", " [user]",
          "[end] ", "x\u3000[both]\u2003y", "wordword word", "[end][user] [end]   [user]"]


def mistral(texts, size):
    j = byte_fallback(texts, size)
    j["normalizer"] = None
    j["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    return Tokenizer.from_str(json.dumps(j)), ENDS


def unigram(texts, size, folder, small):
    """Pieces with their scores, and a character map: a small one of a few rules, or SentencePiece's own."""
    text, model = os.path.join(folder, "text"), os.path.join(folder, "model")
    with open(text, "w") as f:
        f.write("\n".join(t.replace("\n", " ").replace("\0", "") for t in texts))
    extra = {}
    if small:
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w") as f:
            for a, b in [("½", "1/2"), ("²", "2"), ("ﬁ", "fi"), ("\u3000", " "), ("e\u0301", "é"), ("\u200b", ""), ("ⅷ", "viii")]:
                f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
        extra = {"normalization_rule_tsv": rules}
    sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=model, vocab_size=size, model_type="unigram", minloglevel=2,
                                             hard_vocab_limit=False, **extra)
    m = sentencepiece_model_pb2.ModelProto()
    with open(model + ".model", "rb") as f:
        m.ParseFromString(f.read())
    return [(p.piece, p.score) for p in m.pieces], normalizers.Precompiled(m.normalizer_spec.precompiled_charsmap)


def with_pieces(pieces, normalizer, split, byte=False, added=True):
    if byte:
        pieces = pieces + [("<0x%02X>" % i, 0.0) for i in range(256)]
    t = Tokenizer(models.Unigram(pieces, 0, byte))
    t.normalizer, t.pre_tokenizer = normalizer, split
    t.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    if added:
        t.add_tokens(["eng_Latn", "deu_Latn"])
    return t, ENDS


def wordpiece(texts, size, lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=lower), pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece(prefix="##")
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=names, show_progress=False))
    return t, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}


def suffixes(texts, size):
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True),
                                               pre_tokenizers.Punctuation("contiguous")])
    t.decoder = decoders.BPEDecoder("</w>")
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], end_of_word_suffix="</w>",
                                                     limit_alphabet=200, show_progress=False))
    return t, ENDS


def kinds(texts, size, small):
    always = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    first = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    with tempfile.TemporaryDirectory() as folder:
        pieces, chars = unigram(texts, size, folder, small)
    return {
        "llama3": byte_level(texts, size, by_pattern("{1,3}"), whole=True),
        "qwen2": byte_level(texts, size, by_pattern(""), normalizers.NFC()),
        "gpt2": byte_level(texts, size, pre_tokenizers.ByteLevel(add_prefix_space=False), names=("<|endoftext|>",)),
        "roberta": byte_level(texts, size, pre_tokenizers.ByteLevel(add_prefix_space=True), names=("<s>", "</s>")),
        "llama2": llama2(texts, size + 256),
        "phi3": phi3(texts, size + 256),
        "mistral": mistral(texts, size + 256),
        "xlm-r": with_pieces(pieces, chars, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), always])),
        "t5": with_pieces(pieces, normalizers.Sequence([chars, spaces]), always, byte=True),
        "nmt": with_pieces(pieces, normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces, normalizers.Lowercase()]), first,
                           added=False),
        "bert": wordpiece(texts, size, True),
        "bert-cased": wordpiece(texts, size, False),
        "suffixes": suffixes(texts, size),
    }


def record(folder):
    os.makedirs(folder, exist_ok=True)
    rng = random.Random(7)
    # a NUL cannot be in a JSON text here, and a text that names a special token stays text here
    texts = [t for t in TEXTS if "\0" not in t and "<s>" not in t] + ["eng_Latn a deu_Latn", "▁▁x ▁ y", "İstanbul ǅ ﬁ ㍿ ﷺ"]
    cases = texts + [random_text(rng) for _ in range(60)]
    for name, (t, config) in kinds([x for x in texts for _ in range(2)], 400, True).items():
        t.save(os.path.join(folder, name + ".json"), pretty=False)
        with open(os.path.join(folder, name + ".config.json"), "w") as f:
            json.dump(config, f)
        rows = [{"text": x, "ids": t.encode(x, add_special_tokens=False).ids} for x in cases + (STRIPS if name == "phi3" else [])]
        for r in rows:
            r["decoded"] = t.decode(r["ids"], skip_special_tokens=True)
        with open(os.path.join(folder, name + ".cases.json"), "w") as f:
            f.write("[" + ",\n".join(map(json.dumps, rows)) + "]\n")
        print(f"{name}: {t.get_vocab_size()} pieces, {len(rows)} texts")


def check(program, files):
    rng, lines = random.Random(3), []
    for name in files:
        with open(name, encoding="utf8", newline="\n") as f:
            some = [x for x in f.read().split("\n") if x and "\r" not in x and "\0" not in x]
        rng.shuffle(some)
        lines += some[:20000 // len(files)]
    rng.shuffle(lines)
    train, test = lines[:len(lines) // 2], lines[len(lines) // 2:]
    check_marian(program, train, test)
    for name, (t, config) in kinds(train, 8000, False).items():
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            t.save(path)
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                json.dump(config, f)
            ours = subprocess.run([program, "corpus", "encode", "--tokenizer", path], input="\n".join(test) + "\n", text=True,
                                  capture_output=True, check=True).stdout
        ours = [[int(i) for i in row.split()] for row in ours.split("\n")[:-1]]
        theirs = [e.ids for e in t.encode_batch(test, add_special_tokens=False)]
        print(f"{name}: {len(test)} lines, {sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(test))} differ")


def marian(train, folder):
    """Marian's files: a model trained on half of the lines, and the pieces of another model in vocab.json as well."""
    words = []
    for name, lines in (("source", train[::2]), ("target", train[1::2])):
        sentencepiece.SentencePieceTrainer.Train(sentence_iterator=iter(lines), model_prefix=os.path.join(folder, name), vocab_size=8000,
                                                 model_type="unigram", minloglevel=2)
        os.rename(os.path.join(folder, name + ".model"), os.path.join(folder, name + ".spm"))
        sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, name + ".spm"))
        words += [sp.IdToPiece(i) for i in range(3, sp.GetPieceSize())]
    vocab = {w: i for i, w in enumerate(["</s>", "<unk>"] + sorted(set(words)) + ["<pad>"])}
    with open(os.path.join(folder, "vocab.json"), "w") as f:
        json.dump(vocab, f)
    sp = sentencepiece.SentencePieceProcessor(model_file=os.path.join(folder, "source.spm"))
    return lambda line: [vocab.get(p, 1) for p in sp.encode(line, out_type=str)]


def check_marian(program, train, test):
    with tempfile.TemporaryDirectory() as folder:
        cut = marian(train, folder)
        ours = subprocess.run([program, "corpus", "encode", "--tokenizer", os.path.join(folder, "source.spm")],
                              input="\n".join(test) + "\n", text=True, capture_output=True, check=True).stdout
        ours = [[int(i) for i in row.split()] for row in ours.split("\n")[:-1]]
        print(f"marian: {len(test)} lines, {sum(a != cut(b) for a, b in zip(ours, test)) + abs(len(ours) - len(test))} differ")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "record":
        record(sys.argv[2])
    elif len(sys.argv) > 3 and sys.argv[1] == "check":
        check(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(__doc__)
