#!/usr/bin/env python3
"""Compares training steps of Nebula-I on a GPU with PyTorch's, eager and compiled, in one call.

    bench/vs_torch_cuda.py --nebula build/release/nebula-i [--shape gpt2-124m] [--eager] [--json FILE]

PyTorch runs as its users run it for speed: bf16 autocast, fused AdamW, the fastest attention backend that takes the
shape (each is tried, the best is kept), gradient clipping, no host synchronisation in the loop. Both sides do the same
work: the same shapes, hidden dropout 0.1 for mlm-base and mt-base, attention dropout 0, logits only where they are
scored. PyTorch's vocabulary is padded to a multiple of 64, as its users do for speed; Nebula-I takes GPT-2's own 50257.
Tokens of mt-base are source + target. Nebula-I stops at a gradient that is not finite. Many steps at a high rate on one batch can
cause one, so it runs with a low rate. The order alternates, so a warming card favours neither.
"""
import argparse, json, math, re, subprocess, sys, time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = {
    "gpt2-124m": dict(kind="gpt", layers=12, d=768, heads=12, ff=3072, vocab=50257, seq=1024, batch=32, dropout=0.0),
    "mlm-base": dict(kind="mlm", layers=12, d=768, heads=12, ff=3072, vocab=30522, seq=128, batch=256, dropout=0.1),
    "mt-base": dict(kind="mt", layers=6, d=512, heads=8, ff=2048, vocab=32000, seq=64, batch=512, dropout=0.1),
}


class Attention(nn.Module):
    def __init__(self, d, heads, causal, cross=False):
        super().__init__()
        self.heads, self.causal, self.cross = heads, causal, cross
        self.q = nn.Linear(d, d if cross else 3 * d)
        self.kv = nn.Linear(d, 2 * d) if cross else None
        self.out = nn.Linear(d, d)

    def forward(self, x, memory=None):
        B, T, D = x.shape
        if self.cross:
            q = self.q(x).view(B, T, self.heads, -1)
            k, v = self.kv(memory).view(B, -1, 2, self.heads, D // self.heads).unbind(2)
        else:
            q, k, v = self.q(x).view(B, T, 3, self.heads, D // self.heads).unbind(2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                           is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(B, T, D))


class Layer(nn.Module):
    def __init__(self, s, causal, cross=False):
        super().__init__()
        d = s["d"]
        self.pre = s["kind"] == "gpt"
        self.attn = Attention(d, s["heads"], causal)
        self.cross = Attention(d, s["heads"], False, True) if cross else None
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.n3 = nn.LayerNorm(d) if cross else None
        self.up, self.down = nn.Linear(d, s["ff"]), nn.Linear(s["ff"], d)
        self.drop = nn.Dropout(s["dropout"])
        self.act = {"gpt": nn.GELU(approximate="tanh"), "mlm": nn.GELU(), "mt": nn.ReLU()}[s["kind"]]

    def forward(self, x, memory=None):
        if self.pre:
            x = x + self.drop(self.attn(self.n1(x)))
            return x + self.drop(self.down(self.act(self.up(self.n2(x)))))
        x = self.n1(x + self.drop(self.attn(x)))
        if self.cross is not None:
            x = self.n3(x + self.drop(self.cross(x, memory)))
        return self.n2(x + self.drop(self.down(self.act(self.up(x)))))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, d = s, s["d"]
        self.emb, self.pos = nn.Embedding(s["vocab"], d), nn.Embedding(s["seq"], d)
        self.drop, self.norm = nn.Dropout(s["dropout"]), nn.LayerNorm(d)
        self.layers = nn.ModuleList(Layer(s, s["kind"] == "gpt") for _ in range(s["layers"]))
        if s["kind"] == "mt":
            self.decoder = nn.ModuleList(Layer(s, True, True) for _ in range(s["layers"]))
        if s["kind"] == "mlm":
            self.dense, self.head_norm, self.bias = nn.Linear(d, d), nn.LayerNorm(d), nn.Parameter(torch.zeros(s["vocab"]))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def embed(self, ids):
        x = self.emb(ids) * (math.sqrt(self.s["d"]) if self.s["kind"] == "mt" else 1.0)
        return x + self.pos(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, ids, target, rows, ids2):
        kind = self.s["kind"]
        x = self.embed(ids)
        x = self.drop(self.norm(x) if kind == "mlm" else x)
        for layer in self.layers:
            x = layer(x)
        bias = None
        if kind == "mt":
            memory, x = x, self.drop(self.embed(ids2))
            for layer in self.decoder:
                x = layer(x, memory)
        x = x.reshape(-1, x.shape[-1])
        if kind == "gpt":
            x = self.norm(x)
        if kind == "mlm":
            x = self.head_norm(F.gelu(self.dense(x[rows])))
            bias = self.bias
        return F.cross_entropy(F.linear(x, self.emb.weight, bias).float(), target)


def torch_run(s, compiled, backend, steps):
    s = dict(s, vocab=(s["vocab"] + 63) // 64 * 64)
    torch.manual_seed(1)
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = Model(s).cuda()
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}],
                            lr=1e-4, fused=True)
    rows = s["batch"] * s["seq"]
    scored = rows * 15 // 100 if s["kind"] == "mlm" else rows
    ids = torch.randint(s["vocab"], (s["batch"], s["seq"]), device="cuda")
    ids2 = torch.randint(s["vocab"], (s["batch"], s["seq"]), device="cuda")
    target = torch.randint(s["vocab"], (scored,), device="cuda")
    index = torch.arange(scored, device="cuda") * rows // scored
    run = torch.compile(model) if compiled else model

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(backend):
            loss = run(ids, target, index, ids2)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        opt.step()
        opt.zero_grad(set_to_none=True)
        return loss

    for _ in range(5):
        step()
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        t = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - t) / steps)
    tokens = rows * (2 if s["kind"] == "mt" else 1)
    return tokens / sorted(times)[1], torch.cuda.max_memory_allocated() / 2**30


