"""Tests the package without a framework: arrays with a buffer or DLPack, exceptions, restarts. Needs no other package.

    NEBULA=build/release/nebula-i python3 tests/python/test_plain.py
"""

import array
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

from sites import NEBULA, TOP, Folder, make_sites, write_job

import nebula_i
from nebula_i import library
from nebula_i.errors import BY_CODE

VALUES = 2000


def zeros(n=VALUES):
    return array.array("f", bytes(4 * n))


def pull(x, target):
    """One inner step: moves the values a little towards the site's own target."""
    for i in range(0, len(x), 7):
        x[i] += 0.05 * (target - x[i])


class Site(threading.Thread):
    """A site in a thread. It trains until the run ends, or for `steps` steps; then it leaves, or waits for the end (`finish`)."""

    def __init__(self, job, name, target, steps=1 << 30, state=None, model=None, finish=None, **options):
        super().__init__(daemon=True)
        self.job, self.site, self.target, self.steps, self.state = job, name, target, steps, state
        self.model = model or {"w": zeros(), "b": zeros(3)}
        self.options, self.error, self.status, self.made = options, None, None, 0
        self.finish = steps == 1 << 30 if finish is None else finish
        self.start()

    def run(self):
        try:
            with nebula_i.Run(self.job, self.site, finish=self.finish, **self.options) as run:
                run.attach(self.model, state=self.state)
                while self.made < self.steps:
                    pull(self.model["w"], self.target)
                    self.made += 1
                    if not run.step(10):
                        break
                    time.sleep(0.002)
                self.saved = run.state_dict()
                if self.finish:
                    run.finish()
                self.status = run.status()
        except BaseException as e:
            self.error = e

    def done(self, seconds=60):
        self.join(seconds)
        if self.is_alive():
            raise AssertionError(f"site {self.site} still runs after {seconds} s")
        if self.error:
            raise self.error
        return self


class Training(unittest.TestCase):
    def test_two_sites_end_with_one_model_also_when_one_was_away(self):
        with Folder() as folder, Folder() as other:  # both at once, because the end of a run takes some seconds
            stays = write_job(folder, tokens=3000)
            leaves = write_job(other, tokens=6000)
            a, b = Site(stays, "a", -1.0), Site(stays, "b", 0.8)
            c, d = Site(leaves, "a", -1.0), Site(leaves, "b", 0.8, steps=120)
            d.done()
            self.assertFalse(d.status["ended"])
            self.assertEqual(d.saved["steps"], 120)
            again = Site(leaves, "b", 0.8, state=d.saved, model=d.model)
            for one, two in ((a, b), (c, again)):
                one.done(), two.done()
                self.assertTrue(one.status["ended"] and two.status["ended"])
                self.assertEqual(one.status["root"], two.status["root"])
                self.assertEqual(one.status["sites"], ["a", "b"])
                self.assertGreater(one.status["committed"], 2)
                for old, new in (("commits", "committed"), ("applied", "record"), ("site", "name"), ("steps", "own_steps"),
                                 ("bytes_out", "sent"), ("parcels", "updates"), ("tokens", "run_tokens")):
                    self.assertEqual(one.status[old], one.status[new])  # the older keys, for one release
                self.assertEqual(one.model["w"].tobytes(), two.model["w"].tobytes())
                self.assertLess(abs(one.model["w"][0]), 0.7)  # between the two targets
                self.assertNotEqual(one.model["w"][0], 0)


    def test_a_run_ends_when_all_sites_have_made_their_steps(self):
        """Without a token target, and with one that the steps do not reach. The sites make different numbers of steps."""
        with Folder() as folder, Folder() as other:
            jobs = write_job(folder), write_job(other, tokens=10**9)
            pairs = [(Site(job, "a", -1.0, 40, finish=True), Site(job, "b", 0.8, 70, finish=True)) for job in jobs]
            for one, two in pairs:
                one.done(), two.done()
                self.assertEqual((one.made, two.made), (40, 70))
                self.assertTrue(one.status["ended"] and two.status["ended"])
                self.assertTrue(one.status["finished"] and two.status["finished"])
                self.assertEqual(one.status["root"], two.status["root"])
                self.assertEqual(one.model["w"].tobytes(), two.model["w"].tobytes())
                self.assertNotEqual(one.model["w"][0], 0)

    def test_steps_beyond_the_end_are_not_in_the_result(self):
        with Folder() as folder:
            job = write_job(folder, tokens=600)
            b = Site(job, "b", 0.8)
            x = zeros()
            with nebula_i.Run(job, "a") as run:
                run.attach({"w": x, "b": zeros(3)})
                while run.step(10):
                    pull(x, -1.0)
                    time.sleep(0.002)
                result = x.tobytes()
                pull(x, -1.0)
                self.assertNotEqual(x.tobytes(), result)
                self.assertFalse(run.step(10))
                self.assertEqual(x.tobytes(), result)
            self.assertEqual(b.done().model["w"].tobytes(), result)


