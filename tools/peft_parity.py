#!/usr/bin/env python3
"""Compares adapters with the peft library (needs torch, transformers and peft).

    python3 tools/peft_parity.py record tests/data/hf [NAME…]  records adapters of the recorded llama3, and logits, for tests/test_hf*.c
    python3 tools/peft_parity.py table build/release/nebula-i [METHOD…]   one line a case: import and export of adapters against peft, and texts
"""
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import peft
import torch
import transformers as tf

import hf_parity
import hf_translation as translation
from make_parity_vectors import Writer

SEVEN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = [  # family, method, its targets and options
    ("llama-2", "lora", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=12)),
    ("llama-3", "lora", dict(target_modules=SEVEN, r=3, lora_alpha=7)),
    ("llama-3", "lora", dict(target_modules=SEVEN, r=3, lora_alpha=7, rank_pattern={"q_proj": 5, "model.layers.1.mlp.down_proj": 2},
                             alpha_pattern={"v_proj": 16})),
    ("llama-2", "lora", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=12, modules_to_save=["lm_head"])),
    ("llama-3", "lora", dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=12, modules_to_save=["lm_head"])),
    ("qwen2", "lora", dict(target_modules=["up_proj", "k_proj"], r=2, lora_alpha=2, use_rslora=True)),
    ("qwen3", "lora", dict(target_modules=["model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"], r=5, lora_alpha=10)),
    ("gpt2", "lora", dict(target_modules=["c_attn"], r=4, lora_alpha=8, fan_in_fan_out=True)),
    ("llama-2", "dora", dict(target_modules=SEVEN, r=3, lora_alpha=7)),
    ("qwen2", "dora", dict(target_modules=["q_proj", "v_proj", "down_proj"], r=4, lora_alpha=8)),
    ("gpt2", "dora", dict(target_modules=["c_attn"], r=4, lora_alpha=8, fan_in_fan_out=True)),
    ("llama-3", "ia3", dict()),
    ("qwen2", "ia3", dict(target_modules=["q_proj", "up_proj", "o_proj"], feedforward_modules=["o_proj"])),
    ("gpt2", "ia3", dict()),
    ("llama-3", "prompt", dict(num_virtual_tokens=5)),
    ("gpt2", "prompt", dict(num_virtual_tokens=7)),
    ("llama-2", "prefix", dict(num_virtual_tokens=6)),
    ("llama-3", "prefix", dict(num_virtual_tokens=9)),
    ("qwen2", "prefix", dict(num_virtual_tokens=4, prefix_projection=True, encoder_hidden_size=16)),
    ("qwen3", "prefix", dict(num_virtual_tokens=5)),
]


def adapter(model, case, method="lora"):
    torch.manual_seed(3)
    if method == "prompt":
        m = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", **case))
    elif method == "prefix":
        m = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", **case))
    elif method == "ia3":
        m = peft.get_peft_model(model, peft.IA3Config(task_type="CAUSAL_LM", **case))
    else:
        m = peft.get_peft_model(model, peft.LoraConfig(use_dora=method == "dora", **case))
    with torch.no_grad():
        for name, p in m.named_parameters():
            if "lora_B" in name:
                p.normal_(0, 0.1)
            if "modules_to_save" in name:
                p.add_(torch.randn_like(p) * 0.1)
            if "ia3_l" in name:
                p.add_(torch.randn_like(p) * 0.3)
            if "magnitude" in name:
                p.mul_(1 + torch.randn_like(p) * 0.2)
    return m.eval()


def table_causal(nebula, methods):
    worst = 0
    with tempfile.TemporaryDirectory() as d:
        size = hf_parity.tokenizer(d, 300).get_vocab_size()
    for name, method, case in CASES:
        if methods and method not in methods:
            continue
        model = hf_parity.families(size)[name].eval()
        with tempfile.TemporaryDirectory() as d:
            model.save_pretrained(d + "/base", safe_serialization=True)
            t, kind = hf_parity.tokenizer(d + "/base", 300), type(model)
            theirs = adapter(model, case, method)
            theirs.save_pretrained(d + "/adapter")
            hf_parity.run(nebula, "import", d + "/base", d + "/ours")
            hf_parity.run(nebula, "import", d + "/adapter", d + "/both", "--base", d + "/ours")
            hf_parity.run(nebula, "export", d + "/both", d + "/back", "--adapter")
            whole_model = method not in ("prompt", "prefix")
            if whole_model:  # they have no place in one
                hf_parity.run(nebula, "export", d + "/both", d + "/merged")
            fresh = kind.from_pretrained(d + "/base")
            back = peft.PeftModel.from_pretrained(fresh, d + "/back").eval()
            merged = kind.from_pretrained(d + "/merged").eval() if whole_model else theirs
            ids = t.encode("compares import and export").ids
            how = [nebula, "generate", d + "/both", "compares import and export", "--temperature", "0", "--max-new", "40", "--start=no"]
            rows = subprocess.run(how + ["--scores"], check=True, capture_output=True, text=True).stdout.split("\n")
            rows = [r.split() for r in rows if r]
            new, ours = [int(r[0]) for r in rows], np.array([float(r[1]) for r in rows])
            want = theirs.generate(input_ids=torch.tensor([ids]), max_new_tokens=40, do_sample=False, pad_token_id=0)[0, len(ids):].tolist()
            want = want[:want.index(0)] if 0 in want else want
            s = hf_parity.scores(theirs, ids, new)
            diff = float(np.abs((ours - s) / np.maximum(1, np.abs(s))).max())
            out = float(np.abs(s - hf_parity.scores(back, ids, new)).max())
            whole = float(np.abs((hf_parity.scores(merged, ids, new) - s) / np.maximum(1, np.abs(s))).max())
            worst = max(worst, diff, out, whole, 0 if new == want else 1)
            print(f"{name} {method} import {diff:.1e} export {out:.1e} merged {whole:.1e} text {'equal' if new == want else 'differs'}", flush=True)
    assert worst < 1e-4


