"""A torch device `npu` for tests, which stands in for an accelerator whose vendor adds it to torch (npu/npu.cpp says how).

`load()` compiles it with the system's C++ compiler and keeps the result beside the library under test, by its source and torch's
version. It returns a sentence that says why there is none, or None.
"""

import ctypes
import hashlib
import os
import pathlib
import subprocess
import sys
import types

import torch

SOURCE = pathlib.Path(__file__).resolve().parent / "npu" / "npu.cpp"
_library = None


def _made():
    top = pathlib.Path(torch.__file__).parent
    name = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {top} {sys.platform}".encode()).hexdigest()[:16]
    folder = pathlib.Path(os.environ.get("NEBULA_I_LIBRARY", "build/release/libnebula-i.so")).resolve().parent / "torch-npu"
    made = folder / f"npu-{name}.so"
    if not made.exists():
        folder.mkdir(exist_ok=True)
        part = folder / f"npu-{name}.{os.getpid()}.part"
        words = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{top}/include",
                 f"-I{top}/include/torch/csrc/api/include", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
                 str(SOURCE), "-o", str(part), f"-L{top}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{top}/lib"]
        subprocess.run(words, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        part.rename(made)
    return made


def load():
    global _library
    if _library is not None:
        return None
    try:
        made = _made()
    except OSError as e:
        return f"no C++ compiler: {e}"
    _library = ctypes.CDLL(str(made))
    _library.npu_copies_in.restype = _library.npu_copies_out.restype = ctypes.c_long
    torch.utils.rename_privateuse1_backend("npu")
    module = types.ModuleType("npu")
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch._register_device_module("npu", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return None


def copies():
    """How many copies went to the device, and to the host."""
    return _library.npu_copies_in(), _library.npu_copies_out()
