"""packages.py: a virtual environment for every peer, made with pip. They share the PyTorch of the first one by a .pth file.

PCCL's wheel wants NVIDIA's driver, glibc 2.38 and the libstdc++ of GCC 13, though it computes on the CPU here. Where they are missing, a
small library stands in: for the driver's calls, which say that there is no device, for glibc's new names of old functions, and for two
functions of libstdc++. The need for the newer versions is marked weak in the copy of the wheel's library that is in the environment.
"""
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

WANTED = {"torch": ["torch", "numpy", "safetensors"], "torchft": ["torchft-nightly"], "hivemind": ["hivemind"], "flower": ["flwr"],
          "pccl": ["pypccl"]}
SETTLED = {"torchft": "torchft", "hivemind": "hivemind", "flower": "flwr", "pccl": "pccl", "torch": "torch"}  # what must be importable


def newest_python():
    """3.12 if there is one that runs, since PCCL's wheels are for that; else the one that runs this.

    pyenv leaves a `python3.12` in the path that only says that another version is active, so its own are tried as well.
    """
    own = sorted(pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions").glob("3.12*/bin/python3.12"))
    for python in filter(None, [shutil.which("python3.12"), *map(str, own)]):
        if subprocess.run([python, "-c", ""], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return sys.executable


def site_packages(folder, name):
    return next((folder / f"venv-{name}" / "lib").glob("python3*/site-packages"))


def run(words, log, env=None):
    with open(log, "ab") as f:
        return subprocess.run(list(map(str, words)), stdout=f, stderr=f, env=env).returncode == 0


def last_error(log):
    lines = [s.strip() for s in log.read_text(errors="replace").splitlines() if s.strip()]
    errors = [s for s in lines if re.search(r"\bERROR\b|Error:|No space", s)]
    return (errors or lines or ["no output"])[-1][:160]


def install(folder, python, name):
    """Makes the environment unless it is there. None, or why it cannot be had."""
    venv, log = folder / f"venv-{name}", folder / f"venv-{name}.log"
    if (venv / "ready").exists():
        return None
    print(f"installing {', '.join(WANTED[name])}", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    log.unlink(missing_ok=True)
    if not run([python, "-m", "venv", venv], log):
        return last_error(log)
    if name != "torch":
        (site_packages(folder, name) / "torch.pth").write_text(f"{site_packages(folder, 'torch')}\n")
    if not run([venv / "bin/python", "-m", "pip", "install", *WANTED[name]], log):
        return last_error(log)
    if name == "pccl" and not loads(folder, name, log):
        stand_in(folder, log)
    if not loads(folder, name, log):
        return last_error(log)
    (venv / "ready").touch()
    return None


def loads(folder, name, log):
    return run([folder / f"venv-{name}/bin/python", "-c", f"import {SETTLED[name]}"], log, {**os.environ, **loader(folder, name)})


def loader(folder, name):
    """Environment that an arm of this peer needs for its libraries."""
    stub = folder / f"venv-{name}" / "stub"
    return {"LD_LIBRARY_PATH": str(stub)} if stub.exists() else {}


def versions(folder):
    """What is installed, for the record."""
    found = []
    for name, wanted in WANTED.items():
        for info in (folder / f"venv-{name}").glob(f"lib/python3*/site-packages/{wanted[0].replace('-', '_')}-*.dist-info"):
            found.append(info.stem.replace("-", " ").replace("_", "-"))
    return ", ".join(found)


# ---- PCCL without a driver --------------------------------------------------------------------------------------------

STAND_IN = """
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
long __isoc23_strtol(const char *s, char **end, int base) { return strtol(s, end, base); }
unsigned long long __isoc23_strtoull(const char *s, char **end, int base) { return strtoull(s, end, base); }
int __isoc23_sscanf(const char *s, const char *format, ...)
{ va_list ap; va_start(ap, format); int n = vsscanf(s, format, ap); va_end(ap); return n; }
int __isoc23_fscanf(FILE *f, const char *format, ...)
{ va_list ap; va_start(ap, format); int n = vfscanf(f, format, ap); va_end(ap); return n; }
void _ZSt21ios_base_library_initv(void) {}
/* std::string: of the text at p, `old` characters become the `count` ones at s, which may lie in the same text; `tail` follow. */
void _ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE15_M_replace_coldEPcmPKcmm(void *self, char *p, size_t old, const char *s,
                                                                                    size_t count, size_t tail)
{
    char *copy = malloc(count + 1);
    (void)self;
    if (!copy) abort();
    memcpy(copy, s, count);
    memmove(p + count, p + old, tail);
    memcpy(p, copy, count);
    free(copy);
}
"""
VERSIONS = ["GLIBC_2.38", "GLIBCXX_3.4.31", "GLIBCXX_3.4.32"]
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def stand_in(folder, log):
    library = site_packages(folder, "pccl") / "pccl" / "libpccl.so"
    stub = folder / "venv-pccl" / "stub"
    stub.mkdir(exist_ok=True)
    names = subprocess.run(["nm", "-D", "--undefined-only", str(library)], text=True, stdout=subprocess.PIPE).stdout
    calls = "".join(f"int {n}(void) {{ return {NO_DEVICE}; }}\n" for n in re.findall(r"\bU (cu[A-Z]\w+)", names))
    (stub / "stub.c").write_text(STAND_IN + calls)
    run(["cc", "-shared", "-fPIC", "-o", stub / "libcuda.so.1", "-Wl,-soname,libcuda.so.1", stub / "stub.c"], log)
    library.write_bytes(weakened(library.read_bytes(), VERSIONS))


def weakened(elf, versions):
    """The same file (ELF, 64 bits) with its need for these versions marked weak, so that the loader does not insist."""
    elf = bytearray(elf)
    table, = struct.unpack_from("<Q", elf, 40)
    size, count = struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQII", elf, table + i * size) for i in range(count)]
    for _, kind, _, _, offset, _, link, entries in sections:
        if kind != 0x6FFFFFFE:  # SHT_GNU_verneed
            continue
        names, need = sections[link][4], offset
        for _ in range(entries):
            _, aux_count, _, aux, following = struct.unpack_from("<HHIII", elf, need)
            at = need + aux
            for _ in range(aux_count):
                _, flags, _, name, next_aux = struct.unpack_from("<IHHII", elf, at)
                if bytes(elf[names + name:elf.index(0, names + name)]).decode() in versions:
                    struct.pack_into("<H", elf, at + 4, flags | 2)  # VER_FLG_WEAK
                at += next_aux
            need += following
    return bytes(elf)
