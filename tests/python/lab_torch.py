"""PyTorch sites in the WAN laboratory (100 Mbit/s, 50 ms): quality, a killed site, a native site beside a PyTorch one.

    NEBULA=build/release/nebula-i PYTHON tests/python/lab_torch.py [quality] [killed] [mixed]

PYTHON is an interpreter with torch. Each part says what it measured and ends with a status other than 0 when it fails.
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
    """One command a site over a line of 100 Mbit/s and 50 ms; the JSON lines that they print."""
    words = [w for c in commands for w in (":", "sh", "-c", c)][1:]
    p = subprocess.run([NEBULA, "wan", "run", "--wan", "100mbit,50ms", "--", *words], cwd=folder, text=True,
                       stdout=subprocess.PIPE, env={**os.environ, "NEBULA_LOG": "warn", **environment})
    print("".join("    " + line + "\n" for line in p.stdout.splitlines()), end="")
    if p.returncode:
        sys.exit(f"FAIL: a site ended with status {p.returncode}")
    return [json.loads(line) for line in p.stdout.splitlines() if line.startswith("{")]


def same_end(a, b):
    if not (a["ended"] and b["ended"] and a["root"] == b["root"] and a["applied"] == b["applied"]):
        sys.exit("FAIL: the sites did not end at one record with one root")


def quality(folder):
    """Held-out loss of two sites against one process that trains the same tokens, both sites' batches in one."""
    steps = int(os.environ.get("STEPS", 600))
    make_sites(folder, addresses=["a:7400", "b:7400"])
    write_job(folder, rung="int4", interval=10, round_seconds=10, tokens=2 * BATCH * CONTEXT * steps)
    a, b = lab(folder, SITE, SITE, PACE=os.environ.get("PACE", "0.1"), BATCH=str(BATCH))
    same_end(a, b)
    made = (a["steps"] + b["steps"]) // 2
    out = subprocess.run([sys.executable, str(HERE / "lab_site.py"), *TEXT], check=True, text=True,
                         stdout=subprocess.PIPE, env={**os.environ, "STEPS": str(made), "BATCH": str(2 * BATCH)})
    one = json.loads(out.stdout)
    gap = a["loss"] / one["loss"] - 1
    print(f"quality: two sites {a['loss']:.4f} ({a['steps']} + {b['steps']} steps, {a['commits']} records), one process "
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
    print(f"killed: both sites at record {a['applied']}, root {a['root'][:16]}, losses {a['loss']:.4f} and {b['loss']:.4f}")
    if a["loss"] != b["loss"]:
        sys.exit("FAIL: two different models")


PARTS = {"quality": quality, "killed": killed}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[name](folder)
