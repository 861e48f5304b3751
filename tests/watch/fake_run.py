#!/usr/bin/env python3
"""fake_run.py OUT [options]: writes what the sites of a run would write, for tests of the live page and for pictures of it.

One site's OUT (status.json, metrics.sqlite and the lock `alive`) that sees all sites, or, with --lab, an OUT for each. A second
command changes the course of a run that lives: `fake_run.py OUT --order 'kill b'`, 'cut a b', 'mend a b', 'back b', 'end'."""
import argparse, fcntl, hashlib, json, math, os, random, sqlite3, sys, time

TEXTS = ("name job strategy role state session note waiting_for root rung pace reason refused_of scaled_of hardware").split()
FLAGS = "leader paused ended finished halted disk_full member up votes trains leads".split()
NUMBERS = ("waiting_s bytes_left seconds_left dropped step steps_planned own_steps trained_tokens own_tokens run_tokens token_target "
           "loss tokens_per_second record committed root_record merges rejected view epoch interval window ceiling update_bytes updates "
           "stored sent sent_control sent_updates sent_recovery sent_status received received_control received_updates "
           "received_recovery received_status epsilon_spent epsilon_limit epsilon_delta link_out link_in compute_s merge_s wait_s recover_s encode_s apply_s busy_s share_compute "
           "share_encode share_wait share_recover peers_up peers refused scaled ranks trainable trained_s planned_s nonfinite "
           "disk_free id rtt_ms goodput_bps goodput_in_bps line_loss line_sent line_received silent_s age").split()
CITIES = ("frankfurt tokyo oregon mumbai sydney oslo paris seoul dublin lagos lima quito cairo delhi rome bern kyoto osaka perth "
          "turin ghent porto split varna").split()


