#!/usr/bin/env python3
"""vs_ddp_ranks.py: PyTorch DistributedDataParallel over gloo on one machine, beside `nebula-i bench parallel --arm data2`.

The same comparison as there: two processes with one thread each, which share out the micro-batches of a step and add up their
gradients, against one process with two threads; GPT-2 124M, 4,096 tokens in 8 micro-batches. The arms take turns, step by step, and
the figure is the median of the ratios. DDP's usual setting: no_sync() for all micro-batches but the last.

    bench/vs_ddp_ranks.py [--nebula build/release/nebula-i] [--turns 3] [--hidden 768] [--layers 12] [--heads 12] ...

With --nebula its own two arms take turns with PyTorch's. ratio.ddp2 and ratio.data2 are the step of one process over that of two;
ddp2.over.data2 is the step of two DDP processes over that of two ranks.
"""
import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def make_model(torch, a, length):
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(a.hidden), nn.LayerNorm(a.hidden)
            self.qkv, self.out = nn.Linear(a.hidden, 3 * a.hidden), nn.Linear(a.hidden, a.hidden)
            self.up, self.down = nn.Linear(a.hidden, 4 * a.hidden), nn.Linear(4 * a.hidden, a.hidden)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, a.heads, d // a.heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(a.vocab, a.hidden), nn.Embedding(length, a.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
            self.norm = nn.LayerNorm(a.hidden)

        def forward(self, ids, target):
            x = self.token(ids) + self.position.weight
            for block in self.blocks:
                x = block(x)
            logits = self.norm(x) @ self.token.weight.t()
            return F.cross_entropy(logits.view(-1, a.vocab), target.view(-1))

    torch.manual_seed(1)
    return Gpt()


def serve(a):
    """One process of an arm: makes a step for each line of the standard input, and prints how long it took."""
    import torch
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(2 // size)
    length = a.tokens // a.micro
    model = make_model(torch, a, length)
    if size > 1:
        torch.distributed.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = [torch.randint(0, a.vocab, (1, length + 1)) for _ in range(rank, a.micro, size)]

    def step():
        optimizer.zero_grad(set_to_none=False)
        for i, b in enumerate(batches):
            last = size == 1 or i == len(batches) - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (model(b[:, :-1], b[:, 1:]) / len(batches)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    if rank == 0:
        print("ready", flush=True)
    while True:
        go = [bool(sys.stdin.readline()) if rank == 0 else None]
        if size > 1:
            torch.distributed.broadcast_object_list(go)
        if not go[0]:
            return
        since = time.monotonic()
        step()
        if size > 1:
            torch.distributed.barrier()
        if rank == 0:
            print(time.monotonic() - since, flush=True)


class Arm:
    """The processes of an arm, which step when the first of them is told to."""

    def __init__(self, commands, go):
        self.go = go
        self.processes = [subprocess.Popen(words, env={**os.environ, **env}, text=True,
                                           stdin=subprocess.PIPE if i == 0 else subprocess.DEVNULL,
                                           stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL)
                          for i, (words, env) in enumerate(commands)]
        self.first = self.processes[0]
        if self.first.stdout.readline() != "ready\n":
            sys.exit(f"did not start: {' '.join(commands[0][0])}")

    def step(self):
        self.first.stdin.write(self.go + "\n")
        self.first.stdin.flush()
        return float(self.first.stdout.readline().split()[0])

    def stop(self):
        self.first.stdin.close()
        for p in self.processes:
            p.wait()


def torch_arm(size):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": str(2 // size),
           "GLOO_SOCKET_IFNAME": "lo"}
    words = [sys.executable, __file__, "--serve", *sys.argv[1:]]
    return Arm([(words, {**env, "RANK": str(r)}) for r in range(size)], "step")


def nebula_arm(program, folder, size):
    layout = "train.threads=2" if size == 1 else "parallel.data=2 train.threads=1"
    start = [] if size == 1 else ["mpirun", "--quiet", "-n", "2", "--bind-to", "none", "--oversubscribe"]
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return Arm([([*start, program, "bench", "parallel", "--out", folder, "--serve", layout], env)], "1")


SHAPE = dict(hidden=768, layers=12, heads=12, vocab=50257, tokens=4096, micro=8)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nebula", help="the program; its one process and its data2 take turns with PyTorch's")
    p.add_argument("--turns", type=int, default=3)
    for name, value in SHAPE.items():
        p.add_argument("--" + name, type=int, default=value)
    p.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.serve:
        return serve(a)
    with tempfile.TemporaryDirectory() as folder:
        arms = {"ddp": (torch_arm(1), torch_arm(2))}
        if a.nebula:
            shape = [word for name in SHAPE for word in ("--" + name, str(getattr(a, name)))]
            subprocess.run([a.nebula, "bench", "parallel", "--out", folder, "--arm", "job", *shape], check=True,
                           stdout=subprocess.DEVNULL)
            arms["data"] = (nebula_arm(a.nebula, folder, 1), nebula_arm(a.nebula, folder, 2))
        for one, two in arms.values():
            one.step(), two.step()
        seconds = {name: [] for name in arms}
        for _ in range(a.turns):
            for name, (one, two) in arms.items():
                seconds[name].append((one.step(), two.step()))
                print("%s: one process %.2f s, two %.2f s" % (name, *seconds[name][-1]), file=sys.stderr, flush=True)
        for pair in arms.values():
            for arm in pair:
                arm.stop()
    for name, turns in seconds.items():
        print(f"ratio.{name}2 {statistics.median(x / y for x, y in turns):.3f}")
    if a.nebula:
        both = zip(seconds["ddp"], seconds["data"])
        print(f"ddp2.over.data2 {statistics.median(d[1] / n[1] for d, n in both):.3f}")


if __name__ == "__main__":
    main()
