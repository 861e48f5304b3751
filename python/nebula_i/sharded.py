"""Parameters that are sharded among the processes of a site: DTensors, as fully_shard() and tensor parallelism make them.

The gateway holds a whole fp32 copy, which the library reads and changes. It is up to date from a gather to the next optimizer
step. All functions that move values are collective: every process of the site calls them in the same order.

A shard in bf16 or fp16 has its fp32 remainder beside it, as a whole parameter has (modules.py).
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from .errors import DtypeError, ShapeError, UnsupportedError
from .modules import TensorSlot
from .slots import Slot

_FLOAT = 4


class ShardedSlot(TensorSlot):
    """One DTensor. Only the gateway, the first process, has values for the library."""

    sharded = True

    def __init__(self, name: str, tensor: DTensor) -> None:
        _refuse(name, tensor)
        Slot.__init__(self)
        self.name, self.shape, self.dtype = name, tuple(tensor.shape), tensor.dtype
        self.tensor, self.copies = tensor, ()
        self.whole: Optional[torch.Tensor] = None
        if torch.distributed.get_rank() == 0:
            self.whole = torch.zeros(self.shape, dtype=torch.float32)
        local = tensor.detach().to_local()
        self.rest = None if tensor.dtype == torch.float32 else torch.zeros(local.shape, dtype=torch.float32, device=local.device)

    def check(self) -> None:
        Slot.check(self)
        t = self.tensor
        if not isinstance(t, DTensor) or tuple(t.shape) != self.shape or t.dtype != self.dtype:
            raise ShapeError(f"parameter '{self.name}' was {self.shape} {self.dtype}, sharded, when it was attached and is "
                             f"{tuple(t.shape)} {t.dtype} now: change a model before attach() (NEB_ERR_SHAPE)")
        self.values.at = self.whole.data_ptr() if self.whole is not None else None

    def stands(self) -> Optional[Tuple[Any, Any, int]]:
        return None

    def read(self, first: int, n: int, address: int) -> None:
        ctypes.memmove(address, self.whole.data_ptr() + _FLOAT * first, _FLOAT * n)

    def write(self, first: int, n: int, address: int) -> None:
        ctypes.memmove(self.whole.data_ptr() + _FLOAT * first, address, _FLOAT * n)

    @torch.no_grad()
    def finite(self) -> bool:
        local = self.tensor.detach().to_local()
        bad = torch.zeros(1, dtype=torch.int64, device=local.device)
        bad += 0 if bool(torch.isfinite(local).all()) else 1
        torch.distributed.all_reduce(bad)
        return int(bad) == 0

    @torch.no_grad()
    def gather(self) -> None:
        t = self.tensor.detach()
        if self.rest is not None:
            exact = t.to_local().float() + self.rest
            t = DTensor.from_local(exact, t.device_mesh, t.placements, run_check=False, shape=t.shape, stride=t.stride())
        whole = t.full_tensor()
        if self.whole is not None:
            self.whole.copy_(whole)

    @torch.no_grad()
    def scatter(self) -> None:
        """The gateway's copy to the shards of all processes."""
        t = self.tensor.detach()
        local = t.to_local()
        whole = self.whole if self.whole is not None else torch.empty(self.shape, dtype=torch.float32)
        mine = distribute_tensor(whole.to(local.device), t.device_mesh, t.placements).to_local()
        rounded = mine.to(local.dtype)
        local.copy_(rounded)
        if self.rest is not None:
            self.rest.copy_(mine - rounded.float())


def _refuse(name: str, tensor: DTensor) -> None:
    if any(p.is_partial() for p in tensor.placements):
        raise UnsupportedError(f"parameter '{name}' is a sum over processes ({tensor.placements}): reduce it first "
                               "(NEB_ERR_UNSUPPORTED)")
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        raise DtypeError(f"parameter '{name}' is {tensor.dtype}, a run's state is float32: use model.float() (NEB_ERR_DTYPE)")
    if tensor.is_meta:
        raise DtypeError(f"parameter '{name}' has no values yet (device meta): materialise the model first, with "
                         "model.to_empty(device=…) and its initialisation (NEB_ERR_DTYPE)")
