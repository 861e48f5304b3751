"""One site of a run in the laboratory: a small GPT (examples/torch_gpt.py) learns the bytes of text files.

It is slowed down to the pace of a model with longer steps, and it makes checkpoints. Without NEBULA_WAN_SITE it trains alone,
as the reference at equal tokens. At the end it prints one line of JSON.

INIT    a model folder of `nebula-i train` to begin with: its parameters and its tokenizer (without the package sentencepiece,
        bytes are the tokens)
CRASH   kills the process at this step, as `kill -9` would
SEED    of the model and of the order of the text
DEVICE  where the model lies
DTYPE   bf16: the parameters are bf16; rounded: they are fp32 and begin with bf16's values
"""

import json
import os
import pathlib
import signal
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE.parents[1] / "examples")]

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch_gpt import GPT

CONTEXT = 64
BATCH, STEPS = int(os.environ.get("BATCH", 16)), int(os.environ.get("STEPS", 300))
PACE, CRASH = float(os.environ.get("PACE", 0)), int(os.environ.get("CRASH", 0))
SEED = int(os.environ.get("SEED", 1))
DEVICE, DTYPE = os.environ.get("DEVICE", "cpu"), os.environ.get("DTYPE")
SITE, INIT = os.environ.get("NEBULA_WAN_SITE"), os.environ.get("INIT")


def tokens(text):
    try:
        import sentencepiece
    except ImportError:
        sentencepiece = None
    if INIT and sentencepiece:
        model = sentencepiece.SentencePieceProcessor(model_file=f"{INIT}/tokenizer.model")
        return torch.tensor(model.encode(text.decode(errors="replace")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def windows(files):
    ids = tokens(b"".join(pathlib.Path(f).read_bytes() for f in files))
    ids = ids[: len(ids) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    held_out = torch.arange(len(ids)) % 20 == 0
    return ids[~held_out], ids[held_out][:400]


def loss_of(model, ids):
    ids = ids.to(DEVICE)
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())


def make():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    if INIT:
        from safetensors.torch import load_file

        first = load_file(f"{INIT}/model.safetensors")
        model = GPT(len(first["embed.token.weight"]), hidden=64, layers=2, heads=2, positions=CONTEXT)
        model.load_state_dict(first)
    else:
        model = GPT(hidden=64, layers=2, heads=2, positions=CONTEXT)
    model.to(DEVICE, torch.bfloat16 if DTYPE else None)
    if DTYPE == "rounded":
        model.float()
    return model, torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, betas=(0.9, 0.98))


def one_step(model, optimizer, ids, step):
    began = time.monotonic()
    for group in optimizer.param_groups:
        group["lr"] = 2e-3 * min(1, (step + 1) / 50) * max(0.05, 1 - step / STEPS)
    loss = loss_of(model, ids)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    time.sleep(max(0, PACE - (time.monotonic() - began)))


def alone(train, held_out):
    model, optimizer = make()
    order = torch.Generator().manual_seed(6 + SEED)
    for step in range(STEPS):
        one_step(model, optimizer, train[torch.randint(len(train), (BATCH,), generator=order)], step)
    with torch.no_grad():
        print(json.dumps({"steps": STEPS, "loss": loss_of(model, held_out).item()}))


def as_site(train, held_out):
    import nebula_i

    model, optimizer = make()
    kept = pathlib.Path(f"checkpoint-{SITE}.pt")
    state = torch.load(kept, weights_only=True) if kept.exists() else None
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    loader = DataLoader(train, BATCH, shuffle=True, drop_last=True)
    with nebula_i.Run("job.yaml", SITE) as run:
        loader = run.attach(model, optimizer, dataloader=loader, state=state and state["run"])
        for ids in loader:
            one_step(model, optimizer, ids, run.steps)
            run.step(ids[:, 1:].numel())
            if run.steps == CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            if CRASH and run.steps % 50 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "run": run.state_dict()}, kept)
        now = run.status()
    torch.save({n: t.cpu() for n, t in model.state_dict().items()}, f"model-{SITE}.pt")
    with torch.no_grad():
        print(json.dumps({"site": SITE, "steps": run.steps, "loss": loss_of(model, held_out).item(),
                          "resumed": bool(state), **{k: now[k] for k in
                          ("root", "committed", "merges", "record", "ended", "sent", "wait_s")}}), flush=True)


if __name__ == "__main__":
    (as_site if SITE else alone)(*windows(sys.argv[1:]))
