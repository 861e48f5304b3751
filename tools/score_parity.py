#!/usr/bin/env python3
"""Compares `nebula-i score --encoder` with the packages bert-score and unbabel-comet (needs torch, transformers, PyYAML, entmax and both).

    python3 tools/score_parity.py record tests/data/bertscore   writes a small random BERT, sentences and their scores, for tests/score_encoder.sh
    python3 tools/score_parity.py check build/release/nebula-i  the same for larger random encoders, compared at once
"""
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import types

import torch
import transformers as tf


def without_init(name):
    """The packages also draw plots and train, with libraries that scores do not need: only the modules named below are loaded."""
    package = types.ModuleType(name)
    package.__path__ = [os.path.join(p, *name.split(".")[1:]) for p in importlib.util.find_spec(name.split(".")[0]).submodule_search_locations] \
        if name.split(".")[0] not in sys.modules else [os.path.join(p, *name.split(".")[1:]) for p in sys.modules[name.split(".")[0]].__path__]
    package.__version__ = "0"
    sys.modules[name] = package


for name in ("bert_score", "comet", "comet.modules", "comet.models"):
    without_init(name)
from bert_score.utils import greedy_cos_idf  # noqa: E402
from comet.models.pooling_utils import average_pooling  # noqa: E402
from comet.modules.feedforward import FeedForward  # noqa: E402
from comet.modules.layerwise_attention import LayerwiseAttention  # noqa: E402

from comet_folder import convert  # noqa: E402
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


class Metric(torch.nn.Module):
    """RegressionMetric out of the package's parts; reference: else ReferencelessRegression."""

    def __init__(self, body, kind, reference):
        super().__init__()
        width = body.config.hidden_size
        self.encoder = torch.nn.Module()
        self.encoder.model = body
        self.layerwise_attention = LayerwiseAttention(body.config.num_hidden_layers + 1, layer_norm=False, layer_transformation=kind)
        self.estimator = FeedForward((6 if reference else 4) * width, hidden_sizes=[3 * width, width])
        self.reference = reference
        with torch.no_grad():
            for p in self.layerwise_attention.parameters():
                p.copy_(torch.randn_like(p) * 0.5 + 0.8)

    def embed(self, tok, line):
        x = tok(line, return_tensors="pt")
        layers = self.encoder.model(**x, output_hidden_states=True).hidden_states
        mixed = self.layerwise_attention(list(layers), x.attention_mask)
        return average_pooling(x.input_ids, mixed, x.attention_mask, tok.pad_token_id, tok.sep_token_id)

    def forward(self, tok, src, mt, ref):
        s, m, r = (self.embed(tok, t) for t in (src, mt, ref))
        parts = (m, r, m * r, (m - r).abs(), m * s, (m - s).abs()) if self.reference else (m, s, m * s, (m - s).abs())
        return float(self.estimator(torch.cat(parts, 1)))


def make_metric(folder, out, kind, reference):
    """A checkpoint as the package leaves one, its files for nebula-i in `out`, and the mean score of the sentences."""
    torch.manual_seed(9)
    body, tok = tf.BertModel.from_pretrained(folder, add_pooling_layer=False).eval(), tf.BertTokenizer(os.path.join(folder, "vocab.txt"))
    metric = Metric(body, kind, reference).eval()
    with tempfile.TemporaryDirectory() as d:
        os.mkdir(d + "/checkpoints")
        torch.save({"state_dict": metric.state_dict()}, d + "/checkpoints/model.ckpt")
        with open(d + "/hparams.yaml", "w", encoding="utf-8") as f:
            f.write(f"class_identifier: {'regression_metric' if reference else 'referenceless_regression_metric'}\nencoder_model: BERT\npretrained_model: none\n"
                    f"pool: avg\nlayer: mix\nlayer_norm: false\nlayer_transformation: {kind}\nactivations: Tanh\nfinal_activation: null\n")
        convert(d, out, folder)
    with torch.no_grad():
        return sum(metric(tok, s, h, r) for s, h, r in zip(SOURCE, HYP, REF)) / len(HYP)


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
    with tempfile.TemporaryDirectory() as d, open(os.path.join(folder, "estimators.txt"), "w", encoding="utf-8") as f:
        for kind, reference in (("sparsemax", True), ("softmax", False)):
            f.write(f"{kind}.safetensors {make_metric(folder, d, kind, reference):.6f}\n")
            shutil.copyfile(d + "/estimator.safetensors", os.path.join(folder, kind + ".safetensors"))


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
        for kind in ("softmax", "sparsemax"):
            for reference in (True, False):
                want = make_metric(d + "/theirs", d + "/metric", kind, reference)
                text = subprocess.run([nebula, "score", "--encoder", d + "/ours", "--estimator", d + "/metric/estimator.safetensors", "--hyp", d + "/hyp.txt",
                                       "--source", d + "/source.txt", d + "/ref.txt"], check=True, capture_output=True, text=True).stdout
                found = float(text.splitlines()[-1].split()[2])
                print(f"comet {kind}, {'with' if reference else 'without'} references: {want:.4f}, here {found:.4f}")
                assert abs(want - found) < 6e-5


if __name__ == "__main__":
    {"record": record, "check": check}[sys.argv[1]](*sys.argv[2:])
