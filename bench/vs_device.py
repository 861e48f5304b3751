#!/usr/bin/env python3
"""Compares the speed of two devices on one model: nebula-i bench engine --serve runs once for each, and the two take
turns, so that a busy machine slows both. Prints the median of the steps' ratios.

    bench/vs_device.py build/release/nebula-i mlm-mini opencl cpu
    bench/vs_device.py bin/nebula-i mlm-base opencl cuda --steps 10 --turns 5
"""
import argparse
import statistics
import subprocess
import sys


def start(program, shape, device, dtype):
    p = subprocess.Popen([program, "bench", "engine", "--serve", "--shape", shape, "--device", device, "--dtype", dtype],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    if p.stdout.readline().strip() != "ready":
        sys.exit(f"{device}: did not start")
    return p


def steps(p, n):
    p.stdin.write(f"step {n}\n")
    p.stdin.flush()
    seconds, loss = p.stdout.readline().split()
    return float(seconds), float(loss)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program")
    a.add_argument("shape")
    a.add_argument("device")
    a.add_argument("base")
    a.add_argument("--steps", type=int, default=2)
    a.add_argument("--turns", type=int, default=7)
    a.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
    o = a.parse_args()
    run = [start(o.program, o.shape, o.device, o.dtype), start(o.program, o.shape, o.base, o.dtype)]
    for p in run:
        steps(p, 3)  # plans, compiles, records
    times = [[], []]
    for _ in range(o.turns):
        for i, p in enumerate(run):
            times[i].append(steps(p, o.steps)[0])
    for p in run:
        p.stdin.close()
        p.wait()
    ratio = statistics.median(b / d for d, b in zip(*times))
    print(f"{o.shape}, {o.dtype}: {o.device} {statistics.median(times[0]) * 1e3:.2f} ms, {o.base} {statistics.median(times[1]) * 1e3:.2f} ms, "
          f"speed {ratio:.3f} of {o.base}")


main()
