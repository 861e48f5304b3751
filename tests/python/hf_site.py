"""One process of a site with a Hugging Face Trainer and a PEFT (LoRA) model: `hf_site.py SITE RANK PORT`.

There are two ranks under torch.distributed, or one process alone (RANK -). The Trainer counts the tokens.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import peft
import torch
import transformers

import nebula_i
from nebula_i.hf import NebulaCallback

site, rank, port = sys.argv[1:]
ranks, backend = (1, None) if rank == "-" else (2, "gloo")
if rank != "-":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(ranks),
                      GLOO_SOCKET_IFNAME="lo")
torch.set_num_threads(1)
torch.manual_seed(3)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2))
model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=True))
args = transformers.TrainingArguments(output_dir=f"out-{site}", per_device_train_batch_size=8, max_steps=5000, report_to=[],
                                      learning_rate=1e-2, logging_strategy="no", save_strategy="steps", save_steps=2,
                                      use_cpu=True, disable_tqdm=True, save_total_limit=1, ddp_backend=backend)
run = nebula_i.Run("job.yaml", site)
rows = [{"input_ids": (torch.arange(32) * (i % 7 + 1)) % 64, "labels": (torch.arange(32) * (i % 7 + 1)) % 64}
        for i in range(4000) if i % len(run.sites) == run.site_index]
transformers.Trainer(model=model, args=args, train_dataset=rows, callbacks=[NebulaCallback(run)]).train()
now = run.status()
assert run.ended and run.is_gateway == (rank != "1"), now
assert run.tokens == run.steps * ranks * 8 * 32, (run.tokens, run.steps)
assert any(pathlib.Path(f"out-{site}").glob("checkpoint-*/nebula_i.pt")), "no state beside the Trainer's checkpoint"
if run.is_gateway:
    torch.save({"root": now["root"], "sent": [s.name for s in run._slots]}, f"{site}.pt")
run.close()
