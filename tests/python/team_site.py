"""One process of a site: `team_site.py SITE RANK PORT`; two ranks under torch.distributed, or one alone (RANK -).

One half of the parameters has masters. The optimizer trains the masters instead of these parameters.
"""

import collections
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
from torch import nn

import nebula_i

site, rank, port = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(4)
model = nn.Sequential(collections.OrderedDict(module=nn.Linear(32, 32), submodule=nn.Linear(32, 32)))
if rank != "-":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
first, second = (model.module if rank != "-" else model).children()
masters = {f"module.{n}": p.detach().clone() for n, p in first.named_parameters()}
optimizer = torch.optim.SGD([*masters.values(), *second.parameters()], lr=0.05)
data = torch.utils.data.DataLoader(torch.randn(400, 32), 4, shuffle=True)
seen = []
with nebula_i.Run("job.yaml", site) as run:
    assert (run.sites, run.sites[run.site_index]) == (["a", "b"], site)  # in every process, before attach()
    loader = run.attach(model, optimizer, dataloader=data, masters=masters)
    for x in loader:
        seen += x[:, 0].tolist() if loader.epoch == 0 else []
        loss = (model(x) - x.flip(1)).square().mean()
        model.zero_grad()
        loss.backward()
        for master, p in zip(masters.values(), first.parameters()):
            master.grad = p.grad
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters.values(), first.parameters()):
                p.copy_(master)
        run.step(len(x))
    assert rank == "1" or run.sites == ["a", "b"]  # after attach() one process may ask alone
    now = run.status()
    print(json.dumps({"site": site, "rank": rank, "ended": run.ended, "gateway": run.is_gateway, "root": now.get("root"),
                      "tokens": run.tokens, "seen": seen,
                      "sum": [p.double().sum().item() for p in (*model.parameters(), *masters.values())]}), flush=True)
