"""`nebula-i train` as one site. Its steps come from the metrics that it writes, in the form that the other arms leave."""
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import time

SITE, RUN = os.environ["NEBULA_WAN_SITE"], pathlib.Path(os.environ["PEERS_RUN"])
OUT = RUN / f"{SITE}-out"


def steps():
    """(time, loss) of every step so far."""
    try:
        db = sqlite3.connect(f"file:{OUT}/metrics.sqlite?mode=ro", uri=True, timeout=5)
        rows = db.execute("SELECT time, value FROM value JOIN metric ON metric.id = metric WHERE name = 'loss' "
                          "ORDER BY time").fetchall()
        db.close()
        return rows
    except sqlite3.OperationalError as e:  # not there yet
        if not re.search("unable to open|no such table|locked", str(e)):
            raise
        return []


def begin(rows):
    (RUN / f"start-{SITE}").touch()
    mine = RUN / f"began-{SITE}-{os.getpid()}"
    mine.write_text(repr(rows[0][0]))
    try:
        os.link(mine, RUN / "began")
    except FileExistsError:
        pass


def write(rows):
    began = float((RUN / "began").read_text())
    text = "".join(f"{at - began:.3f},{loss:.4f}\n" for at, loss in rows)
    (RUN / f"steps-{SITE}.new").write_text(text)
    os.replace(RUN / f"steps-{SITE}.new", RUN / f"steps-{SITE}.csv")


p = subprocess.Popen([os.environ["PEERS_NEBULA"], "train", "native.yaml", "--site", SITE, f"out={OUT}"])
signal.signal(signal.SIGTERM, lambda *_: p.terminate())
while p.poll() is None and not (RUN / "began").exists() and not steps():
    time.sleep(0.3)
while p.poll() is None:
    rows = steps()
    if rows and not (RUN / f"start-{SITE}").exists():
        begin(rows)
    time.sleep(1)
rows = steps()
if rows:
    if not (RUN / f"start-{SITE}").exists():
        begin(rows)
    write(rows)
sys.exit(p.returncode)
