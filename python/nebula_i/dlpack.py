"""The receiving side of DLPack, in ctypes: memory that another framework lends, without knowing the framework.

https://dmlc.github.io/dlpack: an object's __dlpack__() gives a capsule `dltensor` around a struct that says where the values
are. The receiver renames the capsule and calls the struct's deleter once when it is done.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Tuple

from .errors import DtypeError, ShapeError, UnsupportedError

_CPU, _CUDA_HOST, _FLOAT = 1, 3, 2


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("manager", ctypes.c_void_p), ("deleter", _DELETER)]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_USED = b"used_dltensor"  # a capsule keeps the pointer to its name, so the name must live on


class Borrowed:
    """fp32 values in the host's memory, lent by their owner until this object goes away."""

    def __init__(self, managed: Any) -> None:
        self._managed: Optional[Any] = managed
        t = managed.contents.tensor
        self.shape: Tuple[int, ...] = tuple(t.shape[i] for i in range(t.ndim))
        self.address: int = (t.data or 0) + t.byte_offset

    def __del__(self) -> None:
        managed, self._managed = self._managed, None
        if managed and managed.contents.deleter:
            managed.contents.deleter(managed)


def _contiguous(t: _Tensor) -> bool:
    if not t.strides:
        return True
    step = 1
    for i in reversed(range(t.ndim)):
        if t.shape[i] != 1 and t.strides[i] != step:
            return False
        step *= t.shape[i]
    return True


def borrow(name: str, array: Any) -> Borrowed:
    """Borrows the values of `array`, which still owns them. Raises DtypeError, ShapeError, UnsupportedError."""
    try:
        capsule = array.__dlpack__()
    except (BufferError, RuntimeError, TypeError, ValueError) as e:  # read-only, or needs a gradient, or lies elsewhere
        raise UnsupportedError(f"parameter '{name}': {type(array).__name__} does not lend its memory ({e}): attach a float32 "
                               "copy in NumPy (NEB_ERR_UNSUPPORTED)") from e
    if not _valid(capsule, b"dltensor"):
        raise UnsupportedError(f"parameter '{name}': its __dlpack__() did not give a dltensor capsule")
    managed = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Managed))
    t = managed.contents.tensor
    # Until it is renamed, the capsule frees its tensor itself, so a refusal needs no clean-up.
    if t.device_type not in (_CPU, _CUDA_HOST):
        raise UnsupportedError(
            f"parameter '{name}' lies on device type {t.device_type}; without torch only the host's memory can be "
            "reached: pass host copies, or a torch module")
    if (t.type_code, t.type_bits, t.type_lanes) != (_FLOAT, 32, 1):
        raise DtypeError(f"parameter '{name}' is not float32 (DLPack code {t.type_code}, {t.type_bits} bits)")
    if not _contiguous(t):
        raise ShapeError(f"parameter '{name}' is not contiguous: pass a contiguous copy")
    _rename(capsule, _USED)
    return Borrowed(managed)
