"""Tests the Hugging Face Trainer as a site: how a run ends, how tokens are counted, and which arguments are refused.

test_torch.py has a run that ends by tokens, with a PEFT model and a site of two processes.
"""

import json
import os
import pathlib
import subprocess
import sys
import unittest

from sites import Folder, write_job

import torch
import transformers

import nebula_i
from nebula_i.hf import NebulaCallback

HERE = pathlib.Path(__file__).resolve().parent


def start(folder, site, steps):
    return subprocess.Popen([sys.executable, str(HERE / "hf_end.py"), site, str(steps)], cwd=folder, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "NEBULA_LOG": "info"})


class Ends(unittest.TestCase):
    def test_steps_end_the_run_without_a_target_and_before_it(self):
        with Folder() as one, Folder() as two:
            write_job(one)
            write_job(two, tokens=10**9)
            pairs = [[start(folder, site, steps) for site, steps in (("a", 20), ("b", 35))] for folder in (one, two)]
            for p in (p for pair in pairs for p in pair):
                self.addCleanup(p.kill)
            for pair in pairs:
                a, b = (self.said(p) for p in pair)
                self.assertEqual((a["steps"], b["steps"]), (20, 35))
                for site in (a, b):
                    self.assertTrue(site["ended"])
                    self.assertEqual(site["tokens"], site["steps"] * 2 * 4 * 32)  # accumulation, batch, length
                self.assertEqual((a["root"], a["model"]), (b["root"], b["model"]))

    def said(self, p):
        out = p.communicate(timeout=500)[0]
        self.assertEqual(p.returncode, 0, out)
        return json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("{")))


class Pixels(torch.nn.Module):
    main_input_name = "pixel_values"

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, pixel_values):
        return {"loss": self.layer(pixel_values).square().mean()}


class Words(Pixels):
    """A model whose batches have another key than the Trainer counts."""

    main_input_name = "input_ids"


class Refused(unittest.TestCase):
    def train(self, model, tokens=None, **arguments):
        with Folder() as folder:
            args = transformers.TrainingArguments(output_dir=folder, max_steps=3, report_to=[], use_cpu=True, disable_tqdm=True,
                                                  logging_strategy="no", remove_unused_columns=False,
                                                  **{"save_strategy": "no", **arguments})
            with nebula_i.Run(write_job(folder), "a", wait=0, finish=False) as run:
                rows = [{"pixel_values": torch.ones(4)}] * 40
                trainer = transformers.Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows,
                                               callbacks=[NebulaCallback(run, tokens)])
                with self.assertRaises(nebula_i.ConfigError) as caught:
                    trainer.train()
                self.assertEqual(run.steps, 0)
                return str(caught.exception)

    def test_arguments_that_would_give_every_site_its_own_model(self):
        said = self.train(Pixels(), 4, load_best_model_at_end=True, save_strategy="steps", eval_strategy="steps", save_steps=1,
                          eval_steps=1)
        self.assertIn("load_best_model_at_end", said)
        self.assertIn("per_device_train_batch_size", self.train(Pixels(), 4, auto_find_batch_size=True))

    def test_tokens_that_nobody_can_count(self):
        self.assertIn("tokens=", self.train(Pixels()))
        self.assertIn("found no tokens", self.train(Words()))
        for tokens in (0, -1, True, 1.5):
            with self.assertRaises(nebula_i.InvalidError):
                NebulaCallback(None, tokens)


if __name__ == "__main__":
    unittest.main()
