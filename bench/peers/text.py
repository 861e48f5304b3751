"""text.py: one set of tokens for every arm, made with Nebula-I's own tokenizer.

Every twentieth page of 40 lines is held out. `nebula-i train` reads the pages as text; the others read the same tokens as arrays."""
import array
import ast
import pathlib
import struct
import subprocess

TOP = pathlib.Path(__file__).resolve().parents[2]
CONTEXT, PAGE, VOCAB = 128, 40, 4096


def pages_of(files):
    """A page is 40 lines as one, so that a line break does not end a sample of the native trainer."""
    lines = [s.strip() for f in files for s in pathlib.Path(f).read_text(errors="replace").splitlines() if s.strip()]
    return [" ".join(lines[i:i + PAGE]) for i in range(0, len(lines), PAGE)]


def read_set(folder):
    """The tokens of a set of shards (src/text/shard_format.h has the bytes), one behind the other."""
    ids = array.array("H")
    for shard in sorted(pathlib.Path(folder).glob("*.tok")):
        data = shard.read_bytes()
        (width,), (count,) = struct.unpack_from("<H", data, 14), struct.unpack_from("<Q", data, 32)
        ids.extend(array.array("H" if width == 2 else "I", data[128:128 + count * width]))
    return ids


def write_array(path, ids):
    """NumPy's file format, version 1.0, so that NumPy is not needed here."""
    head = repr({"descr": "<u2", "fortran_order": False, "shape": (len(ids),)})
    assert ast.literal_eval(head)
    head = head.ljust(117) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + ids.tobytes())


def prepare(nebula, files, out):
    if (out / "held.npy").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    files = files or [p for d in ("docs/**/*.md", "src/**/*.[ch]", "tests/*.[ch]", "bench/*.[ch]") for p in sorted(TOP.glob(d))]
    pages = pages_of(files)
    parts = {"train": [p for i, p in enumerate(pages) if i % 20], "held": pages[::20]}
    for part, kept in parts.items():
        (out / f"{part}.txt").write_text("\n".join(kept) + "\n")

    def corpus(*words):
        subprocess.run([nebula, "corpus", *map(str, words)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    corpus("tokenizer", "--type", "bpe", "--vocab", VOCAB, "--out", out / "tok.model", out / "train.txt")
    for part in parts:
        corpus("tokenise", "--tokenizer", out / "tok.model", "--lang", "en", "--max-tokens", CONTEXT - 1, "--out", out / part,
               out / f"{part}.txt")
        write_array(out / f"{part}.npy", read_set(out / part))
