"""torch modules as parameters of a run: which ones train, where they are, and sites of several processes.

A bf16 or fp16 parameter is p + r: the tensor and an fp32 remainder beside it. The run sees and merges x = p + r in fp32.
After a merge p is x rounded, and r is what the rounding left. So the work of others is never lost below the tensor's own
resolution, and the optimizer may change p as it likes between two steps.

torch itself copies a tensor on any other device than the host (CUDA, ROCm, MPS, an NPU under torch's key PrivateUse1), or of any other
layout, range by range when a round is due. Nothing here asks which device it is.

A parameter that is sharded among the processes of the site (a DTensor: FSDP2's fully_shard(), tensor parallelism) has a whole
fp32 copy in the gateway's memory. torch gathers it when the run is about to read or change values, and gives every process its
part of what the run has changed. sharded.py has that.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch

from .errors import ConfigError, DtypeError, ShapeError, UnsupportedError
from .slots import Slot, Watched

_FLOAT = 4
_WRAPPERS = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)  # these hold a model as `module`
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")  # only torch's wrappers use these names

Way = List[Tuple[torch.nn.Module, str]]  # from the model to a parameter: each module, and the name of the next one in it


class TensorSlot(Slot):
    """One tensor. `copies` are tensors that follow it (a bf16 parameter follows its fp32 master)."""

    sharded = False

    def __init__(self, name: str, tensor: torch.Tensor, copies: Tuple[torch.Tensor, ...] = ()) -> None:
        _refuse(name, tensor)
        for copy in copies:
            _refuse(name, copy)
        super().__init__()
        self.name, self.shape, self.dtype = name, tuple(tensor.shape), tensor.dtype
        self.tensor, self.copies = tensor, copies
        self.rest: Optional[torch.Tensor] = None
        if tensor.dtype != torch.float32:
            self.rest = torch.zeros(tensor.numel(), dtype=torch.float32, device=tensor.device)

    def check(self) -> None:
        super().check()
        t = self.tensor
        if t.shape != self.shape or t.dtype != self.dtype:
            raise ShapeError(
                f"parameter '{self.name}' was {self.shape} {self.dtype} when it was attached and is {tuple(t.shape)} "
                f"{t.dtype} now: change a model before attach() (NEB_ERR_SHAPE)")
        plain = self.rest is None and not self.copies and t.is_cpu and t.is_contiguous()
        self.values.at = t.data_ptr() if plain else None

    def stands(self) -> Optional[Tuple[torch.Tensor, torch.Size, int]]:
        return (self.tensor, self.tensor.shape, self.values.at) if self.values.at else None

    @torch.no_grad()
    def read(self, first: int, n: int, address: int) -> None:
        t = self.tensor.detach()
        if t.is_cpu and t.dtype == torch.float32 and t.is_contiguous():
            ctypes.memmove(address, t.data_ptr() + _FLOAT * first, _FLOAT * n)
            return
        part = t.reshape(-1)[first:first + n]
        if self.rest is not None:
            part = part.float() + self.rest[first:first + n]
        _host(address, n).copy_(part)

    @torch.no_grad()
    def write(self, first: int, n: int, address: int) -> None:
        t = self.tensor.detach()
        if t.is_cpu and t.dtype == torch.float32 and t.is_contiguous():
            ctypes.memmove(t.data_ptr() + _FLOAT * first, address, _FLOAT * n)
        else:
            self._write(t, first, n, _host(address, n))
        for copy in self.copies:
            _flat_write(copy.detach(), first, _host(address, n))

    def _write(self, t: torch.Tensor, first: int, n: int, values: torch.Tensor) -> None:
        if self.rest is None:
            _flat_write(t, first, values)
            return
        x = values.to(t.device)
        rounded = x.to(t.dtype)
        self.rest[first:first + n] = x - rounded.float()
        _flat_write(t, first, rounded)

    @torch.no_grad()
    def finite(self) -> bool:
        return bool(torch.isfinite(self.tensor.detach()).all())


def _refuse(name: str, tensor: torch.Tensor) -> None:
    """Raises the exception of a tensor whose values this process does not hold whole, or cannot read and write."""
    if _sharded(tensor):
        raise UnsupportedError(f"parameter '{name}' is sharded among the processes of this site ({type(tensor).__name__}: "
                               f"fully_shard(), tensor parallelism, ZeRO-3). {_WHOLE}")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise UnsupportedError(f"parameter '{name}' is a {type(tensor).__name__}, whose values are not plain numbers in memory: "
                               "attach the model before it is quantised or wrapped, or pass fp32 masters as "
                               "attach(masters={name: tensor}) (NEB_ERR_UNSUPPORTED)")
    if tensor.layout != torch.strided:
        raise UnsupportedError(f"parameter '{name}' is {tensor.layout}: only dense parameters train, use p.to_dense() "
                               "(NEB_ERR_UNSUPPORTED)")
    if not tensor.is_floating_point():
        raise DtypeError(f"parameter '{name}' is {tensor.dtype}: only floating-point parameters train (NEB_ERR_DTYPE)")
    if tensor.dtype == torch.float64:
        raise DtypeError(f"parameter '{name}' is float64, a run's state is float32: use model.float() (NEB_ERR_DTYPE)")
    if tensor.is_meta or (tensor.numel() and _stored(tensor) == 0):
        raise DtypeError(f"parameter '{name}' has no values yet (device {tensor.device}): materialise the model first, with "
                         "model.to_empty(device=…) and its initialisation (NEB_ERR_DTYPE)")
    if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride())):
        raise ShapeError(f"parameter '{name}' is expanded: several of its values share one place in memory, use p.clone() "
                         "(NEB_ERR_SHAPE)")


def _stored(tensor: torch.Tensor) -> Optional[int]:
    """The bytes of memory behind a tensor. None: its device does not show them (torch_xla)."""
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return None


_WHOLE = ("A run gathers parameters that fully_shard() has sharded, if the module itself is attached: run.attach(model, optimizer). "
          "In place of FSDP's first version or ZeRO-3 use fully_shard() or torch.nn.parallel.DistributedDataParallel "
          "(NEB_ERR_UNSUPPORTED)")


def _sharded(tensor: torch.Tensor) -> bool:
    """A DTensor (FSDP2, tensor parallelism) has placements. ZeRO-3 leaves an empty tensor and its own attributes."""
    return hasattr(tensor, "placements") or hasattr(tensor, "ds_numel")


def _refuse_fsdp(model: torch.nn.Module) -> None:
    """FSDP's first version keeps its shards in flat parameters, under other names than the model's."""
    for module in model.modules():
        if any(c.__name__ == "FullyShardedDataParallel" for c in type(module).__mro__):
            raise UnsupportedError(f"the model is sharded among the processes of this site (FullyShardedDataParallel). {_WHOLE}")


def _host(address: int, n: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_float * n).from_address(address), dtype=torch.float32)


def _flat_write(t: torch.Tensor, first: int, values: torch.Tensor) -> None:
    if t.is_contiguous():
        t.view(-1)[first:first + values.numel()].copy_(values)
        return
    flat = t.reshape(-1).clone()
    flat[first:first + values.numel()].copy_(values)
    t.copy_(flat.view(t.shape))


def plain_name(way: Way) -> str:
    """A parameter's name without the names of wrappers, wherever they are on the way to it.

    Sites may use different wrappers, so the names must not show them. The type of the module decides what a wrapper is, not
    the word: an attribute `module` of the user's own model is a part of the name at every site.
    """
    return ".".join(part for module, part in way
                    if part not in _WRAPPED and not (part == "module" and isinstance(module, _WRAPPERS)))


def _own(model: torch.nn.Module) -> Dict[str, Tuple[torch.nn.Parameter, Way]]:
    """The parameters that may train, each with the way to it, by name."""
    own: Dict[str, Tuple[torch.nn.Parameter, Way]] = {}
    _refuse_fsdp(model)
    for path, p in model.named_parameters():
        if not p.requires_grad or not (p.numel() or _sharded(p)):
            continue
        way, module = [], model
        for part in path.split("."):
            way.append((module, part))
            module = getattr(module, part)
        name = plain_name(way)
        if name in own:
            raise ConfigError(f"two parameters are called '{name}' when the wrappers are left out: rename one, or "
                              "attach the model inside (NEB_ERR_CONFIG)")
        own[name] = p, way
    return own


def _place(module: torch.nn.Module, part: str) -> Watched:
    """One step of the way, as a quick look: it runs at every training step, and getattr() takes ten times as long."""
    for table in (module._parameters, module._modules):
        if isinstance(table, dict) and part in table:
            return partial(table.get, part), table[part]
    return partial(getattr, module, part, None), getattr(module, part)


def module_slots(model: torch.nn.Module, optimizer: Any, masters: Optional[Mapping[str, Any]]) -> List[TensorSlot]:
    """The parameters that train: they have requires_grad and are in the optimizer. A master stands for its parameter."""
    trained = _of_optimizer(optimizer)
    own = _own(model)
    given: Mapping[str, Any] = masters or {}
    unknown = [n for n in given if n not in own]
    if unknown:
        raise ConfigError(f"masters: the model has no trainable parameter '{unknown[0]}' (NEB_ERR_CONFIG)")
    if trained is not None and not given and own and not any(id(p) in trained for p, _ in own.values()):
        raise ConfigError("the optimizer trains none of the model's parameters: create it after the model's last "
                          ".to(), or pass its fp32 masters as attach(masters={name: tensor}) (NEB_ERR_CONFIG)")
    slots: List[TensorSlot] = []
    watched = set()
    for name, (p, way) in own.items():
        master = given.get(name)
        if master is not None:
            if not isinstance(master, torch.Tensor) or master.shape != p.shape or master.dtype != torch.float32:
                raise ShapeError(f"masters['{name}'] must be float32 of shape {tuple(p.shape)} (NEB_ERR_SHAPE)")
            slots.append(TensorSlot(name, master, (p,)))
            slots[-1].watch((partial(given.get, name), master))
        elif trained is None or given or id(p) in trained:
            slots.append(_slot(name, p))
        else:
            continue
        slots[-1].watch(*(_place(*step) for step in way if step not in watched))
        watched.update(way)
    return slots


def _slot(name: str, p: torch.Tensor) -> TensorSlot:
    if not hasattr(p, "placements"):
        return TensorSlot(name, p)
    from .sharded import ShardedSlot

    return ShardedSlot(name, p)


def _of_optimizer(optimizer: Any) -> Optional[Dict[int, bool]]:
    if optimizer is None:
        return None
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps
    if not hasattr(inner, "param_groups"):
        raise ConfigError(f"attach(): {type(optimizer).__name__} is not a torch optimizer (NEB_ERR_CONFIG)")
    return {id(p): True for g in inner.param_groups for p in g["params"]}


class Team:
    """The processes of one site under torch.distributed: the first is the gateway, the others follow it."""

    def __init__(self, slots: Sequence[TensorSlot]) -> None:
        import torch.distributed as dist

        self._dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._shards = [s for s in slots if s.sharded]
        self._tensors = [t for s in slots if not s.sharded for t in (s.tensor, *s.copies)]
        # "cpu:gloo,cuda:nccl": the kinds of devices whose tensors the processes can exchange
        self._kinds = {kind.partition(":")[0] for kind in str(dist.get_backend_config()).split(",")}
        self._device = torch.device("cpu") if "cpu" in self._kinds else slots[0].tensor.device

    @property
    def sharded(self) -> bool:
        """Whether a parameter must be gathered before the run can read it."""
        return bool(self._shards)

    @torch.no_grad()
    def gather(self) -> None:
        """The gateway gets whole copies of the sharded parameters. All processes call this."""
        for slot in self._shards:
            slot.gather()

    def sum(self, tokens: int) -> int:
        t = torch.tensor([tokens], dtype=torch.int64, device=self._device)
        self._dist.all_reduce(t)
        return int(t)

    def agree(self, *flags: bool) -> List[bool]:
        """The gateway's flags, in every process."""
        t = torch.tensor(flags, dtype=torch.int64, device=self._device)
        self._dist.broadcast(t, 0)
        return [bool(flag) for flag in t.tolist()]

    @torch.no_grad()
    def share_all(self) -> None:
        """Copies the result of a merge from the gateway to the others. The masters too: the next step starts from them."""
        for t in self._tensors:
            self._share(t.detach())
        for slot in self._shards:
            slot.scatter()

    def _share(self, t: torch.Tensor) -> None:
        """A tensor whose device or layout torch.distributed does not take goes through one that it does."""
        sent = t if t.device.type in self._kinds else t.to(self._device)
        sent = sent.contiguous()
        self._dist.broadcast(sent, 0)
        if sent is not t and self.rank != 0:
            t.copy_(sent)


def same(value: Any) -> Any:
    """The first process's value, in every process of the site. All of them must call this."""
    box = [value]
    torch.distributed.broadcast_object_list(box, 0)
    return box[0]


def team_of(slots: Sequence[TensorSlot]) -> Optional[Team]:
    d = torch.distributed
    if not d.is_available() or not d.is_initialized():
        return None
    if d.get_world_size() == 1 and not any(s.sharded for s in slots):
        return None
    return Team(slots)
