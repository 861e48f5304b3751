#!/usr/bin/env python3
"""lab.py NEBULA [--limit S]: a real run of three sites in the WAN laboratory, a real kill and a real cut: how soon the page shows them.

`nebula-i lab` trains; its schedule cuts the line between two sites, and this script kills the process of the third one with
SIGKILL. Times are of this machine's clock: from the kill to the first event that says `gone`; from the last heartbeat that was
answered, which comes before the cut, to the first event that says that the line is silent or down. So the second time is longer
than the truth by up to a second. With --limit S a time beyond S seconds is a failure."""
import json, os, re, shutil, signal, subprocess, sys, tempfile, threading, time, urllib.request

here = os.path.dirname(os.path.abspath(__file__))
nebula = os.path.abspath(sys.argv[1])
limit = float(sys.argv[sys.argv.index("--limit") + 1]) if "--limit" in sys.argv else None
CUT_AT, CUT_FOR = 40, 20


def fail(words):
    raise SystemExit("FAIL: " + words)


def merge(into, change):
    """As the page does it: objects by key, arrays by place."""
    for k, v in change.items():
        at = int(k) if isinstance(into, list) else k
        old = into[at] if isinstance(into, list) else into.get(at)
        if isinstance(v, dict) and isinstance(old, (dict, list)): merge(old, v)
        else: into[at] = v


class Viewer(threading.Thread):
    """Takes the events as a browser does, and remembers when each site and line changed."""

    def __init__(self, port, folder):
        super().__init__(daemon=True)
        self.port, self.folder, self.status, self.seen = port, folder, None, []
        self.since_answer = None  # seconds from the last answer of a cut line to the event that shows it

    def run(self):
        kind = None
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/events", timeout=600) as r:
            for raw in r:
                text = raw.decode().rstrip("\n")
                if text.startswith("event: "): kind = text[7:]
                if not text.startswith("data: "): continue
                data = json.loads(text[6:])
                if kind == "status": self.status = data
                else: merge(self.status, data)
                now = time.time()
                health = {s["name"]: s["health"] for s in self.status["sites"]}
                lines = {(l["from"], l["to"]): "down" if not l["up"] else "silent" if l["silent_s"] > 2 else "up" for l in self.status["lines"]}
                quiet = [l for l in self.status["lines"] if {l["from"], l["to"]} == {"a", "b"} and l["up"] and l["silent_s"] > 2]
                if quiet and self.since_answer is None:
                    l = quiet[0]
                    self.since_answer = now - os.stat(f"{self.folder}/{l['from']}/status.json").st_mtime + l["silent_s"]
                self.seen.append((now, health, lines, self.status["run"]["record"]))

    def first(self, since, what, seconds):
        """The first event after `since` for which what(health, lines, record) holds; seconds after `since`, or None."""
        end = time.time() + seconds
        at = 0
        while True:
            while at < len(self.seen):
                t, *state = self.seen[at]
                if t >= since and what(*state): return t - since
                at += 1
            if time.time() > end: return None
            time.sleep(0.02)


def trainer_of(site, lab):
    """The process that trains as the site, below the laboratory's; it is the one that holds the lock of the site's folder."""
    below, found = {lab}, []
    parents = {}
    for p in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try: parents[p] = int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1])
        except OSError: pass
    while more := {p for p, q in parents.items() if q in below} - below: below |= more
    for p in below - {lab}:
        try: words = open(f"/proc/{p}/cmdline").read().split("\0")
        except OSError: continue
        if "train" in words and site in words: found.append(p)
    return found


def main():
    folder = tempfile.mkdtemp(prefix="nebula-watch-lab-")
    lab = watch = None
    try:
        shutil.copy(os.path.join(here, "../../docs/watch.md"), folder + "/text")
        with open(folder + "/job.yaml", "w") as f:
            f.write("name: cut and killed\ntask: causal\ntokenizer: {type: bpe, vocab: 300, lines: 1000}\nmodel: {family: gpt2, hidden: 32, layers: 1, heads: 2}\n"
                    "train: {steps: 100000000, tokens: 64, max_len: 32, lr: 1e-3, log_every: 100000, save_every: 100000, threads: 1}\n"
                    "wan: {interval: 20, fragments: 1, rung: int8, tokens: 1000000000, round_seconds: 1}\ndata: [{file: text}]\nsites: [{name: a}, {name: b}, {name: c}]\n")
        began = time.time()
        lab = subprocess.Popen([nebula, "lab", "job.yaml", "out=" + folder + "/out", "--wan", "20mbit,40ms", "--schedule", f"{CUT_AT}s+{CUT_FOR}s a>b down; {CUT_AT}s+{CUT_FOR}s b>a down"],
                               cwd=folder, stdout=open(folder + "/lab.log", "w"), stderr=subprocess.STDOUT, start_new_session=True)
        while not os.path.isdir(folder + "/out"):
            if lab.poll() is not None: fail("the laboratory has ended: " + open(folder + "/lab.log").read()[-500:])
            time.sleep(0.1)
        watch = subprocess.Popen([nebula, "watch", folder + "/out", "--port", "0"], stdout=subprocess.PIPE, text=True)
        port = int(re.search(r":(\d+)/", watch.stdout.readline()).group(1))
        viewer = Viewer(port, folder + "/out")
        viewer.start()
        if viewer.first(0, lambda h, l, r: len(h) == 3 and all(x in ("good", "waiting") for x in h.values()) and r >= 1, 240) is None: fail("the three sites never trained together: " + open(folder + "/lab.log").read()[-500:])
        ready = time.time() - began
        trouble = lambda h, l, r: l.get(("a", "b")) in ("down", "silent") or l.get(("b", "a")) in ("down", "silent")
        if ready > CUT_AT - 2:
            print(f"watch_lab: the sites were ready after {ready:.0f} s, too late for the cut at {CUT_AT} s; skipped")
            return
        cut = viewer.first(time.time(), trouble, CUT_AT + 60)
        if cut is None: fail("the cut is not shown")
        cut = viewer.since_answer
        if viewer.first(time.time(), lambda h, l, r: not trouble(h, l, r), 60) is None: fail("the mended line is not shown")
        victim = trainer_of("c", lab.pid)
        if len(victim) != 1: fail(f"site c has the processes {victim}")
        os.kill(victim[0], signal.SIGKILL)
        kill = viewer.first(time.time(), lambda h, l, r: h.get("c") == "gone", 60)
        if kill is None: fail("the killed site is not shown")
        log = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/log"))["events"]
        kinds = {(e["site"], e["kind"]) for e in log}
        if not {("a", "late"), ("a", "link down")} & kinds or not any(k == "leader" for _, k in kinds): fail(f"the timeline has {sorted(kinds)}")
        print(f"watch_lab: a cut line was shown after {cut:.1f} s, a killed site after {kill:.1f} s")
        if limit and max(cut, kill) > limit: fail(f"more than {limit} s")
    finally:
        if watch: watch.terminate(), watch.wait(20)
        if lab:
            lab.send_signal(signal.SIGTERM)
            try: lab.wait(30)
            except subprocess.TimeoutExpired: os.killpg(lab.pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


main()
