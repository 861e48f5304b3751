"""PyTorch sites in the WAN laboratory (100 Mbit/s, 50 ms): quality, a killed site, a native site beside a PyTorch one.

    NEBULA=build/release/nebula-i PYTHON tests/python/lab_torch.py [quality] [killed] [mixed] [gpu]

PYTHON is an interpreter with torch. Each part prints its measurements. A part that fails ends the program with another status
than 0.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from sites import NEBULA, TOP, make_sites, nebula, write_job

HERE = pathlib.Path(__file__).resolve().parent
TEXT = sorted(map(str, (TOP / "docs").glob("*.md"))) + sorted(map(str, (TOP / "src" / "round").glob("*.c")))
BATCH, CONTEXT = 16, 64
SITE = " ".join(map(shlex.quote, [sys.executable, str(HERE / "lab_site.py"), *TEXT]))


def lab(folder, *commands, **environment):
    """Runs one command a site over a line of 100 Mbit/s and 50 ms. Returns the JSON lines that they print."""
    words = [w for c in commands for w in (":", "sh", "-c", c)][1:]
    p = subprocess.run([NEBULA, "wan", "run", "--wan", "100mbit,50ms", "--", *words], cwd=folder, text=True,
                       stdout=subprocess.PIPE, env={**os.environ, "NEBULA_LOG": "warn", **environment})
    print("".join("    " + line + "\n" for line in p.stdout.splitlines()), end="")
    if p.returncode:
        sys.exit(f"FAIL: a site ended with status {p.returncode}")
    return sorted((json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")), key=lambda s: s["site"])


def same_end(a, b):
    if not (a["ended"] and b["ended"] and a["root"] == b["root"] and a["record"] == b["record"]):
        sys.exit("FAIL: the sites did not end at one record with one root")


def quality(folder):
    """Compares the held-out loss of two sites with that of one process with the same tokens, both sites' batches in one."""
    steps = int(os.environ.get("STEPS", 400))
    make_sites(folder, addresses=["a:7400", "b:7400"])
    write_job(folder, rung="int4", interval=10, round_seconds=10, tokens=2 * BATCH * CONTEXT * steps,
              outer_lr=os.environ.get("OUTER_LR", 0.7), outer_momentum=os.environ.get("OUTER_MOMENTUM", 0.7))
    a, b = lab(folder, SITE, SITE, PACE=os.environ.get("PACE", "0.1"), BATCH=str(BATCH),
               STEPS=str(steps))
    same_end(a, b)
    made = (a["steps"] + b["steps"]) // 2
    out = subprocess.run([sys.executable, str(HERE / "lab_site.py"), *TEXT], check=True, text=True,
                         stdout=subprocess.PIPE, env={**os.environ, "STEPS": str(made), "BATCH": str(2 * BATCH)})
    one = json.loads(out.stdout)
    gap = a["loss"] / one["loss"] - 1
    print(f"quality: two sites {a['loss']:.4f} ({a['steps']} + {b['steps']} steps, {a['committed']} records), one process "
          f"{one['loss']:.4f} ({made} steps of both batches): {100 * gap:+.2f} %")
    if gap > 0.02 or a["loss"] != b["loss"]:
        sys.exit("FAIL: more than 2 % behind, or two different models")


def killed(folder):
    """Site b is killed at step 130, comes back with its checkpoint of step 100, and both end with one model."""
    make_sites(folder, addresses=["a:7400", "b:7400"])
    write_job(folder, rung="int4", interval=10, round_seconds=5, tokens=2 * BATCH * CONTEXT * 250)
    again = f"CRASH=130 {SITE}; [ $? = 137 ] && sleep 2 && CRASH=-1 {SITE}"
    a, b = lab(folder, SITE, again, PACE=os.environ.get("PACE", "0.1"), BATCH=str(BATCH))
    same_end(a, b)
    if not b["resumed"]:
        sys.exit("FAIL: site b did not come back from its checkpoint")
    print(f"killed: both sites at record {a['record']}, root {a['root'][:16]}, losses {a['loss']:.4f} and {b['loss']:.4f}")
    if a["loss"] != b["loss"]:
        sys.exit("FAIL: two different models")


