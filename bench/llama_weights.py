#!/usr/bin/env python3
"""Writes a Llama with random bf16 weights as a Hugging Face folder, with a tokenizer, and a text to train on.

    bench/llama_weights.py FOLDER TEXT [--shape 7b]

The shapes are Llama 2 7B's (13.5 GB) and a tiny one. The tokenizer is a byte-level BPE without merges: a byte is a token, and the
rest of the vocabulary has names that no text contains. A line of the text has 2,046 bytes, so that a
training sample has 2,048 tokens with those that begin and end it. Shards are written by several threads, and random numbers are drawn on the GPU where
there is one.
"""
import argparse, json, os, random, struct, sys, time
from concurrent.futures import ThreadPoolExecutor

import torch

SHAPES = {
    "7b": dict(hidden=4096, layers=32, heads=32, ffn=11008, vocab=32000, positions=4096, shards=4),
    "tiny": dict(hidden=64, layers=2, heads=4, ffn=160, vocab=320, positions=4096, shards=2),
}


def layer(s, i):
    d, f, n = s["hidden"], s["ffn"], f"model.layers.{i}."
    yield from ((n + f"self_attn.{x}_proj.weight", (d, d)) for x in "qkvo")
    yield from ((n + f"mlp.{x}_proj.weight", (f, d)) for x in ("gate", "up"))
    yield n + "mlp.down_proj.weight", (d, f)
    yield from ((n + f"{x}_layernorm.weight", (d,)) for x in ("input", "post_attention"))


def shard_tensors(s, k):
    """Shard k has every shards-th layer; the first one has what is not a layer, too."""
    d = s["hidden"]
    if k == 0:
        yield from (("model.embed_tokens.weight", (s["vocab"], d)), ("model.norm.weight", (d,)), ("lm_head.weight", (s["vocab"], d)))
    for i in range(k, s["layers"], s["shards"]):
        yield from layer(s, i)


def write_shard(folder, name, tensors, device, seed):
    tensors = list(tensors)
    head, at = {"__metadata__": {"format": "pt"}}, 0
    for key, shape in tensors:
        n = 2 * torch.Size(shape).numel()
        head[key] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    draw = torch.Generator(device)
    draw.manual_seed(seed)
    with open(os.path.join(folder, name), "wb", buffering=0) as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for key, shape in tensors:
            x = torch.ones(shape, dtype=torch.bfloat16)
            if len(shape) == 2:
                x = torch.randn(shape, dtype=torch.bfloat16, device=device, generator=draw).mul_(0.02).cpu()
            left = memoryview(x.view(torch.int16).numpy()).cast("B")
            while left:
                left = left[f.write(left):]
    return at, {key: name for key, _ in tensors}


def byte_names():
    """The characters by which GPT-2's tokenizers name the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in kept]
    return [chr(b if b in kept else 256 + others.index(b)) for b in range(256)]


def tokenizer(vocab):
    words = ["<unk>", "<s>", "</s>", *byte_names()]
    words += [f"<{i}>" for i in range(len(words), vocab)]
    added = [{"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, w in enumerate(words[:3])]
    pieces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": pieces,
            "post_processor": None, "decoder": pieces,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {w: i for i, w in enumerate(words)}, "merges": []}}


def config(s):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": s["hidden"], "initializer_range": 0.02,
            "intermediate_size": s["ffn"], "max_position_embeddings": s["positions"], "mlp_bias": False,
            "num_attention_heads": s["heads"], "num_hidden_layers": s["layers"], "num_key_value_heads": s["heads"],
            "pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": s["vocab"]}


def write_text(path, lines):
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(2000)]
    with open(path, "w") as f:
        for _ in range(lines):
            f.write(" ".join(draw.choices(words, k=800))[:2045] + "." + "\n")


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("folder")
    args.add_argument("text")
    args.add_argument("--shape", choices=SHAPES, default="7b")
    args.add_argument("--lines", type=int, default=2000)
    a = args.parse_args()
    s = SHAPES[a.shape]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    os.makedirs(a.folder, exist_ok=True)
    began = time.perf_counter()
    names = [f"model-{k + 1:05}-of-{s['shards']:05}.safetensors" for k in range(s["shards"])]
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(pool.map(lambda k: write_shard(a.folder, names[k], shard_tensors(s, k), device, k), range(len(names))))
    total = sum(n for n, _ in made)
    where = {key: name for _, part in made for key, name in part.items()}
    for name, value in (("config.json", config(s)), ("tokenizer.json", tokenizer(s["vocab"])),
                        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}),
                        ("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})):
        with open(os.path.join(a.folder, name), "w") as f:
            json.dump(value, f)
    write_text(a.text, a.lines)
    print(f"weights: {total / 1e9:.2f} GB in {len(names)} files, {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
