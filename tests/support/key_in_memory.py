"""Looks for a private key in the memory of processes: key_in_memory.py KEY WITH… -- WITHOUT…

Those before -- must have it (else the search is worth nothing), those behind it must not. A process that has ended has nothing.
"""
import base64
import sys


def secret(path):
    body = "".join(line for line in open(path).read().splitlines() if "-----" not in line)
    return base64.b64decode(body)[-32:]  # PKCS #8 of an Ed25519 key ends with its seed


def has(pid, needle):
    try:
        maps = open(f"/proc/{pid}/maps").read().splitlines()
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        return None
    for line in maps:
        span, mode = line.split()[:2]
        first, end = (int(x, 16) for x in span.split("-"))
        if not mode.startswith("rw") or end - first > 1 << 30:
            continue
        try:
            memory.seek(first)
            if needle in memory.read(end - first):
                return True
        except (OSError, ValueError, OverflowError):
            continue
    return False


def main():
    words = sys.argv[2:]
    key, at = secret(sys.argv[1]), words.index("--")
    found = [has(p, key) for p in words[:at]]
    if any(x is None for x in found):
        print("the memory of other processes cannot be read here: skipped")
        return 0
    if not found or not all(found):
        print("the gateway's memory does not have the key: the search finds nothing")
        return 1
    bad = [p for p in words[at + 1:] if has(p, key)]
    if bad:
        print("ranks with the key in their memory:", *bad)
    return bool(bad)


sys.exit(main())
