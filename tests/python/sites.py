"""Folders, roster and job of a few sites, made with the nebula-i command, for the tests of the Python package."""

import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parents[2]
NEBULA = os.path.abspath(os.environ.get("NEBULA", str(TOP / "build" / "release" / "nebula-i")))
sys.path.insert(0, str(TOP / "python"))

WAN = {"interval": 5, "fragments": 1, "rung": "int8", "round_seconds": 3, "outer_lr": 1, "outer_momentum": 0}


def nebula(*words, folder):
    """Runs a command. Its output is shown only if it fails."""
    p = subprocess.run([NEBULA, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if p.returncode:
        raise RuntimeError(f"nebula-i {' '.join(words)}: {p.stdout}")


def free_port():
    """A free port below those that the system gives to outgoing connections, which could take it first."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


def make_sites(folder, names=("a", "b"), addresses=None):
    """Makes keys and one sealed roster, and lets every site join it."""
    for i, name in enumerate(names):
        nebula("site", "init", name, folder=folder)
        address = addresses[i] if addresses else f"127.0.0.1:{free_port()}"
        nebula("roster", "add", "draft", name, address, folder=folder)
    nebula("roster", "seal", "draft", "roster", "--operator", names[0], folder=folder)
    for name in names:
        nebula("roster", "join", "roster", name, folder=folder)


def write_job(folder, names=("a", "b"), file="job.yaml", more="", **wan):
    wan = {**WAN, **wan}
    text = "wan: {" + ", ".join(f"{k}: {v}" for k, v in wan.items()) + "}\nsites:\n"
    text += "".join(f'  - {{name: {n}, folder: "{folder}/{n}"}}\n' for n in names) + more
    path = pathlib.Path(folder) / file
    path.write_text(text)
    return str(path)


class Folder(tempfile.TemporaryDirectory):
    """A temporary folder with two sites in it."""

    def __enter__(self):
        folder = super().__enter__()
        make_sites(folder)
        return folder
