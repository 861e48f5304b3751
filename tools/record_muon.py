#!/usr/bin/env python3
"""Records tests/data/muon.txt: steps of torch.optim.Muon (PyTorch 2.9 or newer) for test_muon.c.

The first cases are computed in fp32: the module's bfloat16 is float32 while they run. Each has rows, columns, learning rate,
weight decay, the parameter before, the gradients of three steps, the parameter after them. The last cases have the smallest
and the largest singular value of a step that bfloat16 computed.
"""
import sys
import types

import torch
from torch.optim import _muon


class Float32(types.ModuleType):
    """torch, with float32 in place of bfloat16."""

    bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(torch, name)


def numbers(x):
    return " ".join(f"{v:.9g}" for v in x.flatten().tolist())


def steps(out, rows, cols, scales):
    lr, decay = 0.02, 0.1
    p = torch.nn.Parameter(torch.randn(rows, cols) * 0.3)
    optimizer = torch.optim.Muon([p], lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    print("steps", rows, cols, lr, decay, len(scales), file=out)
    print(numbers(p.detach()), file=out)
    for scale in scales:
        p.grad = torch.randn(rows, cols) * scale
        print(numbers(p.grad), file=out)
        optimizer.step()
    print(numbers(p.detach()), file=out)


def values(out, rows, cols):
    x = torch.randn(rows, cols)
    s = torch.linalg.svdvals(
        _muon._zeropower_via_newtonschulz(x, (_muon.DEFAULT_A, _muon.DEFAULT_B, _muon.DEFAULT_C), 5, 1e-7).float())
    print("values", rows, cols, f"{s.min():.4f} {s.max():.4f}", file=out)
    print(numbers(x), file=out)


def main():
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float32)
    with open(sys.argv[1], "w") as out:
        real, _muon.torch = _muon.torch, Float32("torch")
        steps(out, 12, 8, [1, 0.3, 2])
        steps(out, 8, 20, [1e-3, 1e-3, 1e-4])
        steps(out, 16, 16, [30, 1, 1])
        steps(out, 1, 7, [1, 1, 1])
        _muon.torch = real
        values(out, 32, 24)
        values(out, 20, 48)


main()