class BadInput(unittest.TestCase):
    def refused(self, error, model, **settings):
        with Folder() as folder:
            with nebula_i.Run(write_job(folder), "a", wait=0, settings=settings) as run:
                with self.assertRaises(error) as caught:
                    run.attach(model)
                return str(caught.exception)

    def test_models_that_cannot_train(self):
        bad = zeros()
        bad[5] = float("nan")
        self.assertIn("'w'", self.refused(nebula_i.NonfiniteError, {"v": zeros(), "w": bad}))
        self.assertIn("float32", self.refused(nebula_i.DtypeError, {"w": array.array("d", [1.0])}))
        self.assertIn("read-only", self.refused(nebula_i.DtypeError, {"w": memoryview(zeros()).toreadonly()}))
        self.assertIn("contiguous", self.refused(nebula_i.ShapeError, {"w": memoryview(zeros())[::2]}))
        self.assertIn("neither", self.refused(nebula_i.DtypeError, {"w": [1.0, 2.0]}))
        self.assertIn("no parameter", self.refused(nebula_i.ConfigError, {}))
        self.assertIn("torch module", self.refused(nebula_i.ConfigError, 7))

    def test_jobs_that_do_not_fit(self):
        with Folder() as folder:
            job = write_job(folder)
            for error, words in ((nebula_i.NotFoundError, (folder + "/none.yaml", "a")),
                                 (nebula_i.ConfigError, (job, "c")),
                                 (nebula_i.ConfigError, (write_job(folder, ("a", "z"), "z.yaml"), "a"))):
                with self.assertRaises(error) as caught:
                    nebula_i.Run(*words)
                self.assertIn(caught.exception.status, str(caught.exception))
            with self.assertRaises(nebula_i.ConfigError):
                nebula_i.Run(job, "a", settings={"wan.rung": "int99"})
            first = nebula_i.Run(job, "a")
            with self.assertRaises(nebula_i.BusyError):
                nebula_i.Run(job, "a")
            first.close()

    def test_another_model_at_the_other_site(self):
        with Folder() as folder:
            job = write_job(folder)
            a = Site(job, "a", 0.0, steps=4000)
            b = Site(job, "b", 0.0, steps=4000, model={"w": zeros(), "c": zeros(3)})
            for site in (a, b):
                with self.assertRaises(nebula_i.ConfigError) as caught:
                    site.done()
                self.assertIn("another model", str(caught.exception))
                self.assertEqual(site.made <= 1, True, "found before the second step")

    def test_calls_out_of_order(self):
        with Folder() as folder:
            run = nebula_i.Run(write_job(folder), "a", wait=0)
            with self.assertRaises(nebula_i.StateError):
                run.step(1)
            run.attach({"w": zeros()})
            with self.assertRaises(nebula_i.StateError):
                run.attach({"w": zeros()})
            for tokens in (-1, "ten", 1.5, None, True):
                with self.assertRaises(nebula_i.InvalidError):
                    run.step(tokens)
            with self.assertRaises(nebula_i.CorruptError):
                nebula_i.Run._load(run, {"version": 7})
            child = os.fork()
            if child == 0:  # a worker of a data loader inherits the run, and must not touch it
                try:
                    run.step(1)
                except nebula_i.StateError:
                    os._exit(0)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            self.assertTrue(run.step(1))
            run.close()
            run.close()
            with self.assertRaises(nebula_i.StateError):
                run.status()

    def test_an_array_that_was_replaced_is_an_exception(self):
        with Folder() as folder:
            model = {"v": zeros(), "w": zeros()}
            with nebula_i.Run(write_job(folder), "a", wait=0, finish=False) as run:
                run.attach(model)
                self.assertTrue(run.step(1))
                model["w"] = array.array("f", [x + 1 for x in model["w"]])
                with self.assertRaises(nebula_i.ShapeError) as caught:
                    run.step(1)
                self.assertIn("'w' was replaced", str(caught.exception))

    def test_an_array_that_was_replaced_late_is_noticed_soon(self):
        """After the first steps the arrays are looked at now and then, and whenever the library copies them."""
        with Folder() as folder:
            model = {"w": zeros()}
            with nebula_i.Run(write_job(folder, interval=1000, drift_steps=100000), "a", wait=0, finish=False) as run:
                run.attach(model)
                for _ in range(101):
                    self.assertTrue(run.step(1))
                model["w"] = array.array("f", [x + 1 for x in model["w"]])
                with self.assertRaises(nebula_i.ShapeError):
                    for _ in range(32):
                        run.step(1)

    def test_a_nan_in_training_is_named(self):
        with Folder() as folder:
            job = write_job(folder)
            other = Site(job, "b", 1.0, steps=4000)
            x = zeros()
            with nebula_i.Run(job, "a", finish=False) as run:
                run.attach({"w": x, "b": zeros(3)})
                x[11] = float("inf")
                with self.assertRaises(nebula_i.NonfiniteError) as caught:
                    for _ in range(4000):
                        run.step(1)
                        time.sleep(0.002)
                self.assertIn("'w'", str(caught.exception))
            other.steps = 0
            other.done()

    def test_the_library_is_missing(self):
        code = "import nebula_i; nebula_i.Run('job.yaml', 'a')"
        for value, said in (("/no/such/library.so", "make build"), (ctypes.util.find_library("c"), "another version")):
            p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TOP / "python",
                               env={**os.environ, "NEBULA_I_LIBRARY": value})
            self.assertEqual(p.returncode, 1)
            self.assertIn("LibraryError", p.stderr)
            self.assertIn(said, p.stderr)

    def test_every_status_has_its_exception(self):
        for code in range(-1, -200, -1):
            name = library.library().neb_status_name(code).decode()
            if name == "NEB_ERR_?":
                break
            self.assertEqual(BY_CODE[code].status, name)
        self.assertEqual(len(BY_CODE), -code - 1)


