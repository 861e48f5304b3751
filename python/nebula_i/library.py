"""Finding libnebula-i and its functions. Nothing here knows of parameters or frameworks.

The search goes in this order: the file that NEBULA_I_LIBRARY names; the folder of this package (`pip install` puts the
library there); the build folder of the checkout that holds this package; the system's folders of libraries.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import pathlib
import threading
from typing import List, Optional

from .errors import LibraryError, error_of

OK = 0
ERR_NOSPACE = -4
ERR_SHAPE = -5
ERR_INTERNAL = -26
ERR_CANCELLED = -22
ERR_AGAIN = -25
NO_STEP = -1

COPY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))


class Values(ctypes.Structure):
    """struct neb_values"""

    _fields_ = [("at", ctypes.c_void_p), ("read", COPY), ("write", COPY), ("arg", ctypes.c_void_p)]


class Param(ctypes.Structure):
    """struct neb_session_param"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("ndim", ctypes.c_int),
        ("shape", ctypes.c_int64 * 4),
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("values", ctypes.c_void_p),
        ("device", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", ctypes.c_void_p),
        ("arg", ctypes.c_void_p),
    ]


_SESSION = ctypes.c_void_p
_SIZE = ctypes.POINTER(ctypes.c_size_t)
_BOOL = ctypes.POINTER(ctypes.c_bool)
_FUNCTIONS = {
    "neb_status_name": (ctypes.c_char_p, [ctypes.c_int]),
    "neb_last_error": (ctypes.c_char_p, []),
    "neb_session_open_job": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p),
                                            ctypes.POINTER(_SESSION)]),
    "neb_session_register": (ctypes.c_int, [_SESSION, ctypes.POINTER(Param)]),
    "neb_session_load": (ctypes.c_int, [_SESSION, ctypes.c_void_p, ctypes.c_size_t]),
    "neb_session_start": (ctypes.c_int, [_SESSION, ctypes.c_double]),
    "neb_values_read": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]),
    "neb_values_write": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]),
    "neb_step_within": (ctypes.c_int, [_SESSION, ctypes.c_int64, ctypes.c_double, _BOOL]),
    "neb_step_counted": (ctypes.c_int, [_SESSION, ctypes.c_int64, _BOOL]),
    "neb_session_finish": (ctypes.c_int, [_SESSION]),
    "neb_session_save": (ctypes.c_int, [_SESSION, ctypes.c_void_p, _SIZE]),
    "neb_session_status_json": (ctypes.c_int, [_SESSION, ctypes.c_void_p, _SIZE]),
    "neb_session_close": (None, [_SESSION]),
}

_NAMES = ("libnebula-i.so.0", "libnebula-i.so", "libnebula-i.0.dylib", "libnebula-i.dylib")
_loaded: Optional[ctypes.CDLL] = None
_lock = threading.Lock()


def candidates() -> List[str]:
    """The places where the library may be, in order. The system's loader resolves a bare name."""
    chosen = os.environ.get("NEBULA_I_LIBRARY")
    if chosen:
        return [chosen]
    here = pathlib.Path(__file__).resolve().parent
    found = [str(folder / name) for folder in (here, here.parent.parent / "build" / "release") for name in _NAMES
             if (folder / name).exists()]
    system = ctypes.util.find_library("nebula-i")
    return found + ([system] if system else []) + [_NAMES[0]]


def _load() -> ctypes.CDLL:
    tried = []
    for name in candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError as e:
            tried.append(str(e))
            continue
        for function, (result, arguments) in _FUNCTIONS.items():
            try:
                f = getattr(library, function)
            except AttributeError:
                raise LibraryError(
                    f"{name} lacks {function}: the library is of another version than this package; build and install both "
                    "from one checkout") from None
            f.restype, f.argtypes = result, arguments
        return library
    raise LibraryError(
        "libnebula-i was not found: build it (`make build` in the checkout) or install it (`cmake --install "
        "build/release`), or set NEBULA_I_LIBRARY to the file. Tried: " + "; ".join(tried))


def library() -> ctypes.CDLL:
    """The loaded library. If it cannot be loaded, LibraryError says what to do."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def check(code: int) -> None:
    """Raises the exception of a status other than NEB_OK, with the library's own message."""
    if code == OK:
        return
    said = library().neb_last_error() or b""
    name = (library().neb_status_name(code) or b"NEB_ERR_?").decode()
    raise error_of(code, f"{said.decode(errors='replace') or 'no message'} ({name})")
