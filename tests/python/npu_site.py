"""One process of a site whose model is on the device `npu`: `npu_site.py RANK PORT`; two ranks, site a.

torch.distributed has no library for this device here, so the gradients meet in the host's memory, and so do the results of a merge.
"""

import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
from torch import nn

import nebula_i
import npu_device

rank, port = sys.argv[1:]
torch.set_num_threads(1)
assert npu_device.load() is None
torch.manual_seed(4)
model = nn.Linear(32, 32).to("npu")
model.weight.data = model.weight.data.T  # not contiguous
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
torch.distributed.init_process_group("gloo")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = torch.utils.data.DataLoader(torch.randn(400, 32), 4, shuffle=True)
with nebula_i.Run("job.yaml", "a") as run:
    for x in run.attach(model, optimizer, dataloader=data):
        x = x.to("npu")
        loss = (model(x) - x.flip(1)).square().mean()
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            sum = p.grad.cpu()
            torch.distributed.all_reduce(sum)
            p.grad.copy_(sum / 2)
        optimizer.step()
        run.step(len(x))
    now = run.status()
    print(json.dumps({"rank": rank, "ended": run.ended, "root": now.get("root"), "gateway": run.is_gateway,
                      "values": [p.detach().cpu().flatten().tolist() for p in model.parameters()]}), flush=True)
