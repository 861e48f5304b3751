#!/usr/bin/env python3
"""vs_torch.py: the engine against PyTorch on the CPU, with the same shapes and threads, in the same run.

Each shape has two workers: `nebula-i bench engine --serve` and a PyTorch process (this file with --worker). They take turns of a few
steps, so both see the same noise; the other one sleeps meanwhile. Speed is the ratio of the medians. PyTorch gets
scaled_dot_product_attention, fused AdamW and clipping. It is measured eagerly and, with --compile, also with torch.compile; the
better one counts. Memory is the peak resident size less the size before the model was built.

    bench/vs_torch.py [--nebula PATH] [--shape NAME] [--rounds N] [--compile] [--dropout P]

Last lines: `SHAPE ratio X.XX` (how many times faster the engine is) and `SHAPE memory X.XX` (its share of PyTorch's).
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

SHAPES = {  # layers, decoder layers, hidden, heads, ffn, vocabulary, sequence, batch; ratio to reach
    "mlm-mini": (4, 0, 256, 4, 1024, 8000, 128, 32, 1.3),
    "mlm-base": (12, 0, 768, 12, 3072, 32000, 128, 8, 1.1),
    "gpt2-124m": (12, 0, 768, 12, 3072, 50304, 512, 2, 1.1),
    "mt-mini": (3, 3, 256, 4, 1024, 8000, 32, 64, 1.3),
}


def peak_rss(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def build_torch(name, dropout):
    """Model and a function that does one training step and returns the loss."""
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    L, D, d, H, ff, V, T, B, _ = SHAPES[name]
    causal = name.startswith("gpt2")
    masked = name.startswith("mlm")
    act = F.relu if D else (lambda x: F.gelu(x, approximate="tanh")) if causal else F.gelu

    class Attention(nn.Module):
        def __init__(self, cross=False):
            super().__init__()
            self.cross = cross
            if cross:
                self.q, self.kv = nn.Linear(d, d), nn.Linear(d, 2 * d)
            else:
                self.qkv = nn.Linear(d, 3 * d)
            self.out = nn.Linear(d, d)

        def forward(self, x, memory=None, is_causal=False):
            def heads(t):
                return t.view(t.shape[0], t.shape[1], H, d // H).transpose(1, 2)
            if self.cross:
                q, (k, v) = self.q(x), self.kv(memory).chunk(2, -1)
            else:
                q, k, v = self.qkv(x).chunk(3, -1)
            p = dropout if self.training else 0.0
            o = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), dropout_p=p, is_causal=is_causal)
            return self.out(o.transpose(1, 2).reshape(x.shape))

    class Layer(nn.Module):
        def __init__(self, cross):
            super().__init__()
            self.attn, self.up, self.down = Attention(), nn.Linear(d, ff), nn.Linear(ff, d)
            self.n1, self.n2, self.drop = nn.LayerNorm(d), nn.LayerNorm(d), nn.Dropout(dropout)
            if cross:
                self.xattn, self.n3 = Attention(True), nn.LayerNorm(d)

        def forward(self, x, memory=None, is_causal=False):
            if causal:  # pre-norm
                x = x + self.drop(self.attn(self.n1(x), is_causal=is_causal))
                return x + self.drop(self.down(act(self.up(self.n2(x)))))
            x = self.n1(x + self.drop(self.attn(x, is_causal=is_causal)))
            if memory is not None:
                x = self.n3(x + self.drop(self.xattn(x, memory)))
            return self.n2(x + self.drop(self.down(act(self.up(x)))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(V, d), nn.Embedding(T, d)
            self.encoder = nn.ModuleList(Layer(False) for _ in range(L))
            self.decoder = nn.ModuleList(Layer(True) for _ in range(D))
            self.norm, self.drop = nn.LayerNorm(d), nn.Dropout(dropout)
            if masked:
                self.transform, self.bias = nn.Linear(d, d), nn.Parameter(torch.zeros(V))

        def embed(self, ids):
            return self.drop(self.token(ids) + self.position.weight)

        def forward(self, src, tgt, rows, target):
            x = self.embed(src)
            if not causal and not D:
                x = self.norm(x)
            for layer in self.encoder:
                x = layer(x, is_causal=causal)
            if D:
                memory, x = x, self.embed(tgt)
                for layer in self.decoder:
                    x = layer(x, memory, is_causal=True)
            if causal:
                x = self.norm(x)
            x = x.reshape(-1, d)
            if masked:
                x = self.norm(F.gelu(self.transform(x[rows])))
                return F.cross_entropy(F.linear(x, self.token.weight, self.bias), target)
            logits = F.linear(x, self.token.weight)
            return F.cross_entropy(logits, target, label_smoothing=0.1 if D else 0.0)

    torch.manual_seed(1)
    model = Model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    rows = torch.arange(B * T * 15 // 100) * (B * T) // (B * T * 15 // 100)
    n = len(rows) if masked else B * T
    data = (torch.randint(V, (B, T)), torch.randint(V, (B, T)), rows, torch.randint(V, (n,)))

    def step(forward):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*data)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return model, step


def worker(args):
    import torch

    torch.set_num_threads(args.threads)
    model, step = None, None
    start = peak_rss(os.getpid())
    model, step = build_torch(args.shape, args.dropout)
    forward = torch.compile(model) if args.compile else model
    print(f"ready {start}", flush=True)
    for line in sys.stdin:
        n = int(line.split()[1])
        begin = time.perf_counter()
        for _ in range(n):
            loss = step(forward)
        print(f"{(time.perf_counter() - begin) / n:.6f} {loss:.6f}", flush=True)


class Worker:
    def __init__(self, command, env=None):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.start = None
        first = self.process.stdout.readline().split()
        if not first or first[0] != "ready":
            raise RuntimeError(f"{command[0]} did not start")
        self.start = int(first[1]) if len(first) > 1 else 0
        self.times = []

    def steps(self, n, count=True):
        self.process.stdin.write(f"step {n}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            raise RuntimeError("a worker died")
        if count:
            self.times.append(float(answer[0]))
        return float(answer[0])

    def close(self):
        memory = peak_rss(self.process.pid) - self.start
        self.process.stdin.close()
        self.process.wait(60)
        return memory


def compare(name, args):
    nebula = [args.nebula, "bench", "engine", "--serve", "--shape", name, "--threads", str(args.threads), "--dropout",
              str(args.dropout)]
    torch = [sys.executable, __file__, "--worker", "--shape", name, "--threads", str(args.threads), "--dropout",
             str(args.dropout)]
    # before the model is built, the engine's process is as large as its program
    workers = {"nebula": Worker(nebula), "eager": Worker(torch)}
    if args.compile:
        workers["compile"] = Worker(torch + ["--compile"])
    for w in workers.values():
        w.steps(2, count=False)
    n = max(1, round(args.turn / workers["nebula"].steps(1, count=False)))
    for _ in range(args.rounds):
        for w in workers.values():
            w.steps(n)
    memory = {k: w.close() for k, w in workers.items()}
    median = {k: statistics.median(w.times) for k, w in workers.items()}
    best = min((k for k in median if k != "nebula"), key=median.get)
    for k in median:
        print(f"  {name} {k}: {median[k] * 1e3:.1f} ms a step, {memory[k] / 2**20:.0f} MiB")
    print(f"{name} ratio {median[best] / median['nebula']:.2f}")
    print(f"{name} memory {memory['nebula'] / memory[best]:.2f}", flush=True)
    return median[best] / median["nebula"] >= SHAPES[name][-1]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--nebula", default=os.path.join(here, "../build/release/nebula-i"))
    p.add_argument("--shape", choices=SHAPES)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--turn", type=float, default=2.0, help="seconds of a turn")
    p.add_argument("--dropout", type=float, default=0.1)
    p.add_argument("--compile", action="store_true", help="also measure torch.compile")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker:
        return worker(args)
    results = [compare(s, args) for s in ([args.shape] if args.shape else SHAPES)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
