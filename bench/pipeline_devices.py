#!/usr/bin/env python3
"""A model that needs two sites, one of them a GPU and one CPU cores, beside one process: bench/pipeline_devices.py NEBULA-I

Both sites have a cap of memory (train.memory) into which the model does not fit: one process with that cap is refused on either
device. The model is then trained by both (strategy pipeline, hidden states of `--bits` bits over the laboratory's line), for about
`--minutes`. At the same time one process without a cap makes the same steps from the same batches on the GPU. Prints the
losses of both, step by step, the largest difference, bytes and speeds; --out keeps them as curve.tsv and figures.json, with the
logs. Fails if a site can hold the model alone, if the sites have not used what the other lacks, or if a held-out loss is more than
--most per cent above that of one process.

Needs nothing but Python's own library. Where the device is not there it says so and ends well."""
import argparse
import json
import os
import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
running = []

JOB = """name: two-devices
task: causal
cache: cache
tokenizer: {{type: bpe, vocab: {vocab}, lines: 8000}}
model: {{family: gpt2, hidden: {hidden}, layers: {layers}, heads: {heads}, tied: no, dropout: 0}}
train: {{steps: {steps}, tokens: {tokens}, micro: {micro}, max_len: {length}, lr: 6e-4, warmup: {warmup}, log_every: 20,
        save_every: 0, eval_every: {every}}}
data: [{{file: text}}, {{file: valid, use: valid}}]
"""
SITES = """strategy: pipeline
wan: {{bits: {bits}}}
sites:
  - {{name: cores, layers: {cpu_layers}, train: {{device: cpu, threads: {threads}, memory: {cap}MiB}}}}
  - {{name: gpu, layers: {gpu_layers}, train: {{device: {device}, memory: {cap}MiB}}}}
"""


def options():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("nebula")
    p.add_argument("--minutes", type=float, default=8, help="of the training on two sites (default 8)")
    p.add_argument("--text", help="a file of text (default: the project's own pages and sources)")
    p.add_argument("--out", help="a folder for the results")
    p.add_argument("--device", default="cuda")
    p.add_argument("--threads", type=int, default=8, help="of the CPU site")
    p.add_argument("--wan", default="100mbit,50ms")
    p.add_argument("--mode", default="auto", help="of the laboratory")
    p.add_argument("--port", default="7000")
    p.add_argument("--bits", type=int, default=8)
    p.add_argument("--most", type=float, default=1.0, help="per cent that a held-out loss may be above")
    p.add_argument("--steps", type=int, help="instead of --minutes")
    p.add_argument("--limit", type=float, default=0, help="seconds of everything: both sites are then killed, and what they did is shown")
    for name, value in dict(vocab=16000, hidden=768, layers=12, heads=12, cpu_layers=3, tokens=512, micro=8, length=256,
                            cap=1792).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    o = p.parse_args()
    o.nebula = str(pathlib.Path(o.nebula).resolve())
    o.began = time.time()
    o.gpu_layers = o.layers - o.cpu_layers
    return o


def there_is(o):
    lines = subprocess.run([o.nebula, "device", "list"], capture_output=True, text=True).stdout.splitlines()
    return o.device == "cpu" or any(l.startswith(o.device) and "not usable" not in l for l in lines)


