#!/usr/bin/env python3
"""vs_ddp.py: PyTorch DDP over gloo, the usual alternative, against Nebula-I with the same model and the same line.

Two sites in the WAN laboratory, one thread each, train a GPT of the native `gpt2` family's shape. The arms run one after the other:

    alone    PyTorch at both sites; nothing crosses, so this is the upper limit
    ddp      DistributedDataParallel over gloo, with and without bf16 compression of the gradients
    python   the same PyTorch script with nebula_i (examples/torch_gpt.py), rounds every --interval steps
    native   `nebula-i train` of the same model

The figure is tokens per second of both sites together, over at least --seconds after a warm-up. The prediction for DDP is compute +
one all-reduce: with two sites each sends and receives every gradient once, so 8 · bytes / rate, and a round trip a bucket of 25 MB.
DDP overlaps the transfer with the backward pass, so it can beat the prediction by the backward pass at most.

    bench/vs_ddp.py [--nebula PATH] [--wan 100mbit,50ms] [--size small|base] [--seconds 40] [--arms alone,ddp,python,native]
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "python"), str(TOP / "examples"), str(TOP / "tests" / "python")]
SIZES = {"small": dict(hidden=256, layers=4, heads=4), "base": dict(hidden=512, layers=7, heads=8)}
VOCAB, CONTEXT, BATCH = 2000, 128, 4  # 512 tokens a step and site
TOKENS = BATCH * CONTEXT
NATIVE_START = 12  # seconds until a native site trains: tokenizer, data, the first link


# ---- one site of one arm ----------------------------------------------------------------------------------------------

def join_ddp(torch, model, compress):
    """gloo listens at the address of the host's name. In the laboratory the interface says which address that is."""
    import socket

    device = [n for _, n in socket.if_nameindex() if n != "lo"]
    os.environ.update(GLOO_SOCKET_IFNAME=device[0] if device else "lo", MASTER_ADDR=os.environ["NEBULA_WAN_ADDR_A"],
                      MASTER_PORT="29500", RANK=os.environ["NEBULA_WAN_INDEX"], WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo")
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    if compress:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return wrapped


def worker(arm, size, seconds, interval):
    import torch
    import torch.nn.functional as F
    from torch_gpt import GPT

    torch.set_num_threads(1)
    torch.manual_seed(1)
    site = int(os.environ["NEBULA_WAN_INDEX"])
    inner = model = GPT(VOCAB, positions=CONTEXT, **SIZES[size])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    run = None
    if arm.startswith("ddp"):
        model = join_ddp(torch, model, arm == "ddp-bf16")
    if arm == "python":
        import nebula_i

        run = nebula_i.Run("job.yaml", os.environ["NEBULA_WAN_SITE"], finish=False)
        run.attach(model, optimizer)
    rng = torch.Generator().manual_seed(site)
    steps, began, first = 0, None, 0
    while True:
        ids = torch.randint(VOCAB, (BATCH, CONTEXT + 1), generator=rng)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run:
            run.step(TOKENS)
        steps += 1
        now = time.monotonic()
        if began is None and steps >= 2:
            began, first = now, steps
        # Under DDP both sites must make the same number of steps. The first one decides.
        stop = began is not None and now - began >= seconds and steps - first >= 2
        if arm.startswith("ddp"):
            flag = torch.tensor([float(stop)])
            torch.distributed.broadcast(flag, 0)
            stop = bool(flag)
        if stop:
            break
    out = {"tokens": (steps - first) * TOKENS, "seconds": now - began,
           "parameters": sum(p.numel() for p in inner.parameters())}
    if run:
        now = run.status()
        out.update({k: now[k] for k in ("committed", "sent", "rung", "wait_s", "merge_s")})
        run.close()
    print(json.dumps(out), flush=True)


# ---- the arms ---------------------------------------------------------------------------------------------------------

def lab(options, folder, command):
    p = subprocess.run([options.nebula, "wan", "run", "--wan", options.wan, "--", "sh", "-c", command, ":", "sh", "-c", command],
                       cwd=folder, text=True, stdout=subprocess.PIPE, env={**os.environ, "NEBULA_LOG": "warn"})
    if p.returncode:
        sys.exit(f"vs_ddp: a site ended with status {p.returncode}\n{p.stdout}")
    return p.stdout


def torch_arm(options, folder, arm):
    command = " ".join(map(shlex.quote, [sys.executable, __file__, "--worker", arm, "--size", options.size, "--seconds",
                                         str(options.seconds), "--interval", str(options.interval)]))
    made = [json.loads(line) for line in lab(options, folder, command).splitlines() if line.startswith("{")]
    return sum(m["tokens"] / m["seconds"] for m in made), made


def native_arm(options, folder):
    size = SIZES[options.size]
    text = pathlib.Path(folder, "text")
    text.write_bytes(b"".join(p.read_bytes() for d in ("docs/*.md", "src/*/*.c", "src/*/*.h") for p in sorted(TOP.glob(d))))
    pathlib.Path(folder, "native.yaml").write_text(
        pathlib.Path(folder, "job.yaml").read_text() +
        f"task: causal\ntokenizer: {{type: bpe, vocab: {VOCAB}, lines: 20000}}\n"
        f"model: {{family: gpt2, hidden: {size['hidden']}, layers: {size['layers']}, heads: {size['heads']}, "
        f"max_positions: {CONTEXT}, dropout: 0, attention_dropout: 0}}\n"
        f"train: {{steps: 1000000, tokens: {TOKENS}, max_len: {CONTEXT}, lr: 1e-3, threads: 1, log_every: 10, "
        "save_every: 1000000}\ndata:\n  - {file: text}\n")
    train = f"{shlex.quote(options.nebula)} train native.yaml --site $NEBULA_WAN_SITE out=$NEBULA_WAN_SITE-out >&2"
    # The site was stopped by a signal. The metrics hold every step with its time, so they show its speed.
    lab(options, folder, f"timeout -s INT {options.seconds + NATIVE_START} {train}; true")
    made = {}
    for site in "ab":
        kept, seen = f"{folder}/{site}-out/metrics.sqlite", []
        if os.path.exists(kept):
            db = sqlite3.connect(kept)
            seen = db.execute("SELECT time, step FROM value JOIN metric ON metric.id = metric WHERE name = 'loss' "
                              "AND step > 1 ORDER BY step").fetchall()
            db.close()
        if len(seen) < 3:
            sys.exit(f"vs_ddp: native site {site} made only {len(seen)} steps: give it more --seconds")
        (t0, n0), (t1, n1) = seen[0], seen[-1]
        made[site] = {"tokens": (n1 - n0) * TOKENS, "seconds": round(t1 - t0, 2)}
    return sum(m["tokens"] / m["seconds"] for m in made.values()), made


def predicted(options, alone, parameters, bytes_per):
    """Tokens/s of both sites: a step is compute and one all-reduce over the line."""
    rate = float(re.match(r"([\d.]+)mbit", options.wan).group(1)) * 1e6
    trip = float(re.search(r"([\d.]+)ms", options.wan).group(1)) / 1e3
    compute = 2 * TOKENS / alone
    size = parameters * bytes_per
    return 2 * TOKENS / (compute + 8 * size / rate + trip * (1 + size // 25e6))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nebula", default=str(TOP / "build" / "release" / "nebula-i"))
    ap.add_argument("--wan", default="100mbit,50ms")
    ap.add_argument("--size", choices=SIZES, default="small")
    ap.add_argument("--seconds", type=float, default=40)
    ap.add_argument("--interval", type=int, default=50)
    ap.add_argument("--arms", default="alone,ddp,ddp-bf16,python,native")
    ap.add_argument("--worker")
    options = ap.parse_args()
    if options.worker:
        worker(options.worker, options.size, options.seconds, options.interval)
        return
    os.environ["NEBULA"] = options.nebula = str(pathlib.Path(options.nebula).resolve())
    from sites import make_sites, write_job

    rates, parameters = {}, 0
    for arm in options.arms.split(","):
        with tempfile.TemporaryDirectory() as folder:
            make_sites(folder, addresses=["a:7400", "b:7400"])
            write_job(folder, interval=options.interval, fragments=4, rung="int4", outer_lr=0.7, outer_momentum=0.6,
                      round_seconds=60)
            rates[arm], details = native_arm(options, folder) if arm == "native" else torch_arm(options, folder, arm)
        if arm == "alone":
            parameters = details[0]["parameters"]
        print(f"{arm:9s} {rates[arm]:9.0f} tokens/s   {json.dumps(details)}", flush=True)
    print(f"\n{parameters / 1e6:.1f} M parameters, {options.wan}, {TOKENS} tokens a step and site")
    for arm, bytes_per in (("ddp", 4), ("ddp-bf16", 2)):
        if "alone" not in rates or arm not in rates:
            continue
        guess = predicted(options, rates["alone"], parameters, bytes_per)
        for ours in ("python", "native"):
            if ours in rates:
                base = rates["alone"] if ours == "python" else rates["native"]
                print(f"{ours} / {arm}: measured {rates[ours] / rates[arm]:.1f}, predicted {base / guess:.1f}")
    if "alone" in rates and "python" in rates:
        print(f"python / alone: {100 * rates['python'] / rates['alone']:.1f} %")


if __name__ == "__main__":
    main()
