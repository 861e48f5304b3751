"""A small GPT learns the bytes of text files: torch_one_site.py alone, torch_two_sites.py as one of two sites.

    BATCH=32 STEPS=600 python torch_one_site.py FILE...
    SITE=a python torch_two_sites.py FILE...              beside a job.yaml; at the other site SITE=b
"""

import os
import pathlib
import sys

import nebula_i
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler
from torch_gpt import GPT

CONTEXT, BATCH, STEPS = 64, int(os.environ.get("BATCH", 16)), int(os.environ.get("STEPS", 600))


def windows(files):
    """Windows of CONTEXT + 1 bytes: to train on, and one in twenty held out."""
    text = b"".join(pathlib.Path(f).read_bytes() for f in files)
    ids = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    ids = ids[: len(ids) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    held_out = torch.arange(len(ids)) % 20 == 0
    return ids[~held_out], ids[held_out][:256]


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def main(run):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train, held_out = windows(sys.argv[1:])
    model = GPT(hidden=64, layers=2, heads=2, positions=CONTEXT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, betas=(0.9, 0.98))
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 50))
    loader = DataLoader(train, BATCH, sampler=RandomSampler(train, num_samples=STEPS * BATCH))
    loader = run.attach(model, optimizer, dataloader=loader)
    for ids in loader:
        loss = loss_of(model, ids)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        run.step(tokens=BATCH * CONTEXT)
    with torch.no_grad():
        print(f"held-out loss {loss_of(model, held_out).item():.4f}", flush=True)
    torch.save(model.state_dict(), os.environ.get("MODEL", "model.pt"))


if __name__ == "__main__":
    with nebula_i.Run("job.yaml", site=os.environ["SITE"]) as run:
        main(run)