def write_text(o):
    if o.text:
        text = pathlib.Path(o.text).read_bytes()
    else:
        files = sorted(f for way in ("docs/*.md", "src/**/*.c", "src/**/*.h", "tests/*.c") for f in TOP.glob(way))
        text = b"".join(f.read_bytes() for f in files)
    lines = text.splitlines(keepends=True)
    # every fiftieth block of twenty lines is held out, so that both parts are of one kind
    parts = {"text": [], "valid": []}
    for i in range(0, len(lines), 20):
        parts["valid" if i // 20 % 50 == 49 else "text"] += lines[i:i + 20]
    for name, part in parts.items():
        pathlib.Path(name).write_bytes(b"".join(part)[:1 << 28 if name == "text" else 40_000])


def write_jobs(o, steps):
    every = max(1, steps // 12)
    values = dict(vars(o), steps=steps, warmup=max(1, steps // 20), every=every)
    pathlib.Path("one.yaml").write_text(JOB.format(**values))
    pathlib.Path("two.yaml").write_text(JOB.format(**values) + SITES.format(**values))


def refused(o, device):
    """One process with the cap of a site: it must not even begin."""
    out = subprocess.run([o.nebula, "train", "one.yaml", "out=refused", f"train.memory={o.cap}MiB", "train.steps=2",
                          "train.eval_every=0", f"train.device={device}", f"train.threads={o.threads}"],
                         capture_output=True, text=True, errors="replace")
    said = [l for l in (out.stdout + out.stderr).splitlines() if "error" in l] or ["nothing"]
    print(f"one process on {device} with train.memory {o.cap} MiB: {'refused: ' + said[-1][:300] if out.returncode else 'trains'}",
          flush=True)
    shutil.rmtree("refused", ignore_errors=True)
    return out.returncode != 0


def start(o, log, *words):
    p = subprocess.Popen([o.nebula, *words], stdout=open(log, "w"), stderr=subprocess.STDOUT)
    running.append(p)
    return p


def lab(o, out, *more):
    return start(o, out + ".log", "lab", "two.yaml", "--wan", o.wan, "--mode", o.mode, "--port", o.port, f"out={out}", *more)


def ended(what, process):
    code = process.wait()
    if code:
        log = pathlib.Path(what + ".log").read_text(errors="replace").splitlines()
        sys.exit(f"{what} ended with {code}:\n" + "\n".join(l[:300] for l in log[-25:]))


def series(folder, name):
    """{step: (unix seconds, value)} of a measured series."""
    try:
        db = sqlite3.connect(f"file:{folder}/metrics.sqlite?mode=ro", uri=True)
        rows = db.execute("select step, time, value from value join metric on metric = id where name = ?", (name,)).fetchall()
    except sqlite3.Error as e:
        sys.exit(f"{folder}: {e}")
    return {step: (time, value) for step, time, value in rows}


def pace(folder):
    """Seconds of a step, behind the first quarter of them."""
    at = series(folder, "loss")
    steps = sorted(at)
    first = steps[len(steps) // 4]
    return (at[steps[-1]][0] - at[first][0]) / (steps[-1] - first)


def say(log, pattern):
    for l in pathlib.Path(log).read_text(errors="replace").splitlines():
        if re.search(pattern, l):
            print("   ", l[:260])


def table(o, f):
    one, two = series("one", "loss"), series("two/cores", "loss")
    held_one, held_two = series("one", "valid/loss"), series("two/cores", "valid/loss")
    common = sorted(set(one) & set(two))
    with open("curve.tsv", "w") as t:
        t.write("step\tseconds of two sites\tloss of two sites\tloss of one process\tdifference, %\n")
        for s in common:
            t.write(f"{s}\t{two[s][0] - two[common[0]][0]:.1f}\t{two[s][1]:.5f}\t{one[s][1]:.5f}\t"
                    f"{100 * (two[s][1] / one[s][1] - 1):.4f}\n")
    print(f"{'step':>6} {'two sites':>10} {'one process':>12} {'differ, %':>10}   training loss, mean of the steps since the row above")
    last = 0
    rows = sorted(set(common[:1] + common[len(common) // 20::max(1, len(common) // 20)] + common[-1:]))
    for s in rows:
        block = [x for x in common if last < x <= s]
        a, b = (sum(c[x][1] for x in block) / len(block) for c in (two, one))
        print(f"{s:6d} {a:10.4f} {b:12.4f} {100 * (a / b - 1):10.3f}")
        last = s
    print(f"{'step':>6} {'two sites':>10} {'one process':>12} {'differ, %':>10}   held-out loss")
    held = sorted(set(held_one) & set(held_two))
    for s in held:
        print(f"{s:6d} {held_two[s][1]:10.4f} {held_one[s][1]:12.4f} {100 * (held_two[s][1] / held_one[s][1] - 1):10.3f}")
    if not common:
        sys.exit("the two runs have no step in common")
    seen = series("one", "tokens")
    f["step_tokens"] = seen[max(seen)][1] / max(seen)
    above = [100 * (held_two[s][1] / held_one[s][1] - 1) for s in held] or [float("inf")]
    at = held[-1] if held else None
    f.update(steps=common[-1], steps_compared=len(common), loss_difference_percent_most=max(abs(two[s][1] / one[s][1] - 1) * 100 for s in common),
             held_out_two=at and held_two[at][1], held_out_one=at and held_one[at][1],
             held_out_first=at and held_one[held[0]][1], held_out_above_percent_end=above[-1], held_out_above_percent_most=max(above))


def main():
    o = options()
    if not there_is(o):
        print(f"pipeline_devices: skipped, there is no {o.device} device")
        return 0
    folder = pathlib.Path(tempfile.mkdtemp())
    os.chdir(folder)
    f = dict(model={k: getattr(o, k) for k in ("hidden", "layers", "vocab", "cpu_layers", "gpu_layers")}, tokens=o.tokens,
             micro=o.micro,
             wan=o.wan, bits=o.bits, cap_mib=o.cap, threads=o.threads, device=o.device)
    bad = []
    try:
        write_text(o)
        write_jobs(o, o.steps or 16)
        for d in dict.fromkeys((o.device, "cpu")):
            if not refused(o, d):
                bad.append(f"{d} holds the whole model")
        if not o.steps: # a short run says how many steps the minutes have
            p = lab(o, "pilot", "train.eval_every=0")
            ended("pilot", p)
            each = pace("pilot/cores")
            write_jobs(o, max(40, int(0.94 * o.minutes * 60 / each))) # the rest evaluates
            print(f"a pilot of 16 steps: {each:.2f} s a step", flush=True)
        began = time.time()
        left = o.limit - (began - o.began) - 15
        both = lab(o, "two", *(["--time", f"{max(left, 10):.0f}s"] if o.limit else []))
        one = start(o, "one.log", "train", "one.yaml", "out=one", f"train.device={o.device}", f"train.threads={o.threads}")
        late = both.wait() != 0 and bool(o.limit) and time.time() - began >= left - 1
        if late:
            one.terminate()
            one.wait()
            bad.append("the sites had to be killed: --limit")
        else:
            ended("two", both)
            ended("one", one)
        f["seconds_two_sites"] = time.time() - began
        table(o, f)
        f["step_seconds_two_sites"], f["step_seconds_one_process"] = pace("two/cores"), pace("one")
        for name in ("step_seconds_two_sites", "step_seconds_one_process"):
            f[name.replace("step_seconds", "tokens_per_second")] = f["step_tokens"] / f[name]
        print("the sites' last words:")
        say("two.log", r"\| .*(stage \d of \d \(|bits, \d+ in flight|tokens in )")
        if not pathlib.Path("two/cores/model.safetensors").exists():
            bad.append("the first site has no model")
        if f["held_out_above_percent_end"] > o.most:
            bad.append(f"held-out loss {f['held_out_above_percent_end']:.2f} % above one process (at most {o.most})")
        f["failed"] = bad
        print(json.dumps(f))
        pathlib.Path("figures.json").write_text(json.dumps(f, indent=1) + "\n")
    finally:
        for p in running: # if one of two has failed, the other one still trains
            if p.poll() is None:
                p.terminate()
                p.wait()
        if o.out:
            pathlib.Path(o.out).mkdir(parents=True, exist_ok=True)
            for name in ("figures.json", "curve.tsv", "one.yaml", "two.yaml", "one.log", "two.log", "pilot.log"):
                if pathlib.Path(name).exists():
                    shutil.copy(name, o.out)
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)
    for b in bad:
        print("FAIL:", b)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
