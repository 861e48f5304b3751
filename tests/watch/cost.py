#!/usr/bin/env python3
"""cost.py NEBULA [--sites 64] [--viewers 50] [--seconds 60]: what `nebula-i watch` costs: share of a core and memory, with so many
sites in one folder and so many viewers that take every event. fake_run.py writes what the sites would write."""
import argparse, os, re, selectors, shutil, signal, socket, subprocess, sys, tempfile, time

here = os.path.dirname(os.path.abspath(__file__))
p = argparse.ArgumentParser()
p.add_argument("nebula")
p.add_argument("--sites", type=int, default=64)
p.add_argument("--viewers", type=int, default=50)
p.add_argument("--seconds", type=float, default=60)
p.add_argument("--limit", action="store_true", help="fail above 5 %% of a core or 64 MB")
a = p.parse_args()


def used(pid):
    """Processor seconds, and the most memory in MB."""
    f = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    memory = int(re.search(r"VmHWM:\s*(\d+)", open(f"/proc/{pid}/status").read()).group(1))
    return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK"), memory / 1024


out = tempfile.mkdtemp(prefix="nebula-watch-cost-")
children = []
try:
    fake = subprocess.Popen([sys.executable, here + "/fake_run.py", out, "--sites", str(a.sites)], stdout=subprocess.PIPE, text=True)
    children.append(fake)
    fake.stdout.readline()
    watch = subprocess.Popen([a.nebula, "watch", out, "--port", "0"], stdout=subprocess.PIPE, text=True)
    children.append(watch)
    port = int(re.search(r":(\d+)/", watch.stdout.readline()).group(1))
    time.sleep(3)
    choose, got, events = selectors.DefaultSelector(), 0, 0
    for _ in range(a.viewers):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        s.setblocking(False)
        choose.register(s, selectors.EVENT_READ)
    since, (before, _) = time.time(), used(watch.pid)
    while time.time() - since < a.seconds:
        for key, _ in choose.select(0.5):
            more = key.fileobj.recv(1 << 16)
            if not more: sys.exit("FAIL: a viewer was dropped")
            got += len(more)
            events += more.count(b"event: ")
    after, memory = used(watch.pid)
    took = time.time() - since
    share = 100 * (after - before) / took
    print(f"watch_cost: {a.sites} sites, {a.viewers} viewers, {took:.0f} s: {share:.2f} % of a core, {memory:.1f} MB at most, {got / took / 1e6:.2f} MB/s, {events / a.viewers / took:.2f} events/s each")
    if a.limit and (share > 5 or memory > 64): sys.exit("FAIL: above 5 % of a core or 64 MB")
finally:
    for c in children: c.send_signal(signal.SIGTERM)
    for c in children: c.wait(20)
    shutil.rmtree(out, ignore_errors=True)
