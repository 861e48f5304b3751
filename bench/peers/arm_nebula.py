"""Nebula-I through its Python package. A site that was killed comes back without a checkpoint, where the run stands."""
from shared import *

import subprocess

import nebula_i

with nebula_i.Run("job.yaml", site=SITE) as run:
    model, optimizer = make()
    run.attach(model, optimizer)
    clock = Clock(model, optimizer)
    for ids in batches():
        loss = backward(model, optimizer, ids)
        optimizer.step()
        run.step(tokens=TOKENS)
        if clock.tick(loss):
            break
    # Every arm has the same time, so the run is told to end, and nobody trains beyond it. A user's ends by itself at wan.tokens.
    if SITE == "a":
        order = subprocess.Popen([os.environ["PEERS_NEBULA"], "order", "a", "end", "--operator", "a"])
    run.wait_for_end()
    clock.finish()