MIXED = """name: mixed
task: causal
tokenizer: {type: bpe, vocab: 400, lines: 2000}
model: {family: gpt2, hidden: 64, layers: 2, heads: 2, max_positions: 64, dropout: 0, attention_dropout: 0}
train: {steps: 100000, minutes: 5, tokens: 512, max_len: 64, lr: 2e-3, log_every: 1000, threads: 1, save_every: 100000}
data:
  - {file: text}
"""


def mixed(folder):
    """Site a is PyTorch, site b is `nebula-i train`: one job file, the same names and shapes, one model in the end."""
    make_sites(folder, addresses=["a:7400", "b:7400"])
    write_job(folder, more=MIXED, round_seconds=10, interval=10, tokens=200 * 1000)
    pathlib.Path(folder, "text").write_bytes(b"".join(pathlib.Path(f).read_bytes() for f in TEXT))
    # A training with learning rate 0 writes the initial values of the job's seed. The PyTorch site starts from them.
    nebula("train", "job.yaml", "out=init", "train.steps=1", "train.lr=0", "train.weight_decay=0", folder=folder)
    native = f"{shlex.quote(NEBULA)} train job.yaml --site b out=out >&2"
    (a,) = lab(folder, SITE, native, INIT="init", BATCH="8", NEBULA_LOG="info")
    from safetensors.torch import load_file

    import torch

    made, began = load_file(f"{folder}/out/model.safetensors"), load_file(f"{folder}/init/model.safetensors")
    ours = torch.load(f"{folder}/model-a.pt", weights_only=True)
    same = all(torch.equal(ours[n], made[n]) for n in made) and ours.keys() == made.keys()
    moved = all(not torch.equal(made[n], began[n]) for n in made)
    print(f"mixed: record {a['record']}, root {a['root'][:16]}, {len(made)} parameters, {a['steps']} steps of PyTorch, "
          f"the models are {'equal bit for bit' if same else 'different'}")
    if not (a["ended"] and same and moved):
        sys.exit("FAIL: the native site and the PyTorch site did not end with one model")


def gpu(folder):
    """Site a's parameters lie on a GPU, site b's in the host's memory; then a bf16 model on the GPU beside an fp32 one."""
    import torch

    if not torch.cuda.is_available():
        print("gpu: skipped, torch sees no GPU")
        return
    for dtype, other in (("", ""), ("bf16", "rounded")):
        made = pathlib.Path(folder, dtype or "fp32")
        made.mkdir()
        make_sites(made, addresses=["a:7400", "b:7400"])
        write_job(made, rung="int4", interval=10, round_seconds=5, tokens=2 * BATCH * CONTEXT * 300)
        a, b = lab(made, f"DEVICE=cuda DTYPE={dtype} {SITE}", f"DTYPE={other} {SITE}", PACE="0.05", BATCH=str(BATCH))
        same_end(a, b)
        x, y = (torch.load(made / f"model-{s}.pt", weights_only=True) for s in "ab")
        same = x.keys() == y.keys() and all(torch.equal(x[n], y[n].to(x[n].dtype)) for n in x)
        print(f"gpu, {dtype or 'fp32'}: record {a['record']}, root {a['root'][:16]}, {a['steps']} steps on the GPU, {b['steps']} on the CPU, "
              f"losses {a['loss']:.4f} and {b['loss']:.4f}, the models are {'equal' if same else 'different'}")
        if not same or not a["merges"]:
            sys.exit("FAIL: the GPU's site and the CPU's did not end with one model")


PARTS = {"quality": quality, "killed": killed, "mixed": mixed, "gpu": gpu}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](folder)
