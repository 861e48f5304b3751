"""Exceptions: one class for each status of the library, all of them NebulaError.

`error.status` is the library's own name ("NEB_ERR_CONFIG"), `error.code` its number. If Python has an exception of the same
meaning, the class is also that one. So `except ValueError` or `except OSError` catches what it should.
"""

from __future__ import annotations

import builtins
from typing import Dict, Type


class NebulaError(Exception):
    """An error that libnebula-i reported. The message says what is wrong and what to do."""

    status = "NEB_ERR_?"
    code = 0


class LibraryError(NebulaError, ImportError):
    """libnebula-i was not found, or cannot be loaded, or is of another version."""

    status = "NEB_ERR_NOTFOUND"
    code = -15


class InvalidError(NebulaError, ValueError):
    status, code = "NEB_ERR_INVALID", -1


class NoMemoryError(NebulaError, MemoryError):
    status, code = "NEB_ERR_NOMEM", -2


class RangeError(NebulaError, ValueError):
    status, code = "NEB_ERR_RANGE", -3


class NoSpaceError(NebulaError, OSError):
    status, code = "NEB_ERR_NOSPACE", -4


class ShapeError(NebulaError, ValueError):
    status, code = "NEB_ERR_SHAPE", -5


class DtypeError(NebulaError, TypeError):
    status, code = "NEB_ERR_DTYPE", -6


class UnsupportedError(NebulaError, NotImplementedError):
    status, code = "NEB_ERR_UNSUPPORTED", -7


class IoError(NebulaError, OSError):
    status, code = "NEB_ERR_IO", -8


class NetError(NebulaError, ConnectionError):
    status, code = "NEB_ERR_NET", -9


class TimeoutError(NebulaError, builtins.TimeoutError):
    status, code = "NEB_ERR_TIMEOUT", -10


class AuthError(NebulaError, PermissionError):
    status, code = "NEB_ERR_AUTH", -11


class ProtocolError(NebulaError):
    status, code = "NEB_ERR_PROTOCOL", -12


class CorruptError(NebulaError):
    status, code = "NEB_ERR_CORRUPT", -13


class StateError(NebulaError, RuntimeError):
    status, code = "NEB_ERR_STATE", -14


class NotFoundError(NebulaError, FileNotFoundError):
    status, code = "NEB_ERR_NOTFOUND", -15


class ExistsError(NebulaError, FileExistsError):
    status, code = "NEB_ERR_EXISTS", -16


class BusyError(NebulaError, RuntimeError):
    status, code = "NEB_ERR_BUSY", -17


class NonfiniteError(NebulaError, ArithmeticError):
    status, code = "NEB_ERR_NONFINITE", -18


class DeviceError(NebulaError, RuntimeError):
    status, code = "NEB_ERR_DEVICE", -19


class ConfigError(NebulaError, ValueError):
    status, code = "NEB_ERR_CONFIG", -20


class VersionError(NebulaError):
    status, code = "NEB_ERR_VERSION", -21


class CancelledError(NebulaError):
    status, code = "NEB_ERR_CANCELLED", -22


class PeerError(NebulaError, ConnectionError):
    status, code = "NEB_ERR_PEER", -23


class LimitError(NebulaError):
    status, code = "NEB_ERR_LIMIT", -24


class AgainError(NebulaError):
    status, code = "NEB_ERR_AGAIN", -25


class InternalError(NebulaError, RuntimeError):
    status, code = "NEB_ERR_INTERNAL", -26


BY_CODE: Dict[int, Type[NebulaError]] = {
    c.code: c for c in list(globals().values())
    if isinstance(c, type) and issubclass(c, NebulaError) and c not in (NebulaError, LibraryError)
}


def error_of(code: int, message: str) -> NebulaError:
    """The exception for a status of the library."""
    made = BY_CODE.get(code, NebulaError)(message)
    if code not in BY_CODE:
        made.code = code
    return made
