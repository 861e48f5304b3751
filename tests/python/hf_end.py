"""A site with a Hugging Face Trainer that ends by its steps: `hf_end.py SITE MAX_STEPS`. Prints one line of JSON."""

import hashlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
import transformers

import nebula_i
from nebula_i.hf import NebulaCallback

site, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(3)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2))
args = transformers.TrainingArguments(output_dir=f"out-{site}", per_device_train_batch_size=4, gradient_accumulation_steps=2,
                                      max_steps=steps, report_to=[], learning_rate=1e-2, logging_strategy="no",
                                      save_strategy="no", use_cpu=True, disable_tqdm=True)
with nebula_i.Run("job.yaml", site) as run:
    rows = [{"input_ids": (torch.arange(32) * (i % 7 + 1)) % 64, "labels": (torch.arange(32) * (i % 7 + 1)) % 64}
            for i in range(4000) if i % len(run.sites) == run.site_index]
    trainer = transformers.Trainer(model=model, args=args, train_dataset=rows, callbacks=[NebulaCallback(run)])
    trainer.train()
    values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(json.dumps({"ended": run.ended, "steps": run.steps, "tokens": run.tokens, "root": run.status()["root"],
                      "model": hashlib.sha256(values).hexdigest()}), flush=True)
