"""Hivemind: its Optimizer with local updates; the sites' models are averaged in the background every PEERS_INTERVAL steps.

PEERS_OPENDILOCO names a checkout of OpenDiLoCo: then its DiLoCoOptimizer, which stands on Hivemind, sends pseudo-gradients."""
from shared import *

from functools import partial

import hivemind
from hivemind.compression import Float16Compression

CHECKOUT = os.environ.get("PEERS_OPENDILOCO")


def join():
    """The distributed hash table. Site a's address goes to site b in a file; in life by hand."""
    known = RUN / "hivemind-address"
    while SITE == "b" and not known.exists():
        time.sleep(0.1)
    peers = known.read_text().split() if known.exists() and (SITE == "b" or CAME_BACK) else []
    dht = hivemind.DHT(host_maddrs=[f"/ip4/{os.environ['NEBULA_WAN_ADDR']}/tcp/31337"], initial_peers=peers, start=True,
                       identity_path=str(RUN / f"identity-{SITE}"))
    if SITE == "a":
        (RUN / "hivemind-address.new").write_text("\n".join(map(str, dht.get_visible_maddrs())))
        os.replace(RUN / "hivemind-address.new", known)
    return dht


def opendiloco(model, plain, dht):
    import types

    sys.modules.setdefault("wandb", types.ModuleType("wandb"))  # its tools import it
    sys.path.insert(0, CHECKOUT)
    from open_diloco.hivemind_diloco import AllReduceStrategy, DiLoCoOptimizer

    return DiLoCoOptimizer(
        dht=dht, run_id="run", batch_size=BATCH, num_inner_steps=INTERVAL, params=model.parameters(), inner_optimizer=plain,
        outer_optimizer=partial(torch.optim.SGD, **OUTER), matchmaking_time=3.0, averaging_timeout=60.0, timeout_waiting_for_peers=30.0,
        grad_compression=Float16Compression(), state_averaging_compression=Float16Compression(),
        load_state_compression=Float16Compression(), average_state_every=1000000, delay_state_averaging=False,
        all_reduce_strategy=AllReduceStrategy.WAIT_FOR_ALL)


def local_updates(plain, dht):
    return hivemind.Optimizer(
        dht=dht, run_id="run", optimizer=plain, batch_size_per_step=BATCH, target_batch_size=2 * INTERVAL * BATCH,
        use_local_updates=True, matchmaking_time=3.0, averaging_timeout=60.0, delay_state_averaging=True,
        state_averaging_compression=Float16Compression(), load_state_compression=Float16Compression())


model, plain = make()
dht = join()
optimizer = opendiloco(model, plain, dht) if CHECKOUT else local_updates(plain, dht)
if CAME_BACK:
    optimizer.load_state_from_peers()
    if CHECKOUT:
        optimizer.update_main_param_after_outer_step()
clock = Clock(model, optimizer)
for ids in batches():
    loss = backward(model, plain if CHECKOUT else optimizer, ids)
    optimizer.step()
    if clock.tick(loss):
        break
clock.finish()
os._exit(0)  # its processes end with this one
