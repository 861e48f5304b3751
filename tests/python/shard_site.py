"""One process of a site whose model is sharded by fully_shard(): `shard_site.py SITE RANK PORT DTYPE`; two ranks a site.

Site a shards over two processes; site b does, too, or runs alone (RANK -) without shards: the layouts of sites never meet.
"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import nebula_i

site, rank, port, dtype = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(4)
model = nn.Sequential(nn.Linear(16, 33), nn.ReLU(), nn.Linear(33, 16)).to(getattr(torch, dtype))  # 33: shards of two sizes
if rank != "-":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
whole = lambda p: p.full_tensor() if hasattr(p, "full_tensor") else p
saved = None
with nebula_i.Run("job.yaml", site) as run:
    run.attach(model, optimizer)
    generator = torch.Generator().manual_seed(run.site_index * 2 + (rank == "1"))
    for _ in range(4000):
        x = torch.randn(4, 16, generator=generator).to(getattr(torch, dtype))
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not run.step(len(x)):
            break
        if run.steps == 10:
            saved = run.state_dict()  # collective
now = run.status() if run._handle else {}
values = [whole(p.detach()).double() for p in model.parameters()]
print(json.dumps({"site": site, "rank": rank, "ended": run.ended, "gateway": rank in "0-", "saved": "session" in (saved or {}),
                  "sum": [v.sum().item() for v in values], "loss": loss.item()}), flush=True)
if rank != "-":
    torch.distributed.destroy_process_group()
