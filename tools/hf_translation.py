"""Small encoder-decoders of the transformers library with real tokenizers: Marian, M2M100, NLLB, BART, mBART, mBART-50, T5 and mT5.
hf_parity.py records them and compares with them. `folder(name, path)` writes such a folder as save_pretrained() leaves it."""
import io
import json
import os

import sentencepiece
import torch
import transformers as tf

ENGLISH = """A man in a blue shirt is standing on a ladder cleaning a window. A group of people are standing outside.
Two young girls are playing with a ball in the park. The dog runs through the snow. A woman is reading a book on the train.
Children sit on the floor and listen to a story. An old man plays the guitar in the street. She looks at the sea.""".split("\n")
GERMAN = """Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster. Eine Gruppe von Leuten steht draußen.
Zwei junge Mädchen spielen mit einem Ball im Park. Der Hund läuft durch den Schnee. Eine Frau liest im Zug ein Buch.
Kinder sitzen auf dem Boden und hören eine Geschichte. Ein alter Mann spielt auf der Straße Gitarre. Sie blickt auf das Meer.""".split("\n")
LINES = ["A man is reading a book.", "Two girls play in the snow!", "The old woman looks at a window on the street", "Ωmega (2024) ☃"]
LANGS = {"m2m100": ("en", "de"), "nllb": ("eng_Latn", "deu_Latn"), "nllb-tail": ("eng_Latn", "deu_Latn"),
         "mbart": ("en_XX", "de_DE"), "mbart50": ("en_XX", "de_DE")}
NAMES = ["marian", "m2m100", "nllb", "nllb-tail", "bart", "mbart", "mbart50", "t5", "mt5"]


def spm(text, size, kind="unigram", special={}):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(sentence_iterator=iter(text), model_writer=out, vocab_size=size, model_type=kind,
                                             hard_vocab_limit=False, normalization_rule_name="identity", minloglevel=2, **special)
    return out.getvalue()


def pieces(model):
    sp = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(sp.IdToPiece(i), sp.GetScore(i)) for i in range(sp.GetPieceSize())]


def write(path, name, data):
    with open(os.path.join(path, name), "wb") as f:
        f.write(data)


