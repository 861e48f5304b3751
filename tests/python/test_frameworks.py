"""Tests JAX arrays and Paddle layers as parameters of a run. A framework that is not installed is skipped with a line.

    NEBULA=build/release/nebula-i PYTHON tests/python/test_frameworks.py
"""

import threading
import unittest

from sites import Folder, write_job

import nebula_i

try:
    import jax
    import numpy
except ImportError:
    jax = None
try:
    import paddle
except ImportError:
    paddle = None


class Site(threading.Thread):
    """A site in a thread: `train(run)` makes its steps and returns the values of its model as bytes."""

    def __init__(self, job, name, train):
        super().__init__(daemon=True)
        self.job, self.site, self.train, self.error, self.result = job, name, train, None, None
        self.start()

    def run(self):
        try:
            with nebula_i.Run(self.job, self.site) as run:
                self.result = self.train(run)
        except BaseException as e:
            self.error = e

    def done(self):
        self.join(300)
        if self.error:
            raise self.error
        return self.result


def both(test, make):
    """Two sites with 60 steps together. They end with one model."""
    with Folder() as folder:
        job = write_job(folder, tokens=60 * 10)
        a, b = (Site(job, name, make(target)) for name, target in (("a", -1.0), ("b", 0.8)))
        test.assertEqual(a.done(), b.done())
        test.assertTrue(any(a.result))


@unittest.skipUnless(jax, "jax is not installed")
class Jax(unittest.TestCase):
    def test_arrays_are_refused_with_the_lines_to_write(self):
        with Folder() as folder, nebula_i.Run(write_job(folder), "a", wait=0) as run:
            with self.assertRaises(nebula_i.DtypeError) as caught:
                run.attach({"w": jax.numpy.zeros(4)})
            self.assertIn("host = {name: numpy.array(value) for name, value in params.items()}", str(caught.exception))
            with self.assertRaises(nebula_i.DtypeError) as caught:
                run.attach({"layer": {"w": jax.numpy.zeros(4)}})
            self.assertIn("'layer.weight'", str(caught.exception))

    def test_those_lines_train(self):
        def make(target):
            def train(run):
                params = {"w": jax.numpy.zeros((10, 30)), "b": jax.numpy.zeros(7)}
                host = {name: numpy.array(value) for name, value in params.items()}
                run.attach(host)
                more = True
                while more:
                    params = {name: value + 0.05 * (target - value) for name, value in params.items()}
                    for name in host:
                        host[name][...] = params[name]
                    more = run.step(10)
                    if run.changed:
                        params = {name: jax.numpy.array(value) for name, value in host.items()}
                return b"".join(numpy.asarray(value).tobytes() for value in params.values())

            return train

        both(self, make)


@unittest.skipUnless(paddle, "paddle is not installed")
class Paddle(unittest.TestCase):
    def test_layers_train(self):
        def make(target):
            paddle.seed(5)
            model = paddle.nn.Sequential(paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8))
            model[1].bias.stop_gradient = True
            optimizer = paddle.optimizer.SGD(learning_rate=0.05, parameters=model.parameters())

            def train(run):
                run.attach(model, optimizer)
                assert [s.name for s in run._slots] == ["0.weight", "0.bias", "1.weight"]
                more = True
                while more:
                    loss = (model(paddle.ones([2, 8])) - target).square().mean()
                    loss.backward()
                    optimizer.step()
                    optimizer.clear_grad()
                    more = run.step(10)
                return b"".join(p.numpy().tobytes() for p in model.parameters())

            return train

        both(self, make)

    def test_what_cannot_train_is_refused(self):
        with Folder() as folder, nebula_i.Run(write_job(folder), "a", wait=0, finish=False) as run:
            with self.assertRaises(nebula_i.DtypeError):
                run.attach({"w": paddle.zeros([4], dtype="float64")})
            with self.assertRaises(nebula_i.ConfigError):
                run.attach(paddle.nn.Linear(2, 2), object())
            model = paddle.nn.Linear(4, 4)
            run.attach(model)
            self.assertTrue(run.step(1))
            model.weight = paddle.nn.Linear(4, 4).weight
            with self.assertRaises(nebula_i.ShapeError):
                run.step(1)


if __name__ == "__main__":
    unittest.main()
