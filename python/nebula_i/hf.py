"""A callback that makes a Hugging Face Trainer one of the sites of a run.

    args = TrainingArguments(…)  # before the run, so that the processes of a site know which one each is
    with nebula_i.Run("job.yaml", site="a") as run:
        trainer = Trainer(model=model, args=args, train_dataset=dataset.shard(len(run.sites), run.site_index),
                          callbacks=[NebulaCallback(run)])
        trainer.train()

The run ends by tokens or by steps. With `wan.tokens` in the job it ends when all sites together have trained on so many
tokens. A site whose Trainer has made its steps (`max_steps`, or its epochs) makes no more, and waits for the others. When all
have made theirs the run ends, too, with a target or without one. In both cases every site has the same model when `train()`
returns. The log says for whom a site waits.

Every checkpoint folder of the Trainer also keeps the site's own state (nebula_i.pt). `trainer.train(resume_from_checkpoint=
True)` takes it from there.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .errors import ConfigError, InvalidError
from .run import Run

STATE_FILE = "nebula_i.pt"
_SAY = "say how many tokens a step has: NebulaCallback(run, tokens=…)"


class NebulaCallback(TrainerCallback):
    """The callback for one run.

    run     opened, not yet attached
    tokens  of one optimizer step in this process. By default the Trainer counts them: the callback switches its
            `include_num_input_tokens_seen` on

    When the training begins it attaches the Trainer's model. It raises ConfigError for arguments of the Trainer under which
    the sites could not end with one model.
    """

    def __init__(self, run: Run, tokens: Optional[int] = None) -> None:
        if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
            raise InvalidError(f"NebulaCallback(tokens={tokens!r}): not a number of tokens (NEB_ERR_INVALID)")
        self.run, self._tokens, self._seen = run, tokens, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None,
                       **more: Any) -> Any:
        _check(args)
        if self._tokens is None:
            _count_tokens(args, model)
        kept = os.path.join(self._folder(args, state), STATE_FILE)
        saved = torch.load(kept, weights_only=True) if state.global_step and os.path.exists(kept) else None
        self._seen = int(state.num_input_tokens_seen)
        self.run.attach(model, optimizer, state=saved)
        if self.run.ended:
            control.should_training_stop = True
        return control

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if not self.run.step(self._of_step(state)):
            control.should_training_stop = True
        return control

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        folder = self._folder(args, state)
        if self.run.is_gateway and os.path.isdir(folder):
            torch.save(self.run.state_dict(), os.path.join(folder, STATE_FILE))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.run.finish()

    def _of_step(self, state: Any) -> int:
        if self._tokens is not None:
            return self._tokens
        new, self._seen = int(state.num_input_tokens_seen) - self._seen, int(state.num_input_tokens_seen)
        if new <= 0:
            raise ConfigError(f"the Trainer found no tokens in the batches of a step: {_SAY} (NEB_ERR_CONFIG)")
        return new if self.run.is_gateway else 0  # step() adds up the processes; `new` is already the sum

    @staticmethod
    def _folder(args: Any, state: Any) -> str:
        return os.path.join(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")


def _check(args: Any) -> None:
    """Refuses what would make the sites' models differ, or train something else than the run's parameters."""
    for set_, name, why in (
        (getattr(args, "fsdp", None), "fsdp", "a run does not gather sharded parameters yet: use DDP (the Trainer's default)"),
        (getattr(args, "deepspeed", None), "deepspeed", "a run does not gather sharded parameters yet: use DDP (the "
                                                        "Trainer's default)"),
        (getattr(args, "load_best_model_at_end", False), "load_best_model_at_end",
         "every site would take another checkpoint in place of the run's result: evaluate the result instead"),
        (getattr(args, "auto_find_batch_size", False), "auto_find_batch_size",
         "it starts the training again within a run: set per_device_train_batch_size"),
    ):
        if set_:
            raise ConfigError(f"TrainingArguments({name}=…) does not go with a run: {why} (NEB_ERR_CONFIG)")


def _count_tokens(args: Any, model: Any) -> None:
    """The Trainer counts the tokens of all processes of the site, padding included unless the user chose otherwise."""
    if not hasattr(args, "include_num_input_tokens_seen"):
        raise ConfigError(f"this version of transformers does not count tokens: {_SAY} (NEB_ERR_CONFIG)")
    name = getattr(model, "main_input_name", "input_ids")
    if "input_ids" not in name:
        raise ConfigError(f"the model's input is '{name}', which does not hold tokens: {_SAY} (NEB_ERR_CONFIG)")
    if args.include_num_input_tokens_seen in (False, "no"):
        args.include_num_input_tokens_seen = "all"