def marian_tokenizer(path):
    source, target = spm(ENGLISH, 90), spm(GERMAN, 90)
    words = ["</s>", "<unk>"] + sorted({p for p, _ in pieces(source)[3:] + pieces(target)[3:]}) + [">>deu<<", ">>nld<<", "<pad>"]
    write(path, "source.spm", source)
    write(path, "target.spm", target)
    write(path, "vocab.json", json.dumps({w: i for i, w in enumerate(words)}, ensure_ascii=False).encode())
    write(path, "tokenizer_config.json", json.dumps({"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}).encode())
    return tf.MarianTokenizer.from_pretrained(path)


def m2m100_tokenizer(path):
    model = spm(ENGLISH + GERMAN, 150, "bpe")
    words = ["<s>", "<pad>", "</s>", "<unk>"] + [p for p, _ in pieces(model)[3:]]
    write(path, "sentencepiece.bpe.model", model)
    write(path, "vocab.json", json.dumps({w: i for i, w in enumerate(words)}, ensure_ascii=False).encode())
    write(path, "tokenizer_config.json", json.dumps({"tokenizer_class": "M2M100Tokenizer", "additional_special_tokens": ["__de__", "__en__"]}).encode())
    return tf.M2M100Tokenizer.from_pretrained(path)


def nllb_tokenizer(path, tail):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    t.train_from_iterator(ENGLISH + GERMAN, trainers.BpeTrainer(vocab_size=180, special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
                                                                show_progress=False))
    made = json.loads(t.to_str())["model"]
    tok = tf.NllbTokenizer(vocab=made["vocab"], merges=[tuple(m) for m in made["merges"]], legacy_behaviour=tail,
                           extra_special_tokens=["deu_Latn", "eng_Latn", "fra_Latn"])
    tok.save_pretrained(path)
    return tok


def mbart_tokenizer(path, fifty):
    vocab = [(p, float(s)) for p, s in pieces(spm(ENGLISH + GERMAN, 120))]
    if fifty:
        tok = tf.MBart50Tokenizer(vocab=vocab)
    else:
        codes = ["ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN", "hi_IN", "it_IT", "ja_XX", "kk_KZ",
                 "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP", "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN"]
        first = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
        tok = tf.MBartTokenizer(vocab=first + vocab[3:] + [(c, 0.0) for c in codes] + [("<mask>", 0.0)])
    tok.save_pretrained(path)
    return tok


def bart_tokenizer(path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(ENGLISH, trainers.BpeTrainer(vocab_size=300, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                                       special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"]))
    made = json.loads(t.to_str())["model"]
    tok = tf.BartTokenizer(vocab=made["vocab"], merges=[tuple(m) for m in made["merges"]])
    tok.save_pretrained(path)
    return tok


def t5_tokenizer(path, bare):
    """tokenizer.json as transformers writes it; bare: only the SentencePiece model, as the folders of Google's models have it."""
    made = spm(ENGLISH + GERMAN, 120, special=dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))
    if bare:
        write(path, "spiece.model", made)
        write(path, "tokenizer_config.json", json.dumps({"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>",
                                                         "pad_token": "<pad>", "extra_ids": 100}).encode())
        return tf.AutoTokenizer.from_pretrained(path)
    sentinels = [(f"<extra_id_{i}>", 0.0) for i in range(99, -1, -1)]
    tok = tf.T5Tokenizer(vocab=[(p, float(s)) for p, s in pieces(made)] + sentinels, extra_ids=100)
    tok.save_pretrained(path)
    return tok


def tokenizer(name, path):
    os.makedirs(path, exist_ok=True)
    if name == "marian":
        return marian_tokenizer(path)
    if name == "m2m100":
        return m2m100_tokenizer(path)
    if name in ("t5", "mt5"):
        return t5_tokenizer(path, name == "mt5")
    if name.startswith("nllb"):
        return nllb_tokenizer(path, name == "nllb-tail")
    return bart_tokenizer(path) if name == "bart" else mbart_tokenizer(path, name == "mbart50")


def t5_model(name, rows, width, heads):
    """Version 1.0 with a tied output, and mT5 with its own; few buckets and short distances, so that the lines fill all of them. Small
    embeddings: with large ones a model whose scores are not scaled repeats one token, or is so sharp that fp32 itself is off by 1e-3."""
    c = dict(vocab_size=rows, d_model=width, d_kv=6, d_ff=width + 8, num_layers=2, num_decoder_layers=2 if width > 12 else 1, num_heads=heads,
             relative_attention_num_buckets=12, relative_attention_max_distance=15, decoder_start_token_id=0)
    if name == "t5":
        m = tf.T5ForConditionalGeneration(tf.T5Config(**c, feed_forward_proj="relu", tie_word_embeddings=True, initializer_factor=1.5))
    else:
        m = tf.MT5ForConditionalGeneration(tf.MT5Config(**c, feed_forward_proj="gated-gelu", tie_word_embeddings=False))
        m.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(m.lm_head.weight))
    with torch.no_grad():
        m.shared.weight.mul_(0.05)
        m.lm_head.weight[rows - 3:] = 0  # rows that are no token, which only transformers could choose
    return m


def model(name, tokens, tok, width=12, std=0.02):
    """The table gets a few rows more, as many of theirs have."""
    heads = 3 if width == 12 else 4
    if name in ("t5", "mt5"):
        return t5_model(name, tokens + 3, width, heads)
    c = dict(vocab_size=tokens + (0 if name == "marian" else 3), d_model=width, encoder_layers=2, decoder_layers=2 if width > 12 else 1,
             encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=width + 8, decoder_ffn_dim=width + 8,
             max_position_embeddings=64 if width == 12 else 256, init_std=std, forced_eos_token_id=None)
    if name == "marian":
        pad = tok.pad_token_id
        m = tf.MarianMTModel(tf.MarianConfig(**c, activation_function="swish", scale_embedding=True, pad_token_id=pad, decoder_start_token_id=pad,
                                             eos_token_id=0))
        m.generation_config.bad_words_ids = [[pad]]
        m.generation_config.forced_eos_token_id = None
        return m
    if name in ("m2m100", "nllb", "nllb-tail"):
        c.pop("forced_eos_token_id")
        return tf.M2M100ForConditionalGeneration(tf.M2M100Config(**c))
    if name == "bart":
        m = tf.BartForConditionalGeneration(tf.BartConfig(**c))
        m.generation_config.forced_bos_token_id = 0
        return m
    start = None if name == "mbart" else 2
    return tf.MBartForConditionalGeneration(tf.MBartConfig(**c, scale_embedding=True, decoder_start_token_id=start))


def size(name, tok):
    """Tokens, the languages among them."""
    if name == "m2m100":
        return len(tok.encoder) + len(tok.lang_token_to_id)
    return tok.vocab_size if name == "marian" else len(tok)


def folder(name, path, width=12, std=0.02, seed=5):
    """Writes the folder; gives model and tokenizer. Biases of 0 and norms of 1 would hide a mistake, so all values are disturbed."""
    torch.manual_seed(seed)
    tok = tokenizer(name, path)
    m = model(name, size(name, tok), tok, width, std)
    with torch.no_grad():
        for p in m.parameters():
            if p.requires_grad:  # Marian's table of sines stays
                p.add_(torch.randn_like(p) * 0.1)
        if hasattr(m, "final_logits_bias"):
            m.final_logits_bias.normal_(0, 0.2)
    m.eval()
    m.save_pretrained(path, safe_serialization=True)
    return m, tok


def text(name, tok, ids):
    """transformers 5 shows M2M100's languages although they are special; T5's sentinels are a part of the text."""
    if name in ("t5", "mt5"):
        return tok.decode([i for i in ids if i > 2], skip_special_tokens=False).strip()
    if name == "m2m100":
        ids = [i for i in ids if i < len(tok.encoder)]
    return tok.decode(ids, skip_special_tokens=True).strip()


def encode(name, tok, line):
    """What the model reads, and the tokens with which its target begins."""
    if name in LANGS:
        tok.src_lang, tok.tgt_lang = LANGS[name]
    ids = tok(line).input_ids
    if name == "marian":
        return ids, [tok.pad_token_id]
    if name in ("t5", "mt5"):
        return ids, [0]
    if name == "bart":
        return ids, [2, 0]
    lang = tok.get_lang_id("de") if name == "m2m100" else tok.convert_tokens_to_ids(LANGS[name][1])
    return ids, [lang] if name == "mbart" else [2, lang]