class Run:
    def __init__(self, a):
        self.a, self.random = a, random.Random(a.seed)
        n = a.sites
        self.names = [(CITIES[i] if i < len(CITIES) else f"site-{i}") if not a.letters else "abcdefghij"[i] for i in range(n)]
        self.dead, self.cut, self.quiet, self.over = set(), {}, set(), False
        self.step = [0] * n
        self.bytes = [[0] * n for _ in range(n)]
        self.folders = [os.path.join(a.out, s) for s in self.names] if a.lab else [a.out]
        self.locks, self.db, self.began = {}, {}, time.time() - a.past
        self.silent = [[0.0] * n for _ in range(n)]
        self.speed = [1.0 + 0.6 * self.random.random() for _ in range(n)]
        for i, f in enumerate(self.folders):
            os.makedirs(f, exist_ok=True)
            self.locks[i] = open(os.path.join(f, "alive"), "w")
            fcntl.flock(self.locks[i], fcntl.LOCK_SH)
            self.open_db(i, f)

    def open_db(self, i, f):
        db = sqlite3.connect(os.path.join(f, "metrics.sqlite"), isolation_level=None)
        db.executescript("""PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;
            CREATE TABLE run (id INTEGER PRIMARY KEY, started REAL, resumed_at INTEGER);
            CREATE TABLE metric (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
            CREATE TABLE value (metric INTEGER, step INTEGER, run INTEGER, time REAL, value REAL, PRIMARY KEY (metric, step)) WITHOUT ROWID;
            CREATE TABLE note (run INTEGER, key TEXT, text TEXT, PRIMARY KEY (run, key)) WITHOUT ROWID;
            CREATE TABLE event (id INTEGER PRIMARY KEY, run INTEGER, step INTEGER, time REAL, kind TEXT, text TEXT);
            PRAGMA user_version=1; INSERT INTO run VALUES (1, %f, -1);""" % self.began)
        for k, v in (("site", self.names[i]), ("role", "train"), ("job", "continents"), ("task", "causal"), ("strategy", "replica"),
                     ("samples", "after step 4100\n\ntext         The sites share one model, and\nreference    each of them trains on its own text.\n"
                      "continued    each of them trains for itself.\n"), ("job_text", "name: continents\ntask: causal\nmodel.family: gpt2\ntrain.steps: 200000\nwan.interval: 40\n")):
            db.execute("INSERT INTO note VALUES (1, ?, ?)", (k, v))
        self.db[i] = db

    def put(self, i, name, t, v):
        db = self.db.get(i)
        if db is None: return
        db.execute("INSERT OR IGNORE INTO metric (name) VALUES (?)", (name,))
        db.execute("INSERT OR REPLACE INTO value SELECT id, ?, 1, ?, ? FROM metric WHERE name = ?", (self.step[i], t, v, name))

    def event(self, i, kind, text):
        if i in self.db: self.db[i].execute("INSERT INTO event (run, step, time, kind, text) VALUES (1, ?, ?, ?, ?)",
                                            (self.step[i], self.now, kind, text))

    def loss(self, i, step):
        return 2.1 + 5.2 * math.exp(-step / 900) + 1.2 * math.exp(-step / 9000) + 0.05 * i / max(1, self.a.sites) + self.random.gauss(0, 0.03)

    def connected(self, i, k):
        return i not in self.dead and k not in self.dead and (min(i, k), max(i, k)) not in self.cut

    def status_of(self, i, seen_from):
        a, up = self.a, i == seen_from or self.connected(i, seen_from)
        s = {k: "" for k in TEXTS}
        s.update({k: False for k in FLAGS})
        s.update({k: 0 for k in NUMBERS})
        step, t = self.step[i], self.now - self.began
        others = [k for k in range(a.sites) if k != i and not self.connected(i, k)]
        waits = bool(others) and i not in self.dead and not self.over and t > 5 and len(others) > a.sites / 2
        share = 92 - 3 * (i % 4)
        s.update(name=self.names[i], job="continents", strategy="replica", role="train", id=i, member=True, votes=True, trains=True,
                 state="done" if self.over else "waiting" if waits else "training", session="ended" if self.over else "training", up=up,
                 step=step, steps_planned=200000, own_steps=step, trained_tokens=step * 8192, own_tokens=step * 8192, run_tokens=sum(self.step) * 8192,
                 token_target=4 * 10 ** 9, loss=max(0.5, self.loss(i, step)), tokens_per_second=0 if waits else 8192 * 4 * self.speed[i], record=step // 40, committed=step // 40,
                 root=hashlib.sha256(b"%d" % (step // 40)).hexdigest(), root_record=step // 40, view=3, epoch=1, leader=i == 0, leads=i == 0, rung="int4" if i % 3 else "int8",
                 interval=40, pace="int4 every 40 steps", reason="int4 fits the line: 3.1 MB of a budget of 4.4 MB in 9.6 s; the guard sees no harm",
                 update_bytes=3.1e6, updates=step // 40, sent=sum(self.bytes[i]), sent_updates=int(0.96 * sum(self.bytes[i])),
                 sent_control=int(0.02 * sum(self.bytes[i])), sent_status=int(0.02 * sum(self.bytes[i])),
                 received=sum(r[i] for r in self.bytes), link_out=0 if waits else 2.4e6 * (a.sites - 1), link_in=0 if waits else 2.4e6 * (a.sites - 1), compute_s=t * share / 100, merge_s=t * .03,
                 wait_s=t * (97 - share) / 100, recover_s=3, share_compute=share, share_encode=3, share_wait=97 - share, peers=a.sites - 1,
                 peers_up=a.sites - 1 - len(others), hardware="cuda" if i % 2 == 0 else "cpu", ranks=8 if i % 2 == 0 else 1, trainable=124_000_000,
                 trained_s=t, disk_free=3.2e11)
        if a.privacy and i == 0: s.update(epsilon_spent=a.privacy, epsilon_limit=8.0, epsilon_delta=1e-6)
        if waits:
            s.update(waiting_for=", ".join(self.names[k] for k in others[:3]), waiting_s=8.0,
                     note="waiting for " + ", ".join(self.names[k] for k in others[:3]) + " (not connected): a quorum of the sites must be connected")
        if i != seen_from:
            s.update(rtt_ms=20 + 37 * ((i * 7 + seen_from * 3) % 5), goodput_bps=(40 + 35 * ((i + seen_from) % 4)) * 1e6, goodput_in_bps=60e6, line_loss=0.0004,
                     line_sent=self.bytes[seen_from][i], line_received=self.bytes[i][seen_from], silent_s=self.silent[seen_from][i] if up else 0, age=1.0)
        return s

    def advance(self, t, dt):
        self.now = t
        for i in range(self.a.sites):
            if i in self.dead or self.over: continue
            self.step[i] += max(1, int(4 * dt * self.speed[i]))
            for k in range(self.a.sites):
                if k != i and self.connected(i, k): self.bytes[i][k] += int(3.0e5 * dt)
                self.silent[i][k] = 0 if self.connected(i, k) else self.silent[i][k] + dt
            if i in self.db: self.measure(i, t)

    def measure(self, i, t):
        s = self.status_of(i, i)
        self.put(i, "loss", t, self.loss(i, self.step[i]))
        for name, key in (("tokens", "trained_tokens"), ("rate", "tokens_per_second"), ("wan/out", "sent"), ("wan/in", "received"),
                          ("wan/goodput_out", "link_out"), ("wan/goodput_in", "link_in"), ("wan/interval", "interval"), ("wan/records", "record"), ("wan/peers", "peers_up"),
                          ("time/compute", "compute_s"), ("time/encode", "merge_s"), ("time/wait", "wait_s"), ("time/recover", "recover_s")):
            self.put(i, name, t, s[key] * (0.93 + 0.07 * self.random.random() if name in ("rate", "wan/goodput_out") else 1))
        if self.step[i] % 50 < 5: self.put(i, "valid/loss", t, self.loss(i, self.step[i]) + 0.08)

    def write(self):
        for i, f in enumerate(self.folders):
            if i in self.dead: continue
            sites = [self.status_of(k, i) for k in range(self.a.sites)]
            for k in range(self.a.sites):
                if k in self.dead: sites[k]["age"] = round(self.now - self.died.get(k, self.now), 1)
            text = json.dumps({"version": 2, "written": int(time.time()), "job": "continents", "strategy": "replica", "self": self.names[i], "sites": sites})
            with open(f + "/status.json.new", "w") as out: out.write(text)
            os.rename(f + "/status.json.new", f + "/status.json")

    died = {}

    def obey(self, order):
        word, *names = order.split()
        at = [self.names.index(n) for n in names]
        if word == "kill":
            self.dead.add(at[0]); self.died[at[0]] = self.now
            for i in range(self.a.sites):
                if i not in self.dead: self.event(i, "link down", f"site '{names[0]}' is gone; {self.a.sites - 1 - len(self.dead)} of the other sites reached")
            if at[0] in self.locks and self.a.lab: self.locks[at[0]].close(); self.db.pop(at[0]).close()
        if word == "cut":
            self.cut[(min(at), max(at))] = self.now
            for i in at: self.event(i, "link down", "%d of the other sites reached" % (self.a.sites - 2))
        if word == "mend":
            self.cut.pop((min(at), max(at)), None)
            for i in at: self.event(i, "link up", "%d of the other sites reached" % (self.a.sites - 1))
        if word == "back": self.dead.discard(at[0])
        if word == "end": self.over = True


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--sites", type=int, default=4)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--privacy", type=float, default=0, help="epsilon that the first site has spent of 8")
    p.add_argument("--past", type=float, default=900, help="seconds that the run already lives")
    p.add_argument("--points", type=int, default=400, help="measurements in the past")
    p.add_argument("--lab", action="store_true", help="an OUT for every site")
    p.add_argument("--letters", action="store_true", help="sites a, b, …")
    p.add_argument("--seconds", type=float, default=0, help="lives for so long; 0: until it is ended")
    p.add_argument("--order", help="to the run that writes OUT")
    a = p.parse_args()
    if a.order:
        with open(a.out + "/order.new", "w") as f: f.write(a.order)
        os.rename(a.out + "/order.new", a.out + "/order")
        return
    r = Run(a)
    for i in r.db: r.db[i].execute("BEGIN")
    for k in range(a.points):
        r.advance(r.began + (k + 1) * a.past / a.points, a.past / a.points)
        if k == 1:
            for i in r.db: r.event(i, "start", "all sites agree after 2.1 s"); r.event(i, "rung", "int8 at first: the line is not measured yet")
        if k == a.points // 3:
            for i in r.db: r.event(i, "rung", "int4 every 40 steps: fits the line, and the guard sees no harm"); r.event(i, "leader", "view 3: another site leads")
        if k == a.points // 2:
            for i in r.db: r.event(i, "link down", "%d of the other sites reached" % (a.sites - 2))
        if k == a.points // 2 + a.points // 20:
            for i in r.db: r.event(i, "link up", "%d of the other sites reached" % (a.sites - 1))
    for i in r.db: r.db[i].execute("COMMIT")
    r.now = time.time()
    r.write()
    print("ready", flush=True)
    end = time.time() + (a.seconds or 1e9)
    last = time.time()
    while time.time() < end:
        time.sleep(0.1)
        path = a.out + "/order"
        if os.path.exists(path):
            with open(path) as f: r.obey(f.read())
            os.remove(path)
            r.write()
        if time.time() - last >= 1:
            r.advance(time.time(), time.time() - last)
            last = time.time()
            r.write()


main()
