"""Makes tests/data/privacy.txt: epsilons of two public libraries, at the orders that src/privacy/accountant.c uses.

    pip install dp-accounting && pip install --no-deps opacus && python tests/data/privacy.py > tests/data/privacy.txt

dp-accounting 0.6 adds up the absolute values of the series between whole orders, which gives a little more than the
divergence there (up to 1.7 % of epsilon in these cases), so its values are for whole orders alone. The analysis of opacus is one file that needs numpy and scipy alone; importing the package would need torch.
"""
import importlib.util
from importlib.metadata import distribution, version

import dp_accounting
from dp_accounting.rdp import RdpAccountant

spec = importlib.util.spec_from_file_location(
    "rdp", distribution("opacus").locate_file("opacus/accountants/analysis/rdp.py"))
rdp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rdp)

ORDERS = ([1 + x / 10 for x in range(1, 100)] + list(range(11, 65))
          + [72, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024])

CASES = [  # noise, rate, count, delta
    (1.1, 256 / 60000, 14062, 1e-5), (1.3, 256 / 60000, 3515, 1e-5), (0.7, 256 / 60000, 10546, 1e-5),
    (4.0, 0.01, 10000, 1e-5), (4.0, 0.01, 40000, 1e-5), (1.0, 0.001, 1000, 1e-6), (0.6, 0.02, 500, 1e-5),
    (0.8, 0.05, 200, 1e-6), (0.5, 0.01, 100, 1e-5), (2.0, 0.1, 300, 1e-7), (1.5, 0.5, 20, 1e-5),
    (1.0, 0.9, 5, 1e-5), (3.0, 0.25, 1000, 1e-5), (10.0, 0.01, 1000, 1e-5), (20.0, 0.05, 100000, 1e-8),
    (1.0, 1.0, 1, 1e-5), (5.0, 1.0, 10, 1e-5), (50.0, 1.0, 1000, 1e-6), (200.0, 1.0, 1000, 1e-6),
    (0.3, 1.0, 1, 1e-5), (1.2, 1e-4, 100000, 1e-9), (0.9, 0.004, 1000000, 1e-6), (6.0, 0.03, 3, 1e-5),
    (1.0, 0.015625, 1000, 1e-5),
]


def opacus(noise, rate, count, delta):
    r = rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=count, orders=ORDERS)
    return rdp.get_privacy_spent(orders=ORDERS, rdp=r, delta=delta)[0]


def google(noise, rate, count, delta):
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant = RdpAccountant([a for a in ORDERS if a == int(a)])
    accountant.compose(event, count)
    return accountant.get_epsilon(delta)


if __name__ == "__main__":
    print(f"# opacus {version('opacus')}, dp-accounting {version('dp-accounting')}")
    print("# noise, rate, count, delta, epsilon of opacus, epsilon of dp-accounting at whole orders")
    for case in CASES:
        print("%r %r %r %r" % case, "%.9g %.9g" % (opacus(*case), google(*case)))
