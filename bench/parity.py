#!/usr/bin/env python3
"""Compares the losses of one training on two devices, and twice on one.

    bench/parity.py --nebula build/release/nebula-i [--steps 200]

- fp32 on the CPU and on the GPU, from the same seed, with dropout (the masks have the same bits): losses must agree within 1e-3.
- bf16 on the GPU, recorded steps against steps enqueued call by call: losses and parameters must be equal to the last bit. Both
  run with `deterministic`; otherwise two processes might measure and choose different algorithms for the same product.
"""
import argparse, subprocess, sys


def losses(nebula, shape, steps, *options):
    command = [nebula, "bench", "engine", "--shape", shape, "--losses", str(steps), *options]
    out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{' '.join(command)}: {out.stdout[-500:]}{out.stderr[-500:]}")
    lines = [line.split() for line in out.stdout.splitlines()]
    return {int(w[0]): float(w[1]) for w in lines if w[0] != "parameters"}, dict(w[:2] for w in lines)["parameters"]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--steps", type=int, default=200)
    a = args.parse_args()
    bad = 0
    for shape in ("mlm-mini", "mt-mini"):
        options = ("--dtype", "f32", "--dropout", "0.1", "--attention-dropout", "0.1")
        cpu, _ = losses(a.nebula, shape, a.steps, "--device", "cpu", *options)
        gpu, _ = losses(a.nebula, shape, a.steps + 1, "--device", "cuda", *options)  # a GPU's losses come a step late
        both = sorted(set(cpu) & set(gpu))
        worst = max(abs(cpu[i] - gpu[i]) for i in both)
        bad += worst > 1e-3 or len(both) < a.steps
        print(f"{shape}: fp32, CPU against GPU, {len(both)} steps, loss {cpu[both[0]]:.4f} to {cpu[both[-1]]:.4f}: "
              f"largest difference {worst:.2e} (bar 1e-3)", flush=True)
    for shape, steps in (("mlm-mini", 50), ("mt-base", 20), ("gpt2-124m", 12)):
        options = ("--device", "cuda", "--dtype", "bf16", "--dropout", "0.1", "--attention-dropout", "0.1", "--deterministic")
        replayed = losses(a.nebula, shape, steps, *options)
        again = losses(a.nebula, shape, steps, "--no-graphs", *options)
        same = replayed == again
        bad += not same
        print(f"{shape}: bf16, {steps} steps, recorded against call by call: "
              f"{'equal bit for bit' if same else 'DIFFERENT'} (parameters {replayed[1]} and {again[1]})", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