def table_marian(nebula):
    """q, v and the feed-forward of a Marian, in the decoder only."""
    targets = [f"model.decoder.layers.{i}.{m}" for i in range(2) for m in ("self_attn.q_proj", "encoder_attn.v_proj", "encoder_attn.k_proj", "fc1")]
    with tempfile.TemporaryDirectory() as d:
        model, tok = translation.folder("marian", d + "/base", width=64, std=0.3)
        theirs = adapter(model, dict(target_modules=targets, r=4, lora_alpha=8))
        theirs.save_pretrained(d + "/adapter")
        hf_parity.run(nebula, "import", d + "/base", d + "/ours")
        hf_parity.run(nebula, "import", d + "/adapter", d + "/both", "--base", d + "/ours")
        hf_parity.run(nebula, "export", d + "/both", d + "/back", "--adapter")
        back = peft.PeftModel.from_pretrained(tf.MarianMTModel.from_pretrained(d + "/base"), d + "/back").eval()
        line = translation.LINES[0]
        how = [nebula, "translate", d + "/both", "--beams", "1", "--scores"]
        rows = subprocess.run(how, input=line + "\n", check=True, capture_output=True, text=True).stdout.split("\n")
        rows = [r.split() for r in rows if r]
        new, ours = [int(r[0]) for r in rows], np.array([float(r[1]) for r in rows])
        ids, start = translation.encode("marian", tok, line)
        s = hf_parity.translation_scores(theirs, ids, start, new, tok.vocab_size)
        diff = float(np.abs((ours - s) / np.maximum(1, np.abs(s))).max())
        out = float(np.abs(s - hf_parity.translation_scores(back, ids, start, new, tok.vocab_size)).max())
        print(f"marian lora import {diff:.1e} export {out:.1e}")
        assert max(diff, out) < 1e-4


RECORDED = {  # folder: method and its options
    "llama3_lora": ("lora", dict(target_modules=["q_proj", "v_proj", "up_proj"], r=2, lora_alpha=6, task_type="CAUSAL_LM")),
    "llama3_dora": ("dora", dict(target_modules=["k_proj", "gate_proj", "down_proj"], r=2, lora_alpha=6, task_type="CAUSAL_LM")),
    "llama3_ia3": ("ia3", dict()),
    "llama3_prefix": ("prefix", dict(num_virtual_tokens=4)),
    "llama3_prompt": ("prompt", dict(num_virtual_tokens=3)),
}


def record(folder, names):
    for name, (method, case) in RECORDED.items():
        if names and name not in names:
            continue
        path = os.path.join(folder, name)
        shutil.rmtree(path, ignore_errors=True)
        m = adapter(tf.LlamaForCausalLM.from_pretrained(os.path.join(folder, "llama3")), case, method)
        m.save_pretrained(path)
        os.remove(os.path.join(path, "README.md"))
        config = os.path.join(path, "adapter_config.json")
        text = open(config).read().replace(os.path.join(folder, "llama3"), "")
        open(config, "w").write(text)
        w = Writer(os.path.join(path, "expect.bin"))
        for i, ids in enumerate(hf_parity.sequences()):
            w.put(f"ids{i}", ids)
            w.put(f"logits{i}", hf_parity.compute(m, ids)[-len(ids):])


if __name__ == "__main__":
    if len(sys.argv) >= 3 and sys.argv[1] == "table":
        table_causal(sys.argv[2], sys.argv[3:])
        if len(sys.argv) == 3:
            table_marian(sys.argv[2])
    elif len(sys.argv) >= 3 and sys.argv[1] == "record":
        record(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(__doc__)
