#!/usr/bin/env python3
"""relay_paths.py NEBULA: two sites train through a relay host; a direct path is found and lost ten times. Each change is an event `path` in the
site's database and on the live page, the link stays up, and no record lacks an update of either site."""
import http.client, json, os, re, selectors, shutil, socket, sqlite3, subprocess, sys, tempfile, threading, time

TURNS = int(os.environ.get("NEB_PATHS", "10"))
nebula = os.path.abspath(sys.argv[1])
folder = tempfile.mkdtemp(prefix="nebula-paths-")
children = []
JOB = """task: causal
tokenizer: {type: bpe, vocab: 300, lines: 300}
model: {family: gpt2, hidden: 32, layers: 1, heads: 2}
train: {steps: 10000000, minutes: 60, tokens: 128, max_len: 64, lr: 2e-3, log_every: 100000, threads: 1, save_every: 100000}
wan: {interval: 10, fragments: 1, tokens: 1000000000, round_seconds: 120}
sites:
  - {name: a}
  - {name: b, listen: "127.0.0.1:%d"}
data:
  - {file: text}
"""


def fail(words):
    for name in ("a.log", "b.log", "relay.log"):
        if os.path.exists(f"{folder}/{name}"): print(f"== {name}\n" + "".join(open(f"{folder}/{name}").readlines()[-15:]), file=sys.stderr)
    raise SystemExit("FAIL: " + words)


def until(what, words, seconds=600):
    end = time.time() + seconds
    while time.time() < end:
        if what(): return
        for p in children:
            if p.poll() not in (None, 0): fail(f"{words}: {p.args[1:3]} ended with {p.returncode}")
        time.sleep(0.1)
    fail(words)


def start(log, *words, **more):
    p = subprocess.Popen([nebula, *words], cwd=folder, stderr=open(f"{folder}/{log}", "w"), text=True, **more)
    children.append(p)
    return p


def run(*words):
    return subprocess.run([nebula, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


class Gate(threading.Thread):
    """The address at which b can be dialled. Open, it passes bytes on. Shut, it takes connections and bytes and passes on nothing, like a
    firewall that has changed its mind; connections from before stay dumb for ever."""

    def __init__(self, to):
        super().__init__(daemon=True)
        self.listener, self.to, self.open, self.found = socket.create_server(("127.0.0.1", 0)), to, False, 0
        self.port = self.listener.getsockname()[1]
        self.choose, self.other = selectors.DefaultSelector(), {}
        self.choose.register(self.listener, selectors.EVENT_READ)

    def shut(self):
        self.open = False
        self.other = {s: None for s in self.other}

    def take(self):
        near = self.listener.accept()[0]
        far = socket.create_connection(("127.0.0.1", self.to)) if self.open else None
        self.found += far is not None
        for s, o in ((near, far), (far, near if far else None)):
            if not s: continue
            self.other[s] = o
            self.choose.register(s, selectors.EVENT_READ)

    def end(self, s):
        for x in (s, self.other.pop(s, None)):
            if not x: continue
            self.other.pop(x, None)
            self.choose.unregister(x)
            x.close()

    def run(self):
        while True:
            for key, _ in self.choose.select():
                s = key.fileobj
                if s is self.listener:
                    self.take()
                    continue
                if s not in self.other: continue
                try:
                    got, o = s.recv(1 << 16), self.other[s]
                    if got and o: o.sendall(got)
                    if not got: self.end(s)
                except OSError:
                    self.end(s)


def events(kind, words=""):
    try:
        with sqlite3.connect(f"file:{folder}/out-a/metrics.sqlite?mode=ro", uri=True) as db:
            return [t for k, t in db.execute("select kind, text from event") if k == kind and words in t]
    except sqlite3.OperationalError:
        return []


def on_the_page(port, kind, words):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    c.request("GET", "/api/v1/log")
    told = [e for e in json.loads(c.getresponse().read())["events"] if e["kind"] == kind and words in e["text"]]
    c.close()
    return len(told)


def make_run(real, gate):
    host = start("relay.log", "relay", "--listen", "127.0.0.1:0", "--folder", "host", stdout=subprocess.PIPE)
    address = host.stdout.readline().strip()
    with open(folder + "/text", "w") as f:
        for i in range(400): f.write(f"the path of line {i} leads past word {i * 7 % 31} to number {i % 13}\n")
    with open(folder + "/job.yaml", "w") as f: f.write(JOB % real)
    for s, addresses in (("a", [address]), ("b", [address, f"127.0.0.1:{gate.port}"])):
        run("site", "init", s)
        run("roster", "add", "draft", s, *addresses)
    run("roster", "seal", "draft", "roster", "--operator", "a")
    for s in "ab": run("roster", "join", "roster", s)


def main():
    with socket.create_server(("127.0.0.1", 0)) as s: real = s.getsockname()[1]
    gate = Gate(real)
    gate.start()
    make_run(real, gate)
    sites = [start(s + ".log", "train", "job.yaml", "--site", s, "out=out-" + s, stdout=subprocess.DEVNULL) for s in "ab"]
    until(lambda: events("link up", "b is connected through a relay host"), "no link through the relay host")
    page = start("watch.log", "watch", "out-a", "--port", "0", stdout=subprocess.PIPE)
    port = int(re.search(r":(\d+)/$", page.stdout.readline().strip()).group(1))
    for turn in range(1, TURNS + 1):
        gate.open = True
        until(lambda: len(events("path", "b is reached directly")) == turn, f"turn {turn}: no event says that the path is direct")
        gate.shut()
        until(lambda: len(events("path", "b is reached through a relay host")) == turn, f"turn {turn}: no event says that the relay host has the line again")
    until(lambda: on_the_page(port, "path", "b is reached directly") == TURNS and on_the_page(port, "path", "through a relay host") == TURNS, "the page lacks changes of path")
    for kind in ("missed", "link down"):
        if events(kind): fail(f"{kind}: {events(kind)}")
    run("order", "a", "end", "--operator", "a", "--wait", "300")
    for p in sites:
        if p.wait(600): fail("a site failed")
    if gate.found < TURNS: fail(f"the direct path was taken {gate.found} times")
    audit = run("audit", "a")
    rounds = int(re.search(r", (\d+) rounds", audit).group(1))
    updates = [int(n) for n in re.findall(r"^  [ab] +(\d+) updates", audit, re.M)]
    late = len(events("missed"))  # behind the end, where a site that has nothing left sends nothing
    if len(updates) != 2 or sum(rounds - n for n in updates) > late: fail(f"a record lacks an update:\n{audit}")
    print(f"relay_paths: ok, {TURNS} times there and back, {rounds} rounds, each with both updates" + (f" but {late} of the end" if late else ""))


try:
    main()
finally:
    for p in children:
        if p.poll() is None: p.kill()
    shutil.rmtree(folder, ignore_errors=True)