class Waiting(unittest.TestCase):
    def test_an_interrupt_is_heard_at_the_drift_limit(self):
        with Folder() as folder:
            job = write_job(folder, drift_steps=5)
            code = ("import nebula_i, array, time\n"
                    f"with nebula_i.Run({job!r}, 'a', wait=0) as run:\n"
                    "    run.attach({'w': array.array('f', [0.0] * 9)})\n"
                    "    for i in range(1 << 30):\n"
                    "        run.step(1); time.sleep(0.001); print(i, flush=True)\n")
            p = subprocess.Popen([sys.executable, "-c", code], cwd=TOP / "python", text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
            p.stdout.readline()
            time.sleep(1)
            p.send_signal(signal.SIGINT)
            self.assertIn("KeyboardInterrupt", p.communicate(timeout=30)[1])


class Lent:
    """An object that only speaks DLPack."""

    _new = ctypes.pythonapi.PyCapsule_New
    _new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def __init__(self, values, device=1, bits=32):
        from nebula_i import dlpack

        self.values, self.deleted = values, 0
        self.shape = (ctypes.c_int64 * 1)(len(values))
        self.deleter = dlpack._DELETER(self.delete)
        self.managed = dlpack._Managed()
        t = self.managed.tensor
        t.data, t.device_type, t.ndim = values.buffer_info()[0], device, 1
        t.type_code, t.type_bits, t.type_lanes = 2, bits, 1
        t.shape = ctypes.cast(self.shape, ctypes.POINTER(ctypes.c_int64))
        self.managed.deleter = self.deleter

    def delete(self, managed):
        self.deleted += 1

    def __dlpack__(self, **options):
        return self._new(ctypes.addressof(self.managed), b"dltensor", None)


class DLPack(unittest.TestCase):
    def test_lent_values_are_read_written_and_given_back(self):
        from nebula_i.slots import host_slot

        lent = Lent(array.array("f", range(10)))
        slot = host_slot("w", lent)
        room = (ctypes.c_float * 3)()
        slot.read(4, 3, ctypes.addressof(room))
        self.assertEqual(list(room), [4, 5, 6])
        slot.write(0, 3, ctypes.addressof(room))
        self.assertEqual(list(lent.values[:4]), [4, 5, 6, 3])
        self.assertEqual(lent.deleted, 0)
        del slot
        self.assertEqual(lent.deleted, 1)

    def test_what_cannot_be_reached_is_refused(self):
        from nebula_i.slots import host_slot

        with self.assertRaises(nebula_i.UnsupportedError):
            host_slot("w", Lent(zeros(), device=2))
        with self.assertRaises(nebula_i.DtypeError):
            host_slot("w", Lent(zeros(), bits=16))

        class Immutable:
            def __dlpack__(self, **options):
                raise BufferError("read-only")

        with self.assertRaises(nebula_i.UnsupportedError) as caught:
            host_slot("w", Immutable())
        self.assertIn("copy in NumPy", str(caught.exception))
        Immutable.__module__ = "jaxlib._jax"
        with self.assertRaises(nebula_i.DtypeError) as caught:
            host_slot("w", Immutable())
        self.assertIn("host = {name: numpy.array(value)", str(caught.exception))
        with self.assertRaises(nebula_i.DtypeError) as caught:
            host_slot("w", {"b": zeros()})
        self.assertIn("'w.weight'", str(caught.exception))


if __name__ == "__main__":
    if not pathlib.Path(NEBULA).exists():
        sys.exit(f"{NEBULA} is not there: build first, or set NEBULA")
    unittest.main()
