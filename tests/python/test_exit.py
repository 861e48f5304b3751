"""Tests exits without close(): sites that exit at random moments, each in its own way. None may crash or hang.

    NEBULA=build/release/nebula-i python3 tests/python/test_exit.py [EXITS [SEED]]

Three of four sites run at a time, so there are rounds, and the fourth is dialled again and again.
"""

import pathlib
import random
import subprocess
import sys
import tempfile
import time

from exit_site import WAYS
from sites import make_sites, write_job

SITE = str(pathlib.Path(__file__).resolve().parent / "exit_site.py")
NAMES, RUNNING = ("a", "b", "c", "d"), 3
LIMIT = 300  # seconds, for a machine that is busy


def start(job, site, way, seconds):
    return subprocess.Popen([sys.executable, SITE, job, site, way, f"{seconds:.4f}"], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def bad_end(p, way):
    """What is wrong with the end of a process; None: nothing."""
    try:
        out = p.communicate(timeout=LIMIT)[0]
    except subprocess.TimeoutExpired:
        p.kill()
        return "still runs after %d s\n%s" % (LIMIT, p.communicate()[0])
    wrong = p.returncode != WAYS[way] or "Fatal Python error" in out or ("Traceback" in out) != (way == "raise")
    return f"status {p.returncode} instead of {WAYS[way]}\n{out}" if wrong else None


def main(exits=12, seed=None):
    seed = time.time_ns() if seed is None else seed
    rng, ways, made, bad = random.Random(seed), [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        make_sites(folder, NAMES)
        # Each site begins where an exit has left it. No drift limit: the other sites may have gone already.
        job = write_job(folder, NAMES, drift_steps=10**9)
        while made < exits:
            group = []
            for site in NAMES[:min(RUNNING, exits - made)]:
                ways = ways or rng.sample(sorted(WAYS), len(WAYS))
                group.append((site, ways.pop(), rng.choice([-1, 0, *(rng.uniform(0, 2) for _ in range(6))])))
            started = [start(job, *words) for words in group]
            for p, (site, way, seconds) in zip(started, group):
                wrong = bad_end(p, way)
                if wrong:
                    bad += 1
                    print(f"FAIL: {way} after {seconds:.4f} s: {wrong}")
            made += len(group)
    print(f"exits: {made} without close(), {bad} of them wrong (seed {seed})")
    return bad


if __name__ == "__main__":
    sys.exit(1 if main(*map(int, sys.argv[1:3])) else 0)
