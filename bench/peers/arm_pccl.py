"""PCCL: synchronous DiLoCo; pseudo-gradients are averaged every PEERS_INTERVAL steps as 8-bit numbers. A master runs at site a.

The outer parameters and their momentum are PCCL's shared state, so a site that comes back receives them."""
from shared import *

from pccl import (Attribute, Communicator, DataType, DistributionHint, PCCLError, QuantizationAlgorithm, QuantizationOptions,
                  ReduceDescriptor, ReduceOp, ReduceOpDescriptor, ReduceOperandDescriptor, SharedState, SharedStateSyncStrategy,
                  TensorInfo)


def until_it_works(call, *words):
    while True:
        try:
            return call(*words)
        except PCCLError as e:
            print(f"{call.__name__}: {e}", flush=True)
            time.sleep(0.5)


def average(comm, flat):
    """The mean of all sites' vectors, in place."""
    operation = ReduceDescriptor(
        count=flat.numel(), op=ReduceOp.AVG, tag=0,
        operand_descriptor=ReduceOperandDescriptor(datatype=DataType.FLOAT, distribution_hint=DistributionHint.NORMAL),
        quantization_options=QuantizationOptions(quantized_datatype=DataType.UINT8, algorithm=QuantizationAlgorithm.MIN_MAX))
    try:
        comm.all_reduce_multiple_with_retry(
            [ReduceOpDescriptor.from_torch(send=flat, recv=flat, reduce_descriptor=operation)], max_in_flight=16)
    except PCCLError as e:  # the other site is gone: its part is missing
        print(f"all-reduce: {e}", flush=True)


def sites(comm):
    return comm.get_attribute(Attribute.GLOBAL_WORLD_SIZE)


model, optimizer = make()
inner = list(model.parameters())
outer = [torch.nn.Parameter(p.detach().clone()) for p in inner]
outer_optimizer = torch.optim.SGD(outer, **OUTER)
for p in outer:
    p.grad = torch.zeros_like(p)
outer_optimizer.step()  # a step of nothing makes the momentum, which is shared from the beginning
comm = Communicator(os.environ["NEBULA_WAN_ADDR_A"] + ":48148", 0)
comm.connect(n_attempts=30)
shared = {f"p{i}": p.data for i, p in enumerate(outer)}
shared.update({f"m{i}": outer_optimizer.state[p]["momentum_buffer"] for i, p in enumerate(outer)})
state = SharedState([TensorInfo.from_torch(t, name, allow_content_inequality=False) for name, t in shared.items()])
clock, data = None, batches()
while True:
    if clock or sites(comm) < 2:
        if sites(comm) < 2 or until_it_works(comm.are_peers_pending):
            until_it_works(comm.update_topology)
    if not clock and sites(comm) < 2:
        time.sleep(0.2)
        continue
    if sites(comm) > 1:
        until_it_works(comm.sync_shared_state, state, SharedStateSyncStrategy.ENFORCE_POPULAR)
        state.revision += 1
    with torch.no_grad():
        for p, o in zip(inner, outer):
            p.copy_(o)
    clock = clock or Clock(model, optimizer)
    for _ in range(INTERVAL):
        loss = backward(model, optimizer, next(data))
        optimizer.step()
        if clock.tick(loss):
            clock.finish()
            os._exit(0)  # the communicator would wait for the other site
    delta = torch.cat([(o - p).detach().flatten() for o, p in zip(outer, inner)])
    if sites(comm) > 1:
        average(comm, delta)
    for o, g in zip(outer, delta.split([o.numel() for o in outer])):
        o.grad = g.view_as(o)
    outer_optimizer.step()
