"""A small GPT learns the bytes of text/train.txt, as one site of a run. It needs the packages torch and nebula_i.

    nebula-i lab job.yaml -- python3 train.py                                          all sites on this machine
    NEBULA_JOB=job.yaml NEBULA_SITE=a NEBULA_OUT=out-a python3 train.py                one of them

nebula_i.Run() finds the job and the site in those variables. docs/python.md explains every call.
"""

import os
import pathlib

import nebula_i
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, RandomSampler

CONTEXT, BATCH, STEPS = 64, 16, 1000  # the run ends at the job's wan.tokens; STEPS only bounds the loader


class Block(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, 4 * hidden), torch.nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(torch.nn.Module):
    def __init__(self, hidden=64, layers=2, heads=2):
        super().__init__()
        self.token, self.place = torch.nn.Embedding(256, hidden), torch.nn.Embedding(CONTEXT, hidden)
        self.blocks = torch.nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(hidden), torch.nn.Linear(hidden, 256)

    def forward(self, ids):
        x = self.token(ids) + self.place.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def windows(path):
    ids = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8).long()
    return ids[: len(ids) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)


def loss_of(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def main(run):
    torch.manual_seed(1)  # the same initial values at every site
    train, held_out = windows("text/train.txt"), windows("text/valid.txt")[:256]
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    loader = DataLoader(train, BATCH, sampler=RandomSampler(train, replacement=True, num_samples=STEPS * BATCH))
    for ids in run.attach(model, optimizer, dataloader=loader):  # this site's share; stops when the run has ended
        loss = loss_of(model, ids)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        run.step(tokens=ids[:, 1:].numel())
        if run.steps % 50 == 0:
            print(f"step {run.steps}  loss {loss.item():.4f}", flush=True)
    run.wait_for_end()
    with torch.no_grad():
        print(f"held-out loss {loss_of(model, held_out).item():.4f}, state root {run.status()['root'][:16]}", flush=True)
    out = pathlib.Path(os.environ.get("NEBULA_OUT", "out"))
    out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "model.pt")
    print(f"the model is in {out / 'model.pt'}", flush=True)


if __name__ == "__main__":
    with nebula_i.Run() as run:
        main(run)
