"""A callback that makes a Hugging Face Trainer one of the sites of a run.

    args = TrainingArguments(…)  # before the run, so that the processes of a site know which one each is
    run = nebula_i.Run("job.yaml", site="a")
    trainer = Trainer(model=model, args=args, train_dataset=dataset.shard(len(run.sites), run.site_index),
                      callbacks=[NebulaCallback(run)])
    trainer.train()

The run ends the training when its token target is reached. Every checkpoint folder of the Trainer also keeps the site's own
state (nebula_i.pt). `trainer.train(resume_from_checkpoint=True)` takes it from there.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .run import Run

STATE_FILE = "nebula_i.pt"


class NebulaCallback(TrainerCallback):
    """The callback for one run.

    run     opened, not yet attached
    tokens  of one optimizer step in this process. By default the Trainer's own count is used
            (`include_num_input_tokens_seen`: of all processes of the site together), else the samples of a step in this
            process
    """

    def __init__(self, run: Run, tokens: Optional[int] = None) -> None:
        self.run, self._tokens, self._seen = run, tokens, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None,
                       **more: Any) -> None:
        kept = os.path.join(self._folder(args, state), STATE_FILE)
        saved = torch.load(kept, weights_only=True) if state.global_step and os.path.exists(kept) else None
        self._seen = int(getattr(state, "num_input_tokens_seen", 0) or 0)
        self.run.attach(model, optimizer, state=saved)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if not self.run.step(self._of_step(args, state)):
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        folder = self._folder(args, state)
        if self.run.is_gateway and os.path.isdir(folder):
            torch.save(self.run.state_dict(), os.path.join(folder, STATE_FILE))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.run.has_target:
            self.run.wait_for_end()

    def _of_step(self, args: Any, state: Any) -> int:
        if self._tokens is not None:
            return self._tokens
        seen = int(getattr(state, "num_input_tokens_seen", 0) or 0)
        new, self._seen = seen - self._seen, seen
        if new > 0:
            return new if self.run.is_gateway else 0  # step() adds up the processes; `new` is already the sum
        return args.train_batch_size * args.gradient_accumulation_steps

    @staticmethod
    def _folder(args: Any, state: Any) -> str:
        return os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
