"""Tests the package with parameters on a device that torch does not know itself, as the torch of an NPU adds it (PrivateUse1).

The memory of that device cannot be read or written from outside (npu/npu.cpp), so a copy by address would end the process.
"""

import json
import sys
import unittest

from sites import Folder, free_port, write_job

import torch
from torch import nn

import nebula_i
import npu_device
from nebula_i.modules import TensorSlot, module_slots
from test_torch import HERE, Bf16, Lora, Site, start


class Npu(unittest.TestCase):
    def test_every_type_and_layout_keeps_fp32(self):
        for host in (torch.zeros(6, 10), torch.zeros(6, 10, dtype=torch.bfloat16), torch.zeros(60).half(), torch.zeros(10, 6).T):
            tensor = host.to("npu")
            self.assertEqual((tensor.device.type, tensor.stride()), ("npu", host.stride()))
            slot = TensorSlot("w", tensor)
            slot.check()
            self.assertIsNone(slot.values.at)  # the library must not copy by address
            self.assertIsNone(slot.stands())
            values = torch.randn(60) * 3
            before = npu_device.copies()
            slot.write(3, 55, values.data_ptr())
            back = torch.full((60,), -7.0)
            slot.read(3, 55, back.data_ptr())
            after = npu_device.copies()
            self.assertTrue(after[0] > before[0] and after[1] > before[1])
            self.assertTrue(torch.equal(back[:55], values[:55]), tensor.dtype)
            self.assertTrue((back[55:] == -7).all())
            self.assertTrue(torch.equal(tensor.cpu().reshape(-1)[3:58], values[:55].to(tensor.dtype)))
            self.assertTrue((tensor.cpu().reshape(-1)[:3] == 0).all())
            self.assertTrue(slot.finite())
            tensor[0] = float("nan")
            self.assertFalse(slot.finite())

    def test_masters_lead_and_the_model_follows(self):
        model = nn.Linear(4, 4).bfloat16().to("npu")
        masters = {n: p.detach().float().clone() for n, p in model.named_parameters()}
        values = torch.randn(16)
        module_slots(model, torch.optim.SGD(list(masters.values()), lr=1), masters)[0].write(0, 16, values.data_ptr())
        self.assertTrue(torch.equal(masters["weight"].cpu().flatten(), values))
        self.assertTrue(torch.equal(model.weight.detach().cpu().flatten(), values.bfloat16()))

    def test_a_model_that_moves_is_an_exception(self):
        with Folder() as folder, nebula_i.Run(write_job(folder), "a", wait=0, finish=False) as run:
            model = nn.Linear(4, 4).to("npu")
            run.attach(model)
            self.assertTrue(run.step(1))
            self.assertIn("session", run.state_dict())
            model.weight.data = model.weight.data.bfloat16()
            with self.assertRaisesRegex(nebula_i.ShapeError, "'weight'"):
                run.step(1)

    def test_runs(self):
        """A site on the device and a site on the host end with the same bits: fp32 with frozen layers, bf16, and two processes."""
        torch.set_num_threads(1)
        with Folder() as one, Folder() as two, Folder() as three:
            write_job(three, tokens=4 * 200)
            port = str(free_port())
            team = [start(three, HERE / "npu_site.py", rank, port) for rank in "01"]
            made = []
            for folder, make in ((one, Lora), (two, Bf16)):
                job = write_job(folder, tokens=16 * 60)
                models = []
                for device in ("npu", "cpu"):
                    torch.manual_seed(5)
                    models.append(make().to(device))
                made.append((models[0].state_dict()["a" if make is Lora else "inner.weight"].cpu().clone(),
                             [Site(job, n, m) for n, m in zip("ab", models)]))
            torch.manual_seed(4)
            alone = nn.Linear(32, 32)
            alone.weight.data = alone.weight.data.T
            untrained = alone.weight.detach().clone()
            with nebula_i.Run(three + "/job.yaml", "b") as run:
                run.attach(alone)
                self.assertTrue(run.wait_for_end(300))
                root = run.status()["root"]
            self.assertFalse(torch.equal(alone.weight.detach(), untrained))
            for before, sites in made:
                for s in sites:
                    s.join(300)
                    self.assertFalse(s.is_alive())
                    if s.error:
                        raise s.error
                a, b = (s.model.state_dict() for s in sites)
                self.assertEqual(sites[0].status["root"], sites[1].status["root"])
                self.assertTrue(all(torch.equal(x.cpu(), b[name]) for name, x in a.items()))
                self.assertFalse(torch.equal(before, a["a" if "a" in a else "inner.weight"].cpu()))
            said = []
            for p in team:
                out = p.communicate(timeout=500)[0]
                self.assertEqual(p.returncode, 0, out)
                said.append(json.loads(out.splitlines()[-1]))
            self.assertEqual([s["gateway"] for s in said], [True, False])
            self.assertTrue(all(s["ended"] for s in said))
            self.assertEqual(said[0]["root"], root)
            for s in said:
                self.assertEqual(s["values"], [p.detach().flatten().tolist() for p in alone.parameters()])


if __name__ == "__main__":
    missing = npu_device.load()
    if missing:
        print(f"python: skipped the tests with a torch device of ours ({missing})", file=sys.stderr)
    else:
        unittest.main()
