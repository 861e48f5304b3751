"""Tests the package with PyTorch: which parameters are sent, types, layouts, shares of the data, changed models.

It also makes real runs of two sites with frozen, bf16 and LoRA models. tests/python/lab_torch.py has the long runs.
"""

import json
import os
import pathlib
import subprocess
import sys
import threading
import unittest

from sites import TOP, Folder, free_port, write_job

import torch
from torch import nn

import nebula_i
from nebula_i.data import share_of
from nebula_i.modules import TensorSlot, module_slots

HERE = pathlib.Path(__file__).resolve().parent


class Lora(nn.Module):
    """A frozen layer and two small matrices that train."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(64, 64)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(4, 64) / 8), nn.Parameter(torch.zeros(64, 4))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class Modules(nn.Module):
    """A model whose own names look like those of wrappers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.module, self.submodule = nn.Linear(2, 2), nn.Linear(2, 2)


class Bf16(nn.Module):
    """Parameters in bf16, arithmetic in fp32: some machines that report bf16 cannot multiply it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64).bfloat16()

    def forward(self, x):
        return nn.functional.linear(x, self.inner.weight.float(), self.inner.bias.float())


def names(model, optimizer=None, masters=None):
    return [s.name for s in module_slots(model, optimizer, masters)]


class Slots(unittest.TestCase):
    def test_only_what_trains(self):
        model = Lora()
        self.assertEqual(names(model), ["a", "b"])
        self.assertEqual(names(model, torch.optim.SGD([model.b], lr=1)), ["b"])
        with self.assertRaises(nebula_i.ConfigError):
            names(model, torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1))

    def test_names_are_the_models_own_whatever_wraps_it(self):
        plain = ["weight", "module.weight", "module.bias", "submodule.weight", "submodule.bias"]
        for wrapped in (Modules(), nn.DataParallel(Modules()), torch.compile(nn.DataParallel(Modules()))):
            self.assertEqual(names(wrapped), plain)
        inner = Modules()
        inner.module, inner.submodule = torch.compile(inner.module), nn.DataParallel(inner.submodule)
        self.assertEqual(names(inner), plain)

        class Added(nn.DataParallel):
            def __init__(self):
                super().__init__(nn.Linear(2, 2))
                self.weight = nn.Parameter(torch.zeros(2))

        with self.assertRaises(nebula_i.ConfigError) as caught:
            names(Added())
        self.assertIn("'weight'", str(caught.exception))

    def roundtrip(self, tensor, copies=()):
        slot = TensorSlot("w", tensor, copies)
        n = tensor.numel()
        values = torch.randn(n) * 3
        room = values.clone()
        slot.write(3, n - 5, room.data_ptr())
        back = torch.full((n,), -7.0)
        slot.read(3, n - 5, back.data_ptr())
        return values, back, slot

    def test_every_type_and_layout_keeps_fp32(self):
        for tensor in (torch.zeros(6, 10), torch.zeros(6, 10, dtype=torch.bfloat16), torch.zeros(60).half(),
                       torch.zeros(10, 6).T, torch.zeros(2, 3, 5, 2).to(memory_format=torch.channels_last)):
            before = tensor.clone()
            values, back, _ = self.roundtrip(tensor)
            self.assertTrue(torch.equal(back[: len(values) - 5], values[: len(values) - 5]), tensor.dtype)
            self.assertTrue((back[-5:] == -7).all())
            flat = tensor.reshape(-1)
            self.assertTrue(torch.equal(flat[3:-2], values[:-5].to(tensor.dtype)))
            self.assertTrue(torch.equal(flat[:3], before.reshape(-1)[:3]))

    @unittest.skipUnless(torch.cuda.is_available(), "torch sees no GPU")
    def test_a_gpu_keeps_fp32(self):
        for tensor in (torch.zeros(6, 10), torch.zeros(6, 10, dtype=torch.bfloat16), torch.zeros(10, 6).T):
            tensor = tensor.cuda()
            values, back, slot = self.roundtrip(tensor)
            self.assertTrue(torch.equal(back[: len(values) - 5], values[: len(values) - 5]), tensor.dtype)
            self.assertTrue(torch.equal(tensor.reshape(-1)[3:-2].cpu(), values[:-5].to(tensor.dtype)))
            self.assertTrue(slot.finite())
        model = nn.Linear(4, 4).bfloat16().cuda()
        masters = {n: p.detach().float().clone() for n, p in model.named_parameters()}
        module_slots(model, None, masters)[0].write(0, 16, values.data_ptr())
        self.assertTrue(torch.equal(masters["weight"].cpu().flatten(), values[:16]))
        self.assertTrue(torch.equal(model.weight.detach().cpu().flatten(), values[:16].bfloat16()))

    def test_bf16_changes_of_the_optimizer_are_seen_in_full(self):
        p = torch.zeros(64, dtype=torch.bfloat16)
        values, _, slot = self.roundtrip(p)
        p += 0.5
        back = torch.zeros(64)
        slot.read(0, 64, back.data_ptr())
        low = values[:59] - values[:59].bfloat16().float()  # the remainder that bf16 could not hold is still there
        self.assertTrue(torch.equal(back[3:62], p[3:62].float() + low))

    def test_masters_lead_and_the_model_follows(self):
        model = nn.Linear(4, 4).bfloat16()
        masters = {n: p.detach().float().clone() for n, p in model.named_parameters()}
        slots = module_slots(model, torch.optim.SGD(list(masters.values()), lr=1), masters)
        values = torch.randn(16)
        slots[0].write(0, 16, values.data_ptr())
        self.assertTrue(torch.equal(masters["weight"].flatten(), values))
        self.assertTrue(torch.equal(model.weight.detach().flatten(), values.bfloat16()))
        with self.assertRaises(nebula_i.ShapeError):
            module_slots(model, None, {"weight": torch.zeros(3)})
        with self.assertRaises(nebula_i.ConfigError):
            module_slots(model, None, {"wieght": torch.zeros(3)})

    def refused(self, error, model, said):
        with self.assertRaises(error) as caught:
            module_slots(model, None, None)
        self.assertIn(said, str(caught.exception))
        self.assertIn(error.status, str(caught.exception))

    def test_what_cannot_train_is_refused(self):
        def only(tensor, **options):
            model = nn.Module()
            model.p = nn.Parameter(tensor, **options)
            return model

        self.refused(nebula_i.DtypeError, nn.Linear(2, 2).double(), "model.float()")
        self.refused(nebula_i.DtypeError, nn.Linear(2, 2, device="meta"), "to_empty")
        self.refused(nebula_i.DtypeError, only(torch.zeros(2, dtype=torch.complex64)), "floating-point")
        self.refused(nebula_i.ShapeError, only(torch.zeros(1).expand(4)), "p.clone()")
        self.refused(nebula_i.UnsupportedError, only(torch.eye(3).to_sparse()), "to_dense")
        freed = only(torch.zeros(4))
        freed.p.untyped_storage().resize_(0)
        self.refused(nebula_i.DtypeError, freed, "no values")
        partitioned = only(torch.zeros(0))  # as ZeRO-3 leaves it
        partitioned.p.ds_numel = 12
        self.refused(nebula_i.UnsupportedError, partitioned, "DistributedDataParallel")

    def test_sharded_models(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.tensor import DTensor

        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cpu", (1,))
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            fully_shard(model, mesh=mesh)
            self.assertIsInstance(model[0].weight, DTensor)
            slot = nebula_i.modules.module_slots(model, None, None)[0]
            self.assertTrue(slot.sharded and slot.finite())
            slot.gather()
            self.assertTrue(torch.equal(slot.whole, model[0].weight.full_tensor()))
            slot.whole += 1
            slot.scatter()
            self.assertTrue(torch.equal(slot.whole, model[0].weight.full_tensor()))
            flat = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
            self.refused(nebula_i.UnsupportedError, flat, "FullyShardedDataParallel")
            with Folder() as folder, nebula_i.Run(write_job(folder), "a", wait=0, finish=False) as run:
                with self.assertRaisesRegex(nebula_i.UnsupportedError, "if the module itself is attached"):
                    run.attach(dict(model.named_parameters()))
                run.attach(model)
        finally:
            torch.distributed.destroy_process_group()


class Attached(unittest.TestCase):
    def attach(self, folder, model, **options):
        run = nebula_i.Run(write_job(folder), "a", wait=0)
        self.addCleanup(run.close)
        run.attach(model, **options)
        return run

    def test_a_parameter_that_changes_is_an_exception(self):
        for change in (lambda m: setattr(m.weight, "data", torch.zeros(5, 5)), lambda m: m.half(),
                       lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True)):
            with Folder() as folder:
                model = nn.Linear(4, 4)
                run = self.attach(folder, model)
                self.assertTrue(run.step(1))
                change(model)
                with self.assertRaises(nebula_i.ShapeError) as caught:
                    run.step(1)
                self.assertIn("'weight'", str(caught.exception))
                run.close()

    def test_a_module_that_was_replaced_is_an_exception(self):
        with Folder() as folder:
            model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
            run = self.attach(folder, model)
            self.assertTrue(run.step(1))
            model[1] = nn.Sequential(nn.Linear(4, 4))
            with self.assertRaises(nebula_i.ShapeError) as caught:
                run.step(1)
            self.assertIn("'1.0.weight' was replaced", str(caught.exception))
            run.close()

    def test_a_replaced_master_or_tensor_of_a_dict_is_an_exception(self):
        model = nn.Linear(4, 4).bfloat16()
        masters = {n: p.detach().float() for n, p in model.named_parameters()}
        given = {"weight": torch.zeros(4, 4)}
        for attached, held, options in ((model, masters, {"masters": masters}), (given, given, {})):
            with Folder() as folder:
                run = self.attach(folder, attached, **options)
                self.assertTrue(run.step(1))
                held["weight"] += 1  # in place: the same tensor
                self.assertTrue(run.step(1))
                held["weight"] = held["weight"] + 1
                with self.assertRaises(nebula_i.ShapeError):
                    run.step(1)
                run.close()

    def test_nan_before_the_first_step(self):
        with Folder() as folder:
            model = nn.Linear(4, 4)
            model.bias.data[1] = float("nan")
            with self.assertRaises(nebula_i.NonfiniteError):
                self.attach(folder, model)

    def test_state_survives_torch_save(self):
        with Folder() as folder:
            model = nn.Linear(4, 4)
            run = self.attach(folder, model)
            run.step(3)
            file = os.path.join(folder, "c.pt")
            torch.save({"run": run.state_dict()}, file)
            run.close()
            state = torch.load(file, weights_only=True)["run"]
            again = self.attach(folder, model, state=state)
            self.assertEqual((again.tokens, again.steps), (3, 1))
            again.close()
            with self.assertRaises(nebula_i.ConfigError):
                self.attach(folder, nn.Linear(5, 5), state=state)


class FakeRun:
    sites, ended, has_target = ["a", "b", "c"], False, False

    def __init__(self, index):
        self.site_index = index


class Shares(unittest.TestCase):
    def test_shares_are_disjoint_and_complete(self):
        data = torch.arange(100)
        for make in (lambda: torch.utils.data.DataLoader(data, 7, shuffle=True), lambda: list(data.split(7))):
            shares = [share_of(make(), FakeRun(i), None) for i in range(3)]
            seen = [[b.tolist() for b in s] for s in shares]
            self.assertEqual(sorted(v for s in seen for b in s for v in b), list(range(100)))
            self.assertEqual([len(s) for s in seen], [len(s) for s in shares])

    def test_the_processes_of_a_site_divide_its_share(self):
        """Sites of two, one and three processes. Each process of a site gets the same number of batches."""
        data = torch.arange(101)
        places = [(site, rank, of) for site, of in enumerate((2, 1, 3)) for rank in range(of)]
        for make in (lambda: torch.utils.data.DataLoader(data, 3, shuffle=True), lambda: list(data.split(3))):
            shares = [share_of(make(), FakeRun(site), None, rank, of) for site, rank, of in places]
            for _ in range(2):
                seen = [[b.tolist() for b in s] for s in shares]
                self.assertEqual([len(s) for s in seen], [6, 6, 11, 3, 3, 3])
                self.assertEqual([len(s) for s in seen], [len(s) for s in shares])
                values = [v for s in seen for b in s for v in b]
                self.assertEqual(len(values), len(set(values)))

    def test_what_divides_among_processes_already_is_not_divided_again(self):
        data = torch.arange(96)
        sampler = lambda rank: torch.utils.data.DistributedSampler(data, num_replicas=2, rank=rank)
        for make in (lambda s: torch.utils.data.DataLoader(data, 4, sampler=s),
                     lambda s: torch.utils.data.DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(s, 4, True))):
            shares = [share_of(make(sampler(rank)), FakeRun(site), None, rank, 2) for site in range(3) for rank in range(2)]
            self.assertEqual(sorted(v for s in shares for b in s for v in b.tolist()), list(range(96)))
        prepared = type("DataLoaderShard", (list,), {"__module__": "accelerate.data_loader"})(range(9))
        self.assertEqual(list(share_of(prepared, FakeRun(1), None, 1, 2)), [1, 4, 7])

    def test_a_share_goes_on_where_the_checkpoint_was(self):
        data = torch.arange(90)
        for of in (1, 2):
            make = lambda state: share_of(torch.utils.data.DataLoader(data, 5, shuffle=True), FakeRun(1), state, of - 1, of)
            whole = make(None)
            first, second = [b.tolist() for b in whole], [b.tolist() for b in whole]
            self.assertNotEqual(first, second)
            half = make(None)
            for i, _ in enumerate(half):
                if i == 1:
                    break
            self.assertEqual(half.state_dict(), {"epoch": 0, "batch": 2 * of})  # of the site
            rest = [b.tolist() for b in make(half.state_dict())]
            self.assertEqual(rest, first[2:])


class Site(threading.Thread):
    def __init__(self, job, name, model):
        super().__init__(daemon=True)
        self.job, self.site, self.model, self.error = job, name, model, None
        self.start()

    def run(self):
        try:
            trained = [p for p in self.model.parameters() if p.requires_grad]
            optimizer = torch.optim.AdamW(trained, lr=1e-2)
            rng = torch.Generator().manual_seed(ord(self.site))
            device = trained[0].device
            with nebula_i.Run(self.job, self.site) as run:
                run.attach(self.model, optimizer)
                more = True
                while more:
                    x = torch.randn(16, 64, generator=rng).to(device)
                    loss = (self.model(x) - x.flip(1)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    more = run.step(16)
                self.status = run.status()
        except BaseException as e:
            self.error = e


def start(folder, script, *words, **environment):
    return subprocess.Popen([sys.executable, str(script), *words], cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env={**os.environ, "NEBULA_LOG": "warn", **environment})


class Runs(unittest.TestCase):
    def test_models_trainers_teams_and_arrays(self):
        torch.set_num_threads(1)
        made = []
        with Folder() as one, Folder() as two, Folder() as three, Folder() as four, Folder() as five:
            # All at once, because the end of a run takes some seconds.
            trainers, team, arrays = self.trainers(three), self.team(four), self.arrays(five)
            for folder, make in ((one, Lora), (two, Bf16)):
                torch.manual_seed(5)
                models = [make()]
                torch.manual_seed(5)
                models.append(make())
                before = {k: v.clone() for k, v in models[0].state_dict().items()}
                job = write_job(folder, tokens=16 * 120)
                made.append((before, [Site(job, n, m) for n, m in zip("ab", models)]))
            for before, sites in made:
                for s in sites:
                    s.join(300)
                    self.assertFalse(s.is_alive())
                    if s.error:
                        raise s.error
                a, b = sites
                self.assertEqual(a.status["root"], b.status["root"])
                for (name, x), y in zip(a.model.state_dict().items(), b.model.state_dict().values()):
                    self.assertTrue(torch.equal(x, y), name)
                    self.assertEqual(torch.equal(x, before[name]), "base" in name, name)
            for p in trainers:
                self.output(p)
            if trainers:
                kept = [torch.load(f"{three}/{n}.pt", weights_only=True) for n in "ab"]
                self.assertEqual(kept[0]["root"], kept[1]["root"])
                self.assertTrue(all("lora" in n for n in kept[0]["sent"]))

            self.check_team([json.loads(self.output(p).splitlines()[-1]) for p in team])
            said = [self.output(p) for p in arrays]
            roots = {line.rsplit(" ", 1)[1] for out in said for line in out.splitlines() if "state root" in line}
            self.assertTrue(not arrays or len(roots) == 1, said)

    def test_sharded_sites(self):
        """Two sites of two processes each under fully_shard(), in fp32 and in bf16, end with the same parameters everywhere."""
        for dtype in ("float32", "bfloat16"):
            with Folder() as folder:
                write_job(folder, tokens=4 * 200)
                ports = {n: str(free_port()) for n in "ab"}
                started = [start(folder, HERE / "shard_site.py", n, r, ports[n], dtype) for n in "ab" for r in "01"]
                said = [json.loads(self.output(p).splitlines()[-1]) for p in started]
            self.assertTrue(all(s["ended"] for s in said))
            self.assertEqual([s["saved"] for s in said], [s["gateway"] for s in said])
            self.assertEqual([s["sum"] for s in said[1:]], 3 * [said[0]["sum"]])

    def output(self, p):
        out = p.communicate(timeout=500)[0]
        self.assertEqual(p.returncode, 0, out)
        return out

    def check_team(self, ranks):
        """Two processes of site a and one of site b end with the same parameters; only gateways talk to other sites."""
        self.assertEqual([r["gateway"] for r in ranks], [True, False, True])
        self.assertTrue(all(r["ended"] for r in ranks))
        self.assertEqual(ranks[0]["root"], ranks[2]["root"])
        self.assertEqual(ranks[0]["sum"], ranks[1]["sum"])
        self.assertEqual(ranks[0]["sum"], ranks[2]["sum"])
        self.assertEqual(ranks[0]["tokens"], ranks[1]["tokens"])
        seen = [x for r in ranks for x in r["seen"]]
        self.assertTrue(all(r["seen"] for r in ranks))
        self.assertEqual(len(seen), len(set(seen)), "two processes trained on the same batch")

    def team(self, folder):
        write_job(folder, tokens=4 * 200)
        return self.three(folder, "team_site.py")

    def arrays(self, folder):
        write_job(folder, tokens=64 * 100)
        try:
            import numpy  # noqa: F401
        except ImportError as e:
            print(f"skipped: the NumPy example ({e})", file=sys.stderr)
            return []
        return [start(folder, TOP / "examples" / "numpy_two_sites.py", SITE=n, PYTHONPATH=str(TOP / "python")) for n in "ab"]

    def trainers(self, folder):
        """A site of two processes and a site of one, with a Hugging Face Trainer and a PEFT model, if these are installed."""
        try:
            import accelerate, peft, transformers  # noqa: F401
        except ImportError as e:
            print(f"skipped: a Trainer with a PEFT model ({e})", file=sys.stderr)
            return []
        write_job(folder, tokens=8 * 32 * 60)
        return self.three(folder, "hf_site.py")

    def three(self, folder, script):
        """Two processes of site a and one of site b."""
        port = str(free_port())
        return [start(folder, HERE / script, *words) for words in (("a", "0", port), ("a", "1", port), ("b", "-", port))]


if __name__ == "__main__":
    unittest.main()