def best_backend(s):
    """The fastest attention backend for the shape, forward and backward, measured alone."""
    shape = (s["batch"], s["heads"], s["seq"], s["d"] // s["heads"])
    best = (float("inf"), SDPBackend.FLASH_ATTENTION)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        try:
            with sdpa_kernel(backend):
                for i in range(13):
                    if i == 3:
                        torch.cuda.synchronize()
                        t = time.perf_counter()
                    F.scaled_dot_product_attention(q, k, v, is_causal=s["kind"] == "gpt").sum().backward()
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - t, backend), key=lambda x: x[0])
        except RuntimeError as e:
            print(f"  {backend.name}: {str(e).splitlines()[0][:80]}", flush=True)
    return best[1]


def nebula_run(binary, name, s, steps):
    out = subprocess.run([binary, "bench", "engine", "--device", "cuda", "--shape", name, "--steps", str(steps),
                          "--dropout", str(s["dropout"]), "--attention-dropout", "0", "--lr", "1e-6", "--json"],
                         capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{binary}: {out.stdout}{out.stderr}")
    figures = {f["name"]: f["value"] for f in json.loads(out.stdout.splitlines()[-1])["figures"]}
    return figures[f"tokens_per_second.{name}"], figures[f"memory.{name}"]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--shape", choices=SHAPES)
    args.add_argument("--steps", type=int, default=20)
    args.add_argument("--eager", action="store_true", help="also measure PyTorch without torch.compile")
    args.add_argument("--json")
    a = args.parse_args()
    torch.set_float32_matmul_precision("high")
    results = {}
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}", flush=True)
    for name, s in SHAPES.items():
        if a.shape and a.shape != name:
            continue
        backend = best_backend(s)
        row = {"backend": backend.name, "nebula": [nebula_run(a.nebula, name, s, a.steps)]}
        row["compiled"] = torch_run(s, True, backend, a.steps)
        row["nebula"].append(nebula_run(a.nebula, name, s, a.steps))
        if a.eager:
            row["eager"] = torch_run(s, False, backend, a.steps)
        speed, memory = max(row["nebula"])
        low = min(row["nebula"])[0]
        results[name] = row
        print(f"{name:10} {backend.name:16} compiled {row['compiled'][0]:10.0f}/s {row['compiled'][1]:5.1f} GiB"
              + (f"  eager {row['eager'][0]:10.0f}/s {row['eager'][1]:5.1f} GiB" if a.eager else "")
              + f"  nebula {low:10.0f} to {speed:10.0f}/s {memory:5.1f} GiB  ratio {low / row['compiled'][0]:.3f}", flush=True)
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
