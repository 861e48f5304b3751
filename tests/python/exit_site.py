"""One site that exits in some way without close(): `exit_site.py JOB SITE WAY SECONDS`. SECONDS < 0: before attach().

WAYS has the exit status of each way. A process with many libraries takes its time between OpenSSL's clean-up and its end. So
the C library is told at the very beginning, before OpenSSL is there, to call sleep(exit status) at the very end.
"""

import array
import atexit
import ctypes
import os
import pathlib
import signal
import sys
import threading
import time

WAYS = {"end": 0, "sys.exit": 1, "raise": 1, "os._exit": 4, "sigterm": -signal.SIGTERM, "daemon": 1, "thread": 1, "fork": 1,
        "handler": 1, "atexit": 1}

if __name__ == "__main__":
    c = ctypes.CDLL(None)
    c.on_exit(c.sleep, None)
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

    import nebula_i

    job, site, way, seconds = sys.argv[1:4] + [float(sys.argv[4])]
    run = nebula_i.Run(job, site, wait=0)
    model = {"w": array.array("f", bytes(4 * 20000))}
    if way == "atexit":
        atexit.register(lambda: print(run.status()["own_steps"]))  # the run is still open for the script's own handlers

    def train(until):
        while time.monotonic() < until:
            for i in range(0, 20000, 400):
                model["w"][i] += 0.01 * (1 - model["w"][i])
            run.step(1)

    def leave(*_):
        sys.exit(WAYS["handler"])

    until = time.monotonic() + seconds
    if seconds >= 0:
        if way == "handler":
            signal.signal(signal.SIGALRM, leave)
            signal.setitimer(signal.ITIMER_REAL, seconds + 1e-3)
            until += 60
        run.attach(model)
        if way in ("daemon", "thread"):
            threading.Thread(target=train, args=(until + (60 if way == "daemon" else 0),), daemon=way == "daemon").start()
            time.sleep(max(0, until - time.monotonic()))
        else:
            train(until)
    elif way == "handler":
        leave()
    if way == "raise":
        raise RuntimeError("on purpose")
    if way == "os._exit":
        os._exit(WAYS[way])
    if way == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if way == "fork":
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
    if WAYS[way]:
        sys.exit(WAYS[way])
