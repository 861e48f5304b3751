"""PyTorch's DistributedDataParallel over gloo; with PEERS_HOOK=powersgd its strongest compression.

A rank that dies takes the other with it, so both keep checkpoints and start again from them, as torchrun would make them."""
from shared import *

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

SAVE_EVERY = 5
powersgd = os.environ.get("PEERS_HOOK") == "powersgd"
dist.init_process_group("gloo", init_method="tcp://a:29500", rank=INDEX, world_size=2)
model, optimizer = make()
if CAME_BACK and CHECKPOINT.exists():
    kept = torch.load(CHECKPOINT, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
if powersgd:  # with several buckets gloo meets their all-reduces in different orders at the two sites, and hangs
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024 if powersgd else 25)
if powersgd:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
    wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
clock = Clock(model, optimizer)
for step, ids in enumerate(batches(), 1):
    loss = backward(model, optimizer, ids, wrapped)
    optimizer.step()
    if os.environ.get("PEERS_KILL") and step % SAVE_EVERY == 0:
        save(model=model.state_dict(), optimizer=optimizer.state_dict())
    # Both must make the same number of steps; the first site's clock decides.
    over = torch.tensor([float(clock.tick(loss))])
    dist.broadcast(over, 0)
    if over:
        break
clock.finish()
