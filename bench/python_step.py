"""Processor time of run.step() in a PyTorch training, beside that of an optimizer step: two sites on this machine.

    PYTHON bench/python_step.py [--steps 600] [--interval 50] [--hidden 256] [--layers 6] [--package DIR[,DIR…]]

PYTHON is an interpreter with torch. Each site makes optimizer steps on made-up gradients, which takes the forward and backward
pass out of the picture, and counts the processor time of its own thread in run.step(). The table has, for each site: the median
of the steps without a round, the mean over all steps, and the mean of an AdamW step on the same parameters, in microseconds.
DIR is a checkout with its build; several are measured in turns, so that one run compares two versions.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parents[1]


def train(options, site):
    """One site, in a process of its own."""
    sys.path.insert(0, str(pathlib.Path(options.package) / "python"))
    import torch

    import nebula_i

    torch.manual_seed(1)
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(options.hidden, 4, 4 * options.hidden, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, options.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    own, optimizing = [], 0.0
    with nebula_i.Run(options.job, site, wait=60) as run:
        run.attach(model, optimizer)
        for _ in range(options.steps):
            at = time.thread_time_ns()
            optimizer.step()
            optimizing += time.thread_time_ns() - at
            at = time.thread_time_ns()
            run.step(1024)
            own.append((time.thread_time_ns() - at) / 1e3)
            time.sleep(options.pause)
    own = own[len(own) // 10:]  # the first steps warm up
    tensors = sum(1 for _ in model.parameters())
    print(json.dumps({"site": site, "tensors": tensors, "values": sum(p.numel() for p in model.parameters()),
                      "median": statistics.median(own), "mean": statistics.fmean(own),
                      "optimizer": optimizing / 1e3 / options.steps}), flush=True)


def measure(options, package):
    """Two sites with the package and library of one checkout."""
    sys.path.insert(0, str(TOP / "tests" / "python"))
    os.environ.setdefault("NEBULA", str(TOP / "build" / "release" / "nebula-i"))
    from sites import make_sites, write_job

    with tempfile.TemporaryDirectory() as folder:
        make_sites(folder)
        job = write_job(folder, interval=options.interval, round_seconds=20)
        words = [sys.executable, __file__, "--job", job, "--package", str(package)]
        for name in ("steps", "hidden", "layers", "pause"):
            words += ["--" + name, str(getattr(options, name))]
        env = {**os.environ, "NEBULA_LOG": "error"}
        sites = [subprocess.Popen([*words, "--site", s], stdout=subprocess.PIPE, text=True, env=env) for s in "ab"]
        out = [p.communicate()[0] for p in sites]
        if any(p.returncode for p in sites):
            sys.exit(f"a site of {package} failed")
        return [json.loads(text.splitlines()[-1]) for text in out]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--steps", type=int, default=600)
    p.add_argument("--interval", type=int, default=50)
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--layers", type=int, default=6)
    p.add_argument("--pause", type=float, default=0.005, help="seconds after each step, in place of the passes")
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--package", default=str(TOP))
    p.add_argument("--job", help=argparse.SUPPRESS)
    p.add_argument("--site", help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.site:
        return train(options, options.site)
    for turn in range(options.turns):
        for package in map(pathlib.Path, options.package.split(",")):
            for r in measure(options, package.resolve()):
                print(f"{package}  site {r['site']}  {r['tensors']} tensors, {r['values'] / 1e6:.1f} M values: run.step() median "
                      f"{r['median']:.0f} us, mean {r['mean']:.0f} us; optimizer {r['optimizer']:.0f} us", flush=True)


if __name__ == "__main__":
    main()
