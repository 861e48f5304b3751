"""site.py SPEC.json: one site of an arm, inside the laboratory: its helpers (a master, a lighthouse) and its trainer.

A planned kill is SIGKILL of everything that the site runs, and a start of the same commands some seconds later. A trainer that dies
by itself while the time runs is started again, as a supervisor would do. Events go to RUN/events-SITE.json.

Some peers tell the others the name of their host. The laboratory knows the sites by their names, so a site's host has its name.
"""
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

SITE, RUN = os.environ["NEBULA_WAN_SITE"], pathlib.Path(os.environ["PEERS_RUN"])
SECONDS = float(os.environ["PEERS_SECONDS"])
GRACE = 30  # seconds that an arm may take to end


class Site:
    def __init__(self, spec):
        self.spec, self.log = spec, open(RUN / f"log-{SITE}", "ab")
        self.helpers, self.trainer, self.events = [], None, []

    def launch(self, words):
        return subprocess.Popen(words, stdout=self.log, stderr=self.log, start_new_session=True)

    def start(self):
        self.helpers = [self.launch(w) for w in self.spec["helpers"]]
        if self.helpers:
            time.sleep(1)
        self.trainer = self.launch(self.spec["trainer"])

    def stop(self, how):
        for p in [self.trainer, *self.helpers]:
            try:
                os.killpg(p.pid, how)
            except ProcessLookupError:
                pass
            for child in descendants(p.pid):
                try:
                    os.kill(child, how)
                except ProcessLookupError:
                    pass
        deadline = time.time() + 5
        for p in [self.trainer, *self.helpers]:
            try:
                p.wait(max(0.1, deadline - time.time()))
            except subprocess.TimeoutExpired:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()

    def note(self, what):
        self.events.append([seconds(), what])

    def restart_if_dead(self):
        """True: the trainer has ended for good."""
        if self.trainer.poll() is None:
            return False
        if self.trainer.returncode and 0 < seconds() < SECONDS and len(self.events) < 40:
            self.note(f"died {self.trainer.returncode}")
            time.sleep(1)
            self.trainer = self.launch(self.spec["trainer"])
            self.note("started")
            return False
        return True


def seconds():
    """Since the training began; 0: it has not yet."""
    try:
        return time.time() - float((RUN / "began").read_text())
    except (OSError, ValueError):
        return 0.0


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
        except OSError:
            pass
    return found


def name_host():
    """In a UTS namespace of this process and its children."""
    new_uts = 0x04000000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(new_uts):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(SITE)


def main():
    name_host()
    site = Site(json.loads(pathlib.Path(sys.argv[1]).read_text())[SITE])
    kill_at, away = site.spec["kill"] or (None, 0)
    begun = time.time()
    site.start()
    while True:
        time.sleep(0.1)
        if kill_at is not None and seconds() >= kill_at:
            kill_at = None
            victims = descendants(os.getpid())
            for pid in victims:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            site.stop(signal.SIGKILL)
            site.note("killed")
            time.sleep(away)
            site.start()
            site.note("started")
        if site.restart_if_dead():
            break
        if seconds() > SECONDS + GRACE or (not seconds() and time.time() - begun > 120):
            site.note("did not end" if seconds() else "did not begin")
            break
    status = site.trainer.poll()
    site.stop(signal.SIGTERM)
    (RUN / f"events-{SITE}.json").write_text(json.dumps({"status": status, "events": site.events}))
    sys.exit(0 if status == 0 else 1)


if __name__ == "__main__":
    main()
