#!/usr/bin/env python3
"""watched.py NEBULA [--turns 20] [--seconds 3] [--viewers 2]: what being watched costs a training.

One training runs all the time. A page (`nebula-i watch` at a lower priority, as `train --watch` starts it, and viewers that take
every event) is there in every second turn: it is stopped and continued, so that nothing is started or loaded within a turn. A
turn's speed is the steps that the training made for each second of its own processor time, and for each second of the clock. The
first is what the training itself loses; the second is also what the page takes from a machine without a core to spare. The
result is the median of the ratios of neighbouring turns, with and without. A machine that is busy with other things moves the
ratio of one pair and hardly the median of many."""
import argparse, json, os, re, selectors, shutil, signal, socket, statistics, subprocess, sys, tempfile, threading, time

here = os.path.dirname(os.path.abspath(__file__))
p = argparse.ArgumentParser()
p.add_argument("nebula")
p.add_argument("--turns", type=int, default=20, help="pairs of turns")
p.add_argument("--seconds", type=float, default=3)
p.add_argument("--viewers", type=int, default=2)
p.add_argument("--limit", type=float, help="fail below this ratio of steps by processor time")
a = p.parse_args()
nebula = os.path.abspath(a.nebula)
folder = tempfile.mkdtemp(prefix="nebula-watched-")
children = []


def cpu(pid):
    f = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")


def measured(pid):
    """Steps, the training's processor time and the time of the clock, at the moment of one status."""
    before = os.stat(folder + "/run/status.json").st_mtime_ns
    while os.stat(folder + "/run/status.json").st_mtime_ns == before: time.sleep(0.002)
    step = next(s["step"] for s in json.load(open(folder + "/run/status.json"))["sites"])
    return step, cpu(pid), time.time()


try:
    shutil.copy(os.path.join(here, "../../docs/watch.md"), folder + "/text")
    with open(folder + "/job.yaml", "w") as f:
        f.write("name: watched\ntask: causal\ntokenizer: {type: bpe, vocab: 300, lines: 1000}\nmodel: {family: gpt2, hidden: 64, layers: 2, heads: 2}\n"
                "train: {steps: 100000000, tokens: 256, max_len: 64, lr: 1e-3, log_every: 100000, save_every: 100000000, threads: 1}\ndata: [{file: text}]\n")
    train = subprocess.Popen([nebula, "train", "job.yaml", f"out={folder}/run"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children.append(train)
    while not os.path.exists(folder + "/run/status.json"): time.sleep(0.1)
    watch = subprocess.Popen(["nice", "-n", "10", nebula, "watch", folder + "/run", "--port", "0"], stdout=subprocess.PIPE, text=True)
    children.append(watch)
    port = int(re.search(r":(\d+)/", watch.stdout.readline()).group(1))
    choose = selectors.DefaultSelector()
    for _ in range(a.viewers):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        choose.register(s, selectors.EVENT_READ)

    def look():
        while True:
            for key, _ in choose.select(): key.fileobj.recv(1 << 16)

    threading.Thread(target=look, daemon=True).start()
    time.sleep(3)
    by_cpu, by_clock = [], []
    for turn in range(a.turns):
        speed = {}
        for watched in (turn % 2 == 0, turn % 2 == 1):  # which of the two comes first alternates
            watch.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
            s0, c0, t0 = measured(train.pid)
            time.sleep(a.seconds)
            s1, c1, t1 = measured(train.pid)
            speed[watched] = ((s1 - s0) / (c1 - c0), (s1 - s0) / (t1 - t0))
        by_cpu.append(speed[True][0] / speed[False][0])
        by_clock.append(speed[True][1] / speed[False][1])
    watch.send_signal(signal.SIGCONT)
    mid, low, high = statistics.median(by_cpu), *(statistics.quantiles(by_cpu, n=4)[i] for i in (0, 2))
    print(f"watched: {a.turns} pairs of turns of {a.seconds:.0f} s, {a.viewers} viewers: a watched site makes {mid:.4f} of the steps by processor time (quartiles {low:.4f}, {high:.4f}), {statistics.median(by_clock):.4f} by the clock")
    if a.limit and mid < a.limit: sys.exit(f"FAIL: below {a.limit}")
finally:
    for c in children: c.send_signal(signal.SIGCONT), c.send_signal(signal.SIGTERM)
    for c in children: c.wait(60)
    shutil.rmtree(folder, ignore_errors=True)
