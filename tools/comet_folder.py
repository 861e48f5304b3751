#!/usr/bin/env python3
"""A checkpoint of the unbabel-comet package as files that nebula-i reads (needs torch, transformers, safetensors, PyYAML).

    python3 tools/comet_folder.py MODEL OUT [--encoder FOLDER]

MODEL is what comet's download_model() leaves: hparams.yaml and checkpoints/model.ckpt. OUT gets the encoder as save_pretrained() writes it,
its tokenizer, and estimator.safetensors (src/task/estimator.h). Then:

    nebula-i import OUT encoder
    nebula-i score --encoder encoder --estimator OUT/estimator.safetensors --source SOURCES REFERENCES < TRANSLATIONS

FOLDER: the encoder's configuration and tokenizer, where the hub cannot be reached by hparams' pretrained_model.
RegressionMetric and ReferencelessRegression with average pooling, Tanh and no layer_norm are read: the settings of the package's
configs/models/regression_model.yaml. UnifiedMetric (CometKiwi), XCOMET and rankers compute otherwise and are refused, as is every other
setting that would change a score.
"""
import argparse
import os
import sys

import torch
import transformers as tf
import yaml
from safetensors.torch import save_file


def refuse(what):
    sys.exit(f"comet_folder: {what}")


def sparsemax(x):
    """Martins and Astudillo 2016."""
    z, _ = torch.sort(x, descending=True)
    k = torch.arange(1, len(x) + 1, dtype=x.dtype)
    total = torch.cumsum(z, 0)
    support = int((1 + k * z > total).sum())
    return torch.clamp(x - (total[support - 1] - 1) / support, min=0)


def mix_of(h, state, layers):
    """The weight of every layer in a sentence vector; the embedding is layer 0."""
    if h["layer"] != "mix":
        return torch.nn.functional.one_hot(torch.tensor(int(h["layer"])), layers + 1).float()
    if h.get("layer_norm", True):  # the package's own default
        refuse("layer_norm: a mix of normalised layers is not read")
    w = torch.cat([state[f"layerwise_attention.scalar_parameters.{i}"].double() for i in range(layers + 1)])
    kind = h.get("layer_transformation", "softmax")
    if kind not in ("softmax", "sparsemax"):
        refuse(f"layer_transformation: {kind}")
    w = sparsemax(w) if kind == "sparsemax" else torch.softmax(w, 0)
    return (w * state["layerwise_attention.gamma"].double()).float()


def estimator_of(state):
    """Linear layers stand at every third place: linear, activation, dropout."""
    numbers = sorted({int(k.split(".")[2]) for k in state if k.startswith("estimator.ff.")})
    if numbers != list(range(0, 3 * len(numbers), 3)):
        refuse("the estimator is not made of linear layers with activations and dropout between them")
    return {f"{i}.{part}": state[f"estimator.ff.{n}.{part}"].float().contiguous() for i, n in enumerate(numbers) for part in ("weight", "bias")}


def check(h):
    known = {"regression_metric", "referenceless_regression_metric"}
    if h.get("class_identifier") not in known:
        refuse(f"class_identifier: {h.get('class_identifier')}; only {', '.join(sorted(known))} are read")
    for key, wanted in (("pool", "avg"), ("activations", "Tanh"), ("final_activation", None)):
        if h.get(key, wanted) != wanted:
            refuse(f"{key}: {h[key]}; only {wanted} is read")
    if h.get("encoder_model") not in ("XLM-RoBERTa", "BERT"):
        refuse(f"encoder_model: {h.get('encoder_model')}; only XLM-RoBERTa and BERT are read")


def convert(model, out, encoder=None):
    with open(os.path.join(model, "hparams.yaml"), encoding="utf-8") as f:
        h = yaml.safe_load(f)
    check(h)
    state = torch.load(os.path.join(model, "checkpoints", "model.ckpt"), map_location="cpu", weights_only=True)["state_dict"]
    source = encoder or h["pretrained_model"]
    config = tf.AutoConfig.from_pretrained(source)
    kind = tf.XLMRobertaModel if h["encoder_model"] == "XLM-RoBERTa" else tf.BertModel
    body = kind(config, add_pooling_layer=False)
    parts = {k[len("encoder.model."):]: v for k, v in state.items() if k.startswith("encoder.model.") and ".pooler." not in k}
    missing, _ = body.load_state_dict(parts, strict=False)
    missing = [m for m in missing if "position_ids" not in m and "token_type_ids" not in m]
    if missing:
        refuse(f"the checkpoint lacks {', '.join(missing[:3])} of its encoder")
    os.makedirs(out, exist_ok=True)
    body.save_pretrained(out, safe_serialization=True)
    tf.AutoTokenizer.from_pretrained(source).save_pretrained(out)
    save_file({"mix": mix_of(h, state, config.num_hidden_layers), **estimator_of(state)}, os.path.join(out, "estimator.safetensors"))


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--encoder")
    a = p.parse_args()
    convert(a.model, a.out, a.encoder)
