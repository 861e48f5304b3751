"""shared.py: what every arm of vs_peers.py has in common: the model, the text, the clock. Settings come by the environment.

    PEERS_RUN      folder of this run               PEERS_TOKENS   folder with train.npy and held.npy
    PEERS_SECONDS  of training                      PEERS_SHAPE    hidden,layers,heads of the model
    PEERS_BATCH    sequences a step and site        PEERS_LR       largest learning rate
    PEERS_INTERVAL steps between two exchanges, for arms that have them

The learning rate follows the time, not the steps, so that an arm which makes few steps sees the whole schedule: a linear warm-up
for a twentieth of the time, then a cosine down to a tenth. A step leaves a line in RUN/steps-SITE.csv: seconds since the first
site began, loss. At the end the parameters go to RUN/end-SITE.pt.
"""

import math
import os
import pathlib
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
from torch_gpt import GPT  # noqa: E402

VOCAB, CONTEXT, BOS = 4096, 128, 2
RUN = pathlib.Path(os.environ["PEERS_RUN"])
SECONDS = float(os.environ["PEERS_SECONDS"])
BATCH = int(os.environ["PEERS_BATCH"])
LR = float(os.environ["PEERS_LR"])
INTERVAL = int(os.environ["PEERS_INTERVAL"])
SITE = os.environ.get("NEBULA_WAN_SITE", "a")
INDEX = int(os.environ.get("NEBULA_WAN_INDEX", 0))
TOKENS = BATCH * CONTEXT  # of a step of a site
OUTER = dict(lr=0.7, momentum=0.6, nesterov=True)  # the outer step of every arm that has one
CAME_BACK = (RUN / f"start-{SITE}").exists()  # this process stands for one that was killed
CHECKPOINT = RUN / f"checkpoint-{SITE}.pt"


def make():
    """The model, the same at every site, and its optimizer."""
    hidden, layers, heads = map(int, os.environ["PEERS_SHAPE"].split(","))
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("PEERS_SEED", 1)))
    model = GPT(VOCAB, hidden, layers, heads, CONTEXT)
    return model, torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.99), weight_decay=0.01, fused=True)


def windows(part):
    """(n, CONTEXT + 1) ids: <s>, then CONTEXT tokens of the text."""
    ids = np.load(pathlib.Path(os.environ["PEERS_TOKENS"]) / f"{part}.npy").astype(np.int64)
    ids = torch.from_numpy(ids[: len(ids) // CONTEXT * CONTEXT]).view(-1, CONTEXT)
    return torch.cat([torch.full((len(ids), 1), BOS), ids], 1)


def batches(seed=0):
    """This site's half of the windows, again and again, in a random order."""
    rows, rng = windows("train")[INDEX::2], np.random.default_rng(1000 * seed + INDEX + 10 * int(os.environ.get("PEERS_SEED", 1)))
    while True:
        order = rng.permutation(len(rows))
        for i in range(0, len(order) - BATCH, BATCH):
            yield rows[order[i:i + BATCH]]


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def backward(model, optimizer, ids, wrapped=None):
    """Forward, backward and clipping; the caller makes the optimizer's step."""
    loss = loss_of(wrapped or model, ids)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


def save(**what):
    """A checkpoint, whole or not at all."""
    torch.save(what, f"{CHECKPOINT}.new")
    os.replace(f"{CHECKPOINT}.new", CHECKPOINT)


def begin(now):
    """The moment at which the first site began; the first to come here decides."""
    mine = RUN / f"began-{SITE}-{os.getpid()}"
    mine.write_text(repr(now))
    try:
        os.link(mine, RUN / "began")
    except FileExistsError:
        pass
    return float((RUN / "began").read_text())


class Clock:
    """Begins with the first step. tick() behind every step is True once the time is over."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        (RUN / f"start-{SITE}").touch()
        self.began = begin(time.time())
        self.file = open(RUN / f"steps-{SITE}.csv", "a", buffering=1)
        self.set_rate()

    def seconds(self):
        return time.time() - self.began

    def set_rate(self):
        part = min(1.0, self.seconds() / SECONDS)
        warm = min(1.0, part / 0.05)
        rate = LR * (warm if warm < 1 else 0.1 + 0.9 * (1 + math.cos(math.pi * (part - 0.05) / 0.95)) / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def tick(self, loss):
        self.file.write(f"{self.seconds():.3f},{loss.item():.4f}\n")
        self.set_rate()
        return self.seconds() >= SECONDS

    def finish(self):
        torch.save({k: v.detach().clone() for k, v in self.model.state_dict().items()}, RUN / f"end-{SITE}.pt")
