#!/usr/bin/env python3
"""Compares the losses of one training on two devices, and twice on one.

    bench/parity.py --nebula build/release/nebula-i [--steps 200]
    bench/parity.py --device opencl --only f32 --shape mlm-mini     or mlm-tiny, which takes seconds

- fp32 on the CPU and on the device, from the same seed, with dropout (the masks have the same bits): losses must agree within 1e-3.
- bf16 on the device, recorded steps against steps enqueued call by call: losses and parameters must be equal to the last bit. Both
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


def against_cpu(a, shape):
    options = ("--dtype", "f32", "--dropout", "0.1", "--attention-dropout", "0.1")
    cpu, _ = losses(a.nebula, shape, a.steps, "--device", "cpu", *options)
    other, _ = losses(a.nebula, shape, a.steps + 1, "--device", a.device, *options)  # a recorded step's losses come a step late
    both = sorted(set(cpu) & set(other))
    worst = max(abs(cpu[i] - other[i]) for i in both)
    print(f"{shape}: fp32, cpu against {a.device}, {len(both)} steps, loss {cpu[both[0]]:.4f} to {cpu[both[-1]]:.4f}: "
          f"largest difference {worst:.2e} (bar 1e-3)", flush=True)
    return worst <= 1e-3 and len(both) >= a.steps


def recorded(a, shape, steps):
    options = ("--device", a.device, "--dtype", "bf16", "--dropout", "0.1", "--attention-dropout", "0.1", "--deterministic")
    replayed = losses(a.nebula, shape, steps, *options)
    again = losses(a.nebula, shape, steps, "--no-graphs", *options)
    print(f"{shape}: bf16, {steps} steps, recorded against call by call: "
          f"{'equal bit for bit' if replayed == again else 'DIFFERENT'} (parameters {replayed[1]} and {again[1]})", flush=True)
    return replayed == again


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--steps", type=int, default=200)
    args.add_argument("--device", default="cuda")
    args.add_argument("--only", choices=("f32", "recorded"))
    args.add_argument("--shape", help="only this one")
    a = args.parse_args()
    good = []
    if a.only != "recorded":
        good += [against_cpu(a, shape) for shape in ([a.shape] if a.shape else ["mlm-mini", "mt-mini"])]
    if a.only != "f32":
        steps = {"mlm-mini": 50, "mt-base": 20, "gpt2-124m": 12}
        good += [recorded(a, shape, min(steps.get(shape, 50), a.steps)) for shape in ([a.shape] if a.shape else steps)]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
