"""One site of a run with a Hugging Face Trainer and a PEFT (LoRA) model; test_torch.py starts two."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import peft
import torch
import transformers

import nebula_i
from nebula_i.hf import NebulaCallback

site = sys.argv[1]
torch.set_num_threads(1)
torch.manual_seed(3)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2))
model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=True))
run = nebula_i.Run("job.yaml", site)
rows = [{"input_ids": (torch.arange(32) * (i % 7 + 1)) % 64, "labels": (torch.arange(32) * (i % 7 + 1)) % 64}
        for i in range(4000) if i % len(run.sites) == run.site_index]
args = transformers.TrainingArguments(output_dir=f"out-{site}", per_device_train_batch_size=8, max_steps=5000, report_to=[],
                                      learning_rate=1e-2, logging_strategy="no", save_strategy="steps", save_steps=25,
                                      use_cpu=True, disable_tqdm=True, save_total_limit=1)
transformers.Trainer(model=model, args=args, train_dataset=rows, callbacks=[NebulaCallback(run, tokens=8 * 32)]).train()
now = run.status()
assert now["ended"], now
assert any(pathlib.Path(f"out-{site}").glob("checkpoint-*/nebula_i.pt")), "no state beside the Trainer's checkpoint"
torch.save({"root": now["root"], "sent": [s.name for s in run._slots]}, f"{site}.pt")
run.close()
