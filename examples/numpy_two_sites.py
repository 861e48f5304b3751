"""A training loop in NumPy alone, as one of two sites. A run does not need PyTorch.

    SITE=a python numpy_two_sites.py          beside a job.yaml; at the other site SITE=b

A network with one hidden layer learns y = sin(3 x1) · x2. Each site has its own data. The run uses the arrays' memory through the
buffer protocol; it takes arrays of other frameworks through DLPack in the same way. docs/python.md shows the job file.
"""

import os

import nebula_i
import numpy as np


def forward(p, x):
    hidden = np.tanh(x @ p["w1"] + p["b1"])
    return hidden, hidden @ p["w2"] + p["b2"]


def gradients(p, x, y):
    hidden, out = forward(p, x)
    d_out = 2 * (out - y) / len(x)
    d_hidden = (d_out @ p["w2"].T) * (1 - hidden**2)
    return {"w1": x.T @ d_hidden, "b1": d_hidden.sum(0), "w2": hidden.T @ d_out, "b2": d_out.sum(0)}


def data(rng, n):
    x = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
    return x, (np.sin(3 * x[:, :1]) * x[:, 1:]).astype(np.float32)


def main(run):
    first = np.random.default_rng(1)  # the same initial values at every site
    params = {"w1": first.normal(0, 1, (2, 64)), "b1": np.zeros(64), "w2": first.normal(0, 0.1, (64, 1)), "b2": np.zeros(1)}
    params = {name: p.astype(np.float32) for name, p in params.items()}
    run.attach(params)
    own = np.random.default_rng(100 + run.site_index)  # each site has its own data
    more = True
    while more:
        x, y = data(own, 64)
        for name, g in gradients(params, x, y).items():
            params[name] -= 0.05 * g
        more = run.step(tokens=len(x))
    x, y = data(np.random.default_rng(9), 1000)
    loss = float(np.mean((forward(params, x)[1] - y) ** 2))
    print(f"site {run.status()['name']}: loss {loss:.4f} (y alone: {float(np.var(y)):.4f}), "
          f"state root {run.status()['root'][:16]}", flush=True)


if __name__ == "__main__":
    with nebula_i.Run("job.yaml", site=os.environ["SITE"]) as run:
        main(run)
