"""A parameter as the library sees it: a name, a shape, and fp32 values that can be copied out and in by range.

The library never keeps a pointer into a framework's memory. It copies a range when a round needs it, in the thread that
called `Run.step()`. Before that call the slot looks up where the values are at that moment. So a tensor may move. A tensor
that changed its shape or was replaced in the model is noticed and raises an exception.
"""

from __future__ import annotations

import ctypes
import math
from functools import partial
from typing import Any, Callable, List, Mapping, Optional, Sequence, Tuple

from .dlpack import Borrowed, borrow
from .errors import DtypeError, NonfiniteError, ShapeError
from .library import Values

_FLOAT = 4
Watched = Tuple[Callable[[], Any], Any]  # a function that looks into a place, and the object that must be there


class Slot:
    """The common part of every kind of parameter."""

    name: str
    shape: Tuple[int, ...]
    _watched: Tuple[Watched, ...] = ()

    def __init__(self) -> None:
        self.values = Values()  # the library copies by `values.at` itself where check() sets it, else it calls read and write

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def watch(self, *places: Watched) -> None:
        """From now on the model must keep the same objects in these places."""
        self._watched += places

    def check(self) -> None:
        """Says where the values are now. Raises ShapeError when the parameter is no longer the registered one."""
        for look, found in self._watched:
            if look() is not found:
                raise ShapeError(
                    f"parameter '{self.name}' was replaced after attach(): the run does not reach the new object; change the "
                    "values in place (NEB_ERR_SHAPE)")

    def stands(self) -> Optional[Tuple[Any, Any, int]]:
        """A tensor, its shape and its address at the last check(), if check() need not look again while these stay."""
        return None

    def read(self, first: int, n: int, address: int) -> None:
        """Copies values [first, first + n) to the n fp32 values at `address`."""
        raise NotImplementedError

    def write(self, first: int, n: int, address: int) -> None:
        raise NotImplementedError

    def finite(self) -> bool:
        """Whether every value is a finite number."""
        room = (ctypes.c_float * min(self.count, 1 << 16))()
        for first in range(0, self.count, len(room)):
            n = min(len(room), self.count - first)
            self.read(first, n, ctypes.addressof(room))
            if not math.isfinite(math.fsum(room[:n])) and not all(map(math.isfinite, room[:n])):
                return False
        return True


class HostSlot(Slot):
    """fp32 values in the host's memory. A buffer, or a tensor lent through DLPack, keeps them alive."""

    def __init__(self, name: str, shape: Sequence[int], address: int, keep: Any) -> None:
        super().__init__()
        self.name, self.shape = name, tuple(shape)
        self._address, self._keep = address, keep
        self.values.at = address

    def read(self, first: int, n: int, address: int) -> None:
        ctypes.memmove(address, self._address + _FLOAT * first, _FLOAT * n)

    def write(self, first: int, n: int, address: int) -> None:
        ctypes.memmove(self._address + _FLOAT * first, address, _FLOAT * n)


def _from_buffer(name: str, array: Any) -> HostSlot:
    view = memoryview(array)
    if view.format not in ("f", "<f", "=f", "@f") or view.itemsize != _FLOAT:
        raise DtypeError(f"parameter '{name}' holds '{view.format}' values; float32 is needed (keep fp32 masters)")
    if view.readonly:
        raise DtypeError(f"parameter '{name}' is read-only: the run could not merge into it")
    if not view.c_contiguous:
        raise ShapeError(f"parameter '{name}' is not contiguous: pass a contiguous copy")
    # The exported buffer stays locked as long as `held` lives, so the memory cannot move or go away.
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return HostSlot(name, view.shape or (1,), ctypes.addressof(held), (held, array))


def _from_dlpack(name: str, array: Any) -> HostSlot:
    lent: Borrowed = borrow(name, array)
    return HostSlot(name, lent.shape or (1,), lent.address, (lent, array))


def _refuse_jax(name: str, array: Any) -> None:
    """JAX lends its memory, but takes for granted that nobody changes it."""
    if type(array).__module__.partition(".")[0] in ("jax", "jaxlib"):
        raise DtypeError(
            f"parameter '{name}' is a JAX array, which cannot be changed in place. Attach NumPy copies: host = {{name: "
            "numpy.array(value) for name, value in params.items()}. Before every run.step() write `host[name][...] = "
            "params[name]` for each, and after it, if run.changed, params = {name: jax.numpy.array(value) for name, value in "
            "host.items()} (NEB_ERR_DTYPE)")


def host_slot(name: str, array: Any) -> HostSlot:
    """A slot over anything that has a buffer (NumPy, array.array) or speaks DLPack (PaddlePaddle, …)."""
    _refuse_jax(name, array)
    if isinstance(array, Mapping):
        raise DtypeError(f"parameter '{name}' is a dict: attach one dict of arrays, with names like '{name}.weight' "
                         "(NEB_ERR_DTYPE)")
    try:
        memoryview(array)
    except TypeError:
        if not hasattr(array, "__dlpack__"):
            raise DtypeError(
                f"parameter '{name}' is a {type(array).__name__}, which has neither a buffer nor DLPack; pass float32 arrays"
            ) from None
        return _from_dlpack(name, array)
    return _from_buffer(name, array)


def mapping_slots(model: Mapping[str, Any], slot_of: Callable[[str, Any], Slot] = host_slot) -> List[Slot]:
    """The parameters of a dict of arrays, in its order. Empty arrays are left out."""
    slots: List[Slot] = []
    for name, array in model.items():
        if not isinstance(name, str):
            raise DtypeError(f"the name of a parameter must be a string, not {name!r}")
        slot = slot_of(name, array)
        slot.watch((partial(model.get, name), array))
        if slot.count:
            slots.append(slot)
    return slots


class Look:
    """check() of all slots, quick where nothing has changed: it runs at every training step."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._places = [(look, found, slot) for slot in slots for look, found in slot._watched]
        self._whole: Sequence[Slot] = slots  # those that must be checked in full
        self._standing: List[Tuple[Any, Any, int]] = []

    def __call__(self) -> None:
        for look, found, slot in self._places:
            if look() is not found:
                slot.check()
        for tensor, shape, address in self._standing:
            if tensor.data_ptr() != address or tensor.shape != shape or not tensor.is_contiguous():
                self._standing, self._whole = [], self._slots
                break
        for slot in self._whole:
            slot.check()
        if self._whole and not self._standing:
            standing = [(slot, slot.stands()) for slot in self._slots]
            self._standing = [found for _, found in standing if found]
            self._whole = [slot for slot, found in standing if not found and not isinstance(slot, HostSlot)]


def check_finite(slots: Sequence[Slot]) -> None:
    for slot in slots:
        if not slot.finite():
            raise NonfiniteError(
                f"parameter '{slot.name}' is NaN or infinite before the first step: start from a good checkpoint "
                "(NEB_ERR_NONFINITE)")
