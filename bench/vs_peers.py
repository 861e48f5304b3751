#!/usr/bin/env python3
"""vs_peers.py: Nebula-I beside what a user would pick instead: one line, one model, one text, equal time; one table.

    sudo bench/vs_peers.py            about 25 minutes on two idle cores, and once the download of the packages
    sudo bench/vs_peers.py --quick    about 8 minutes: one short run an arm, to see that everything works

Two sites of one core each in the laboratory (`nebula-i wan run`, which needs root for its network) train the same GPT, PyTorch's in
every arm but the native one. The arms are in bench/peers: PyTorch DDP, torchft, PCCL, Hivemind, OpenDiLoCo (not on PyPI: give a
checkout with --opendiloco) and Flower. Each has a virtual environment of its own, made with pip in --folder; they share one PyTorch.
An arm that cannot be installed or does not run is a row that says why.

Every figure is the median of --runs runs, which take turns. `tokens/s` counts both sites' steps in the time and is given relative
to two sites that do not communicate. `longest gap` is the longest time without a step at either site. `sent` are the bytes of one
site on the line, all headers included. `loss` is held-out, of the model that the sites have at the end (if theirs differ: of the mean
or of site a's, whichever is better). After a kill, one run: site b is killed with SIGKILL at a third of the time and started again 5 s
later.
"""
import argparse
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
PEERS = TOP / "bench" / "peers"
sys.path[:0] = [str(PEERS), str(TOP / "tests" / "python")]
import packages  # noqa: E402
import text  # noqa: E402

LIGHTHOUSE = ["torchft_lighthouse", "--bind", "0.0.0.0:29510", "--min_replicas", "1", "--join_timeout_ms", "10000"]
MASTER = ["python", "-m", "pccl.master"]
ARMS = {  # name: title, script, virtual environment, helpers at site a, more environment
    "alone": ("no communication", "arm_alone.py", "torch", [], {}),
    "native": ("**Nebula-I**, its own trainer", "arm_native.py", "torch", [], {}),
    "python": ("**Nebula-I**, six lines of Python", "arm_nebula.py", "torch", [], {}),
    "pccl": ("PCCL, DiLoCo, 8 bits", "arm_pccl.py", "pccl", [MASTER], {}),
    "torchft": ("torchft, DiLoCo", "arm_torchft.py", "torchft", [LIGHTHOUSE], {}),
    "torchft-streaming": ("torchft, streaming DiLoCo", "arm_torchft.py", "torchft", [LIGHTHOUSE], {"PEERS_FRAGMENTS": "2"}),
    "hivemind": ("Hivemind, local updates", "arm_hivemind.py", "hivemind", [], {}),
    "opendiloco": ("OpenDiLoCo (on Hivemind)", "arm_hivemind.py", "hivemind", [], {}),
    "ddp": ("PyTorch DDP (Gloo)", "arm_ddp.py", "torch", [], {}),
    "ddp-powersgd": ("PyTorch DDP, PowerSGD", "arm_ddp.py", "torch", [], {"PEERS_HOOK": "powersgd"}),
    "flower": ("Flower, FedAvg", "arm_flower.py", "flower", [], {}),
}
DEFAULT = "alone,native,python,pccl,torchft,opendiloco,hivemind,ddp,flower"
AWAY = 5  # seconds between a kill and the start after it


class CannotRun(Exception):
    """Why an arm is a row without figures."""


# ---- one run ----------------------------------------------------------------------------------------------------------

