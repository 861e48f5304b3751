"""PaddlePaddle layers as parameters of a run. Their memory is lent through DLPack, so it must be fp32 on the host."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, List, Optional, Tuple

from .dlpack import borrow
from .errors import ConfigError, ShapeError
from .slots import HostSlot


def is_layer(model: Any) -> bool:
    paddle = sys.modules.get("paddle")
    return paddle is not None and isinstance(model, paddle.nn.Layer)


def is_tensor(array: Any) -> bool:
    paddle = sys.modules.get("paddle")
    return paddle is not None and isinstance(array, paddle.Tensor)


class LayerSlot(HostSlot):
    """One tensor. Paddle does not lend a tensor that has a gradient, but it lends the same memory without one."""

    def __init__(self, name: str, tensor: Any) -> None:
        lent = borrow(name, tensor.detach())
        super().__init__(name, lent.shape or (1,), lent.address, tensor)
        self._tensor, self._form = tensor, _form(tensor)

    def stands(self) -> Optional[Tuple[Any, Any, int]]:
        return self._tensor, self._tensor.shape, self._address

    def check(self) -> None:
        super().check()
        now = _form(self._tensor)
        if now != self._form:
            raise ShapeError(f"parameter '{self.name}' was {self._form} when it was attached and is {now} now: change a model "
                             "before attach() (NEB_ERR_SHAPE)")
        self._address = self.values.at = self._tensor.data_ptr()


def _form(tensor: Any) -> Tuple[Any, ...]:
    return (*tensor.shape, str(tensor.dtype), str(tensor.place))


def layer_slots(model: Any, optimizer: Any) -> List[LayerSlot]:
    """The parameters that train: they are trainable and in the optimizer."""
    trained = None
    if optimizer is not None:
        if not hasattr(optimizer, "_parameter_list"):
            raise ConfigError(f"attach(): {type(optimizer).__name__} is not a Paddle optimizer (NEB_ERR_CONFIG)")
        trained = {id(p) for p in _flat(optimizer._parameter_list)}
    slots: List[LayerSlot] = []
    for path, p in model.named_parameters():
        if p.stop_gradient or 0 in p.shape or (trained is not None and id(p) not in trained):
            continue
        slots.append(LayerSlot(path, p))
        layer = model
        for part in path.split(".")[:-1]:
            slots[-1].watch((partial(getattr, layer, part, None), getattr(layer, part)))
            layer = getattr(layer, part)
        slots[-1].watch((partial(getattr, layer, path.rpartition(".")[2], None), p))
    return slots


def _flat(parameters: Any) -> List[Any]:
    """A list of parameters, or of groups of them."""
    groups = parameters or []
    return [p for g in groups for p in (g["params"] if isinstance(g, dict) else [g])]
