#!/usr/bin/env python3
"""Compares `nebula-i score --encoder` with the bert-score package (needs torch, transformers, bert-score).

    python3 tools/score_parity.py record tests/data/bertscore   writes a small random BERT, sentences and their scores, for tests/score_encoder.sh
    python3 tools/score_parity.py check build/release/nebula-i  the same for larger random encoders, compared at once
"""
import importlib.util
import os
import subprocess
import sys
import tempfile
import types

import torch
import transformers as tf

# The package draws plots, too, with libraries that its scores do not need: only the module with the scores is loaded.
package = types.ModuleType("bert_score")
package.__path__ = list(importlib.util.find_spec("bert_score").submodule_search_locations)
package.__version__ = "0"
sys.modules["bert_score"] = package
from bert_score.utils import greedy_cos_idf  # noqa: E402

from hf_parity import words  # noqa: E402

HYP = ["the library writes a folder", "token ids and logits of two sequences", "compares xyz", "import export import"]
REF = ["the transformers library leaves a folder", "token ids types and logits of two sequences", "compares import and export", "export"]
SECOND = ["a folder writes the library", "two sequences", "abc", "import and export"]
SOURCE = ["library folder", "logits of sequences", "compares", "the export"]


def states(model, tok, line, layer):
    with torch.no_grad():
        out = model(**tok(line, return_tensors="pt"), output_hidden_states=True).hidden_states
    return out[layer if layer else -1][0]


def score(h, r):
    """bert-score's own comparison of one pair; the first and the last token have no weight."""
    def weights(x):
        w = torch.ones(1, len(x))
        w[0, 0] = w[0, -1] = 0
        return w
    ones = [torch.ones(1, len(x)) for x in (r, h)]
    return [float(x) for x in greedy_cos_idf(r[None].clone(), ones[0], weights(r), h[None].clone(), ones[1], weights(h))]


def cosine(a, b):
    return float(torch.nn.functional.cosine_similarity(a.mean(0), b.mean(0), dim=0))


def expected(model, tok, layer):
    sums = torch.zeros(5, dtype=torch.float64)
    for h, r, s, x in zip(HYP, REF, SECOND, SOURCE):
        h, r, s, x = (states(model, tok, t, layer) for t in (h, r, s, x))
        best = [max(pair) for pair in zip(score(h, r), score(h, s))]
        sums += torch.tensor(best + [max(cosine(h, r), cosine(h, s)), cosine(h, x)], dtype=torch.float64)
    return (sums / len(HYP)).tolist()


def make(folder, hidden, layers, heads):
    tok = words(folder)
    torch.manual_seed(5)
    model = tf.BertModel(tf.BertConfig(vocab_size=len(tok), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                                       intermediate_size=2 * hidden, max_position_embeddings=48, initializer_range=0.3)).eval()
    model.save_pretrained(folder, safe_serialization=True)
    return model, tok


def put_lines(folder):
    for name, lines in (("hyp", HYP), ("ref", REF), ("second", SECOND), ("source", SOURCE)):
        with open(os.path.join(folder, name + ".txt"), "w", encoding="utf-8") as f:
            f.write("\n".join(lines) + "\n")


def record(folder):
    os.makedirs(folder, exist_ok=True)
    model, tok = make(folder, 16, 3, 2)
    put_lines(folder)
    with open(os.path.join(folder, "expect.txt"), "w", encoding="utf-8") as f:
        for layer in (0, 2):
            f.write(" ".join([str(layer)] + [f"{x:.6f}" for x in expected(model, tok, layer)]) + "\n")


def check(nebula):
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/theirs")
        model, tok = make(d + "/theirs", 96, 5, 4)
        put_lines(d)
        subprocess.run([nebula, "import", d + "/theirs", d + "/ours"], check=True, capture_output=True)
        for layer in (0, 1, 4):
            text = subprocess.run([nebula, "score", "--encoder", d + "/ours", "--layer", str(layer), "--hyp", d + "/hyp.txt", "--source",
                                   d + "/source.txt", d + "/ref.txt", d + "/second.txt"], check=True, capture_output=True, text=True).stdout
            found = [float(w.strip(",")) for line in text.splitlines()[-2:] for w in line.split("(")[0].split() if w.strip(",").replace(".", "").replace("-", "").isdigit()]
            diff = max(abs(a - b) for a, b in zip(expected(model, tok, layer), found, strict=True))
            print(f"bert layer {layer}: P, R, F1, two cosines differ by at most {diff:.1e} (printed with four decimals)")
            assert diff < 6e-5


if __name__ == "__main__":
    {"record": record, "check": check}[sys.argv[1]](*sys.argv[2:])
