#!/usr/bin/env python3
"""What a wide-area line costs two sites that fine-tune the same large model with LoRA, on one machine.

    bench/lora_sites.py --work WORK [--nebula build/release/nebula-i] [--wan 100mbit,50ms] [--json FILE]

WORK has been filled as bench/vs_peft.py says. Both sites share the GPU, each with a copy of the model, in both arms: `nebula-i lab`,
where they train one set of adapters over the line, and `nebula-i lab --apart`, where each trains alone. So a site has the same half
of the GPU in both, and the difference is what the line and the session cost. The rate is that of both sites' own metrics, without
the first seconds after both have begun. It begins after each site has made `--lead` steps; in the joined arm at least one sweep of all fragments
lies within. Seconds of wait and recovery and the bytes and records of the line are printed, too.
"""
import argparse, json, os, shutil, signal, sqlite3, subprocess, sys, time

from vs_peft import job, gpu_used

SITES = ("a", "b")


def samples(out, name):
    """(time, value) of a site's metric."""
    try:
        with sqlite3.connect(f"file:{out}/metrics.sqlite?mode=ro", uri=True, timeout=2) as c:
            return c.execute("select time, value from value where metric = (select id from metric where name = ?) order by time", (name,)).fetchall()
    except sqlite3.Error:
        return []


def growth(out, name, first, last):
    rows = [(t, v) for t, v in samples(out, name) if first <= t <= last]
    return (rows[-1][1] - rows[0][1], rows[-1][0] - rows[0][0]) if len(rows) > 1 else (0.0, 0.0)


def steps(log):
    try:
        with open(log, errors="replace") as f:
            return sum("  step " in line for line in f)
    except OSError:
        return 0


def arm(a, apart):
    name = "apart" if apart else "joined"
    out = os.path.join(a.work, "sites-" + name)
    shutil.rmtree(out, ignore_errors=True)
    path = os.path.join(a.work, "sites.yaml")
    with open(path, "w") as f:
        f.write(job(a, a.frozen, f"sites: [{{name: a}}, {{name: b}}]\nwan: {{interval: {a.interval}, fragments: {a.fragments}}}\n"))
    command = [a.nebula, "lab", path, f"out={out}", "--wan", a.wan] + (["--apart"] if apart else [])
    began, window = time.time(), a.window_apart if apart else a.window
    with open(out + ".log", "w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while time.time() - began < a.start and child.poll() is None and min(steps(f"{out}/{s}/log") for s in SITES) < a.lead:
            time.sleep(0.3)
        first, memory = time.time(), gpu_used()
        while time.time() - first < window and child.poll() is None:
            time.sleep(0.3)
        last = time.time()
        r = {"start": first - began, "memory": memory, "rate": 0.0, "mode": ""}
        for s in SITES:
            tokens, seconds = growth(f"{out}/{s}", "tokens", first, last)
            r[f"rate.{s}"] = tokens / seconds if seconds else 0.0
            r["rate"] += r[f"rate.{s}"]
            for key in ("wan/out", "wan/records"):
                r[f"{key}.{s}"] = growth(f"{out}/{s}", key, first, last)[0]
        r["seconds"] = last - first
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(8)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if not r["rate"]:
        for file in (out + ".log", *(f"{out}/{s}/log" for s in SITES)):
            if os.path.exists(file):
                print(f"{file}: " + open(file, errors="replace").read()[-1200:], flush=True)
    return r


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--nebula", default="build/release/nebula-i")
    args.add_argument("--work", required=True)
    args.add_argument("--wan", default="100mbit,50ms")
    args.add_argument("--frozen", default="bf16")
    args.add_argument("--device", default="cuda")
    args.add_argument("--interval", type=int, default=100, help="steps between two rounds of a fragment")
    args.add_argument("--fragments", type=int, default=8)
    args.add_argument("--lead", type=int, default=15, help="steps of a site before the counted time")
    args.add_argument("--window", type=float, default=35, help="counted seconds over the line")
    args.add_argument("--window-apart", type=float, default=18, help="counted seconds of the arm without one")
    args.add_argument("--start", type=float, default=60, help="longest time until then")
    args.add_argument("--json")
    a = args.parse_args()
    results = {}
    for apart in (True, False):
        r = results["apart" if apart else "joined"] = arm(a, apart)
        print(f"sites {'apart ' if apart else 'joined'} {r['rate']:8.0f} tokens/s (a {r['rate.a']:.0f}, b {r['rate.b']:.0f}) in {r['seconds']:.0f} s,"
              f" begun after {r['start']:.0f} s, {r['memory']:.1f} GiB; sent {r['wan/out.a'] / 1e6:.1f} and {r['wan/out.b'] / 1e6:.1f} MB,"
              f" records {r['wan/records.a']:.0f}", flush=True)
        if a.json:
            with open(a.json, "w") as f:
                json.dump(results, f, indent=1)
    if results["apart"]["rate"]:
        print(f"sites over {a.wan}: {results['joined']['rate'] / results['apart']['rate']:.4f} of the rate without a line", flush=True)


if __name__ == "__main__":
    sys.exit(main())