def write_jobs(options, run):
    """Folders, roster and jobs of the two arms of Nebula-I."""
    from sites import make_sites

    make_sites(str(run), addresses=["a:7400", "b:7400"])
    hidden, layers, heads = options.shape.split(",")
    sites = "sites: [{name: a}, {name: b}]\n"
    (run / "job.yaml").write_text(f"wan: {{interval: {options.interval}, tokens: 1e12}}\n" + sites)
    (run / "native.yaml").write_text(
        f"task: causal\ncache: {run}/cache\nwan: {{interval: {options.interval}}}\n" + sites +
        f"tokenizer: {{file: {options.tokens}/tok.model}}\n"
        f"model: {{family: gpt2, hidden: {hidden}, layers: {layers}, heads: {heads}, max_positions: 128, dropout: 0, "
        f"attention_dropout: 0}}\n"
        f"train: {{steps: 1000000, minutes: {options.time / 60}, tokens: {options.batch * 128}, max_len: 128, lr: {options.lr}, "
        f"floor: {options.lr / 10}, warmup: 20, beta2: 0.99, clip: 1, weight_decay: 0.01, threads: 1, log_every: 1000000, "
        "save_every: 100}\n"
        f"data: [{{file: {options.tokens}/train.txt, lang: en}}]\n")
    subprocess.run([options.nebula, "corpus", "prepare", "native.yaml"], cwd=run, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def environment(options, arm, run, seed, kill):
    _, _, venv, _, more = ARMS[arm]
    return {**os.environ, "PEERS_RUN": str(run), "PEERS_TOKENS": str(options.tokens), "PEERS_SECONDS": str(options.time),
            "PEERS_SHAPE": options.shape, "PEERS_BATCH": str(options.batch), "PEERS_LR": str(options.lr), "PEERS_SEED": str(seed),
            "PEERS_INTERVAL": str(options.interval), "PEERS_NEBULA": options.nebula, "NEBULA_LOG": "warn",
            "PYTHONPATH": f"{PEERS}:{TOP / 'python'}", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": "wan0", "TP_SOCKET_IFNAME": "wan0", "TORCHFT_LIGHTHOUSE": "http://a:29510",
            "NEBULA_I_LIBRARY": str(pathlib.Path(options.nebula).with_name("libnebula-i.so")), **packages.loader(options.folder, venv),
            **({"PEERS_KILL": "1"} if kill else {}), **({"PEERS_OPENDILOCO": str(options.opendiloco)} if arm == "opendiloco" else {}),
            **more}


def run_arm(options, arm, seed, kill):
    """Runs it in a new folder and returns the folder."""
    _, script, venv, helpers, _ = ARMS[arm]
    run = options.folder / "runs" / f"{arm}-{'kill' if kill else seed}"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    if arm in ("native", "python"):
        write_jobs(options, run)
    programs = options.folder / f"venv-{venv}" / "bin"
    spec = {}
    for site in "ab":
        spec[site] = {"helpers": [[str(programs / h[0]), *h[1:]] for h in helpers] if site == "a" else [],
                      "trainer": [str(programs / "python"), "-W", "ignore", str(PEERS / script)],
                      "kill": [options.time / 3, AWAY] if kill and site == "b" else None}
    (run / "spec.json").write_text(json.dumps(spec))
    site = f"{shlex.quote(sys.executable)} {shlex.quote(str(PEERS / 'site.py'))} spec.json"
    began = time.time()
    p = subprocess.run([options.nebula, "wan", "run", "--mode", "namespaces", "--wan", options.wan, "--stats", "--", "sh", "-c", site,
                        ":", "sh", "-c", site], cwd=run, env=environment(options, arm, run, seed, kill), text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=options.time + 400)
    (run / "lab.log").write_text(p.stdout)
    print(f"  {arm}{' with a kill' if kill else ''}: {time.time() - began:.0f} s", flush=True)
    return run


# ---- what a run has shown ---------------------------------------------------------------------------------------------

def times_of(run, site):
    path = run / f"steps-{site}.csv"
    return sorted(float(line.split(",")[0]) for line in path.read_text().splitlines()) if path.exists() else []


def gap(times, begin, end):
    """The longest time without a step between two moments."""
    marks = [begin, *(t for t in times if begin < t < end), end]
    return max(b - a for a, b in zip(marks, marks[1:]))


def last_words(run):
    """Why it did not work, from the end of the sites' logs."""
    for site in "ab":
        log = run / f"log-{site}"
        lines = [s.strip() for s in log.read_text(errors="replace").splitlines() if s.strip()] if log.exists() else []
        errors = [s for s in lines if re.match(r"^\w*(\.\w+)*(Error|Exception)\b", s)]
        if errors:
            return errors[-1][:160].replace("|", "/")
    return "a site made no two steps in the time, and names no error"


def measure(options, run, kill):
    times = {site: [t for t in times_of(run, site) if t <= options.time] for site in "ab"}
    if min(map(len, times.values())) < 2:
        raise CannotRun(last_words(run))
    sent = [int(n) for n in re.findall(r"^[ab] > [ab]\s+\d+\s+(\d+)", (run / "lab.log").read_text(), re.M)]
    found = {"tokens": sum(map(len, times.values())) * options.batch * 128 / options.time, "sent": sum(sent) / 2,
             "gap": max(gap(t, max(t[0], 0), options.time) for t in times.values())}
    if kill:
        events = json.loads((run / "events-b.json").read_text())["events"]
        started = next((at for at, what in events if what == "started"), None)
        after = [t for t in times["b"] if started is not None and t > started]
        found.update(other_gap=gap(times["a"], options.time / 3, options.time), again=after[0] - started if after else None)
    return found


def add_losses(options, results):
    runs = [r["run"] for r in results if r.get("run")]
    if not runs:
        return
    p = subprocess.run([str(options.folder / "venv-torch/bin/python"), str(PEERS / "evaluate.py"), *runs], text=True, check=True,
                       stdout=subprocess.PIPE, env=environment(options, "alone", options.folder, 1, False))
    losses = {e["run"]: e for e in map(json.loads, p.stdout.splitlines())}
    for r in results:
        if r.get("run"):
            r.update(loss=losses[r["run"]]["loss"], same=losses[r["run"]]["same"])


def attempt(options, arm, seed, kill):
    result = {"arm": arm, "kill": kill}
    try:
        if not kill or arm != "alone":
            run = run_arm(options, arm, seed, kill)
            result.update(measure(options, run, kill), run=str(run))
    except (CannotRun, subprocess.SubprocessError, OSError) as e:
        result["why"] = str(e)
        print(f"  {arm}: {e}", flush=True)
    return result


# ---- the table --------------------------------------------------------------------------------------------------------

def median(results, key):
    values = [r[key] for r in results if r.get(key) is not None]
    return statistics.median(values) if values else math.nan


def cell(value, form):
    return "–" if value is None or math.isnan(value) else form % value


def again(kills):
    """Seconds until the killed site trains again."""
    late = kills and all(r["again"] is None for r in kills)
    return "not in the time" if late else cell(median(kills, "again"), "%.1f s")


def row(arm, results, alone):
    mine = [r for r in results if r["arm"] == arm and not r["kill"] and "why" not in r]
    kills = [r for r in results if r["arm"] == arm and r["kill"] and "why" not in r]
    why = next((r["why"] for r in results if r["arm"] == arm and "why" in r), None)
    if not mine:
        return f"| {ARMS[arm][0]} | does not run here: {why} | | | | | | |"
    return (f"| {ARMS[arm][0]} | {cell(median(mine, 'tokens') / alone, '%.3f')} | {cell(median(mine, 'gap'), '%.1f s')} "
            f"| {cell(median(mine, 'sent') / 1e6, '%.0f')} | {cell(median(mine, 'loss'), '%.3f')} "
            f"| {cell(median(kills, 'other_gap'), '%.1f s')} | {again(kills)} "
            f"| {cell(median(kills, 'loss'), '%.3f')} |")


def table(options, results):
    alone = median([r for r in results if r["arm"] == "alone" and not r["kill"]], "tokens")
    lines = [f"{options.wan}, {options.time:.0f} s, {options.batch * 128} tokens a step and site, H {options.interval}, medians of "
             f"{options.runs}; no communication: {alone:,.0f} tokens/s; {packages.versions(options.folder)}", "",
             "| | tokens/s | longest gap | MB sent a site | held-out loss | after a kill: gap of the other site | trains again after "
             "| loss |", "|---|---|---|---|---|---|---|---|"]
    return "\n".join(lines + [row(arm, results, alone) for arm in options.arms])


# ---- the whole --------------------------------------------------------------------------------------------------------

def parse():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nebula", default=str(TOP / "build" / "release" / "nebula-i"))
    ap.add_argument("--folder", default=str(TOP / "build" / "peers"), help="virtual environments, tokens, runs, results.json")
    ap.add_argument("--python", default=packages.newest_python(), help="for the virtual environments; PCCL needs 3.12")
    ap.add_argument("--wan", default="100mbit,100ms")
    ap.add_argument("--arms", default=DEFAULT, help="of " + ",".join(ARMS))
    ap.add_argument("--seconds", dest="time", type=float, default=35)
    ap.add_argument("--runs", type=int, default=3)
    ap.add_argument("--no-kill", action="store_true", help="leave out the runs with a kill")
    ap.add_argument("--shape", default="256,6,4", help="hidden,layers,heads")
    ap.add_argument("--batch", type=int, default=3)
    ap.add_argument("--lr", type=float, default=6e-4)
    ap.add_argument("--interval", type=int, default=50)
    ap.add_argument("--text", nargs="*", help="files to learn from; without them: the project's own pages and sources")
    ap.add_argument("--opendiloco", type=pathlib.Path, help="a checkout of OpenDiLoCo")
    ap.add_argument("--quick", action="store_true", help="one run of 20 s an arm, a smaller model")
    ap.add_argument("--table", action="store_true", help="only print the table of the last results.json again")
    options = ap.parse_args()
    if options.quick:
        options.time, options.runs, options.shape, options.interval = 20, 1, "128,4,4", 24
    options.arms = options.arms.split(",")
    options.folder, options.nebula = pathlib.Path(options.folder).resolve(), str(pathlib.Path(options.nebula).resolve())
    options.tokens = options.folder / "tokens"
    if options.runs < 1:
        ap.error("--runs: at least 1")
    unknown = [a for a in options.arms if a not in ARMS]
    if unknown:
        ap.error(f"no arm '{unknown[0]}'; there are {', '.join(ARMS)}")
    return options


def check_laboratory(options):
    p = subprocess.run([options.nebula, "wan", "run", "--mode", "namespaces", "--wan", options.wan, "--", "true"], text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if p.returncode:
        sys.exit(f"vs_peers: the laboratory does not start (it needs root and /dev/net/tun): {p.stdout.strip()}")


def install(options):
    """Why an environment cannot be had, by its name."""
    wanted = dict.fromkeys(["torch", *(ARMS[a][2] for a in options.arms)])
    return {v: why for v in wanted if (why := packages.install(options.folder, options.python, v))}


def run_all(options):
    """Every result, a run after the other."""
    missing = install(options)
    if "torch" in missing:
        sys.exit(f"vs_peers: PyTorch cannot be installed: {missing['torch']}")
    text.prepare(options.nebula, options.text, options.tokens)
    results = [{"arm": a, "kill": False, "why": missing[ARMS[a][2]]} for a in options.arms if ARMS[a][2] in missing]
    if "opendiloco" in options.arms and not options.opendiloco:
        results.append({"arm": "opendiloco", "kill": False, "why": "not on PyPI; --opendiloco takes a checkout"})
    left_out = {r["arm"] for r in results}
    for seed in range(1, options.runs + 1):
        print(f"run {seed} of {options.runs}", flush=True)
        for arm in (a for a in options.arms if a not in left_out):
            results.append(attempt(options, arm, seed, False))
            if "why" in results[-1]:
                left_out.add(arm)
    if not options.no_kill:
        print("with a kill", flush=True)
        results += [attempt(options, a, 1, True) for a in options.arms if a not in left_out and a != "alone"]
    add_losses(options, results)
    return results


def main():
    options = parse()
    os.environ["NEBULA"] = options.nebula
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = options.folder / "results.json"
    if options.table:
        saved = json.loads(kept.read_text())
        vars(options).update(saved["settings"])
        print(table(options, saved["results"]))
        return
    check_laboratory(options)
    results = run_all(options)
    settings = {k: getattr(options, k) for k in ("wan", "time", "batch", "interval", "runs", "shape", "lr", "arms")}
    kept.write_text(json.dumps({"settings": settings, "results": results}, indent=1))
    print("\n" + table(options, results))


if __name__ == "__main__":
    main()
