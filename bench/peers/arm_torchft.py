"""torchft's DiLoCo: a lighthouse at site a says who takes part, pseudo-gradients cross every PEERS_INTERVAL steps over gloo.

PEERS_FRAGMENTS=2: streaming DiLoCo; halves of the model take turns and cross while training goes on."""
from shared import *

from datetime import timedelta

from torch.distributed import TCPStore
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

FRAGMENTS = int(os.environ.get("PEERS_FRAGMENTS", 1))
DELAY = 8 if FRAGMENTS > 1 else 0  # steps that a fragment may take to cross


class Part(torch.nn.Module):
    def __init__(self, modules):
        super().__init__()
        self.modules_of_part = torch.nn.ModuleList(modules)


def size(modules):
    return sum(p.numel() for m in modules for p in m.parameters())


def parts_of(model):
    if FRAGMENTS == 1:
        return [model]
    parts = [[] for _ in range(FRAGMENTS)]
    blocks = [model.embed, model.decoder["embed"], model.decoder["norm"], *model.decoder["layers"]]
    for block in sorted(blocks, key=lambda m: -size([m])):
        min(parts, key=size).append(block)
    return [Part(p) for p in parts]


model, optimizer = make()
store = TCPStore(SITE, 29600, is_master=True, wait_for_workers=False)
parts = parts_of(model)


def load(state):
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


manager = Manager(pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), load_state_dict=load,
                  state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, min_replica_size=1,
                  use_async_quorum=False, timeout=timedelta(seconds=60), replica_id=SITE, hostname=SITE, store_addr=SITE, store_port=29600,
                  rank=0, world_size=1)
outer = [torch.optim.SGD(p.parameters(), **OUTER) for p in parts]
with DiLoCo(manager, parts, optimizer, outer, sync_every=INTERVAL, fragment_sync_delay=DELAY, use_bucketization=True,
            backup_device=torch.device("cpu")):
    clock = Clock(model, optimizer)
    for ids in batches():
        loss = backward(model, optimizer, ids)
        optimizer.step()
        if clock.tick(loss):
            break
clock.finish()
os._exit(0)  # its threads wait for a quorum that the other site no longer joins
