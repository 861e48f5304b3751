"""Flower: the SuperLink and a SuperNode at site a, a SuperNode at site b, FedAvg over PEERS_INTERVAL local steps (flower_app)."""
import os
import pathlib
import subprocess
import sys
import time

SITE, RUN, SECONDS = os.environ["NEBULA_WAN_SITE"], pathlib.Path(os.environ["PEERS_RUN"]), float(os.environ["PEERS_SECONDS"])
HERE, BIN = pathlib.Path(__file__).resolve().parent, pathlib.Path(sys.executable).parent
home = RUN / f"flower-{SITE}"
home.mkdir(exist_ok=True)
(home / "config.toml").write_text('[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "a:8000"\ninsecure = true\n')
env = {**os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "PATH": f"{BIN}:{os.environ['PATH']}"}
processes = []


def start(*words):
    processes.append(subprocess.Popen([str(BIN / words[0]), *words[1:]], env=env))


if SITE == "a":
    start("flower-superlink", "--insecure", "--host", "0.0.0.0", "--port", "8000", "--disable-runtime-dependency-installation")
    time.sleep(4)
start("flower-supernode", "--insecure", "--superlink", "a:8000", "--node-config", f"partition-id={int(SITE == 'b')}")
if SITE == "a":
    time.sleep(3)
    subprocess.run([str(BIN / "flwr"), "run", str(HERE / "flower_app"), "lab"], env=env, check=True)
while not (RUN / "began").exists() or time.time() - float((RUN / "began").read_text()) < SECONDS:
    time.sleep(0.2)
for p in processes:
    p.kill()
