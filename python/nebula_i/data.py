"""A site's share of the data: every n-th batch of an order that all sites agree on.

Every site goes through the same batches in the same order. It takes the batches whose number, modulo the number of sites, is
its own place in the roster. The processes of a site divide its batches in the same way, so no site needs to know how many
processes another has. Each process of a site gets the same number of batches (DDP counts on it), so an epoch may leave out
the last few batches, fewer than the site has processes. A sampler that already divides among the processes
(DistributedSampler) keeps doing so.

A DataLoader with a shuffling sampler gets a generator seeded by the epoch, so that the order is the same everywhere. Its
workers then load only this process's batches. Any other iterable is walked through, and the others' batches are dropped.

The run ends at its token target (`wan.tokens`), not at a number of epochs. With a target, one `for batch in share` goes on
epoch after epoch until the run has ended. Without a target it is one epoch.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable, Iterator, Optional

_SEED = 0x6E65


class Share:
    """The batches of process `rank` of the `of` processes of its site. It remembers its place for a checkpoint."""

    def __init__(self, source: Any, run: Any, state: Optional[Dict[str, int]], rank: int = 0, of: int = 1) -> None:
        self._source, self._run = source, run
        self.sites, self.index = len(run.sites), run.site_index
        self._rank, self._of = rank, of
        self.epoch = int((state or {}).get("epoch", 0))
        self._skip = int((state or {}).get("batch", 0)) // of
        self._at = 0
        self.endless = run.has_target

    def state_dict(self) -> Dict[str, int]:
        """The epoch, and how many of its batches for this site were given out."""
        return {"epoch": self.epoch, "batch": self._at * self._of}

    def __len__(self) -> int:
        return self.count(len(self._source))

    def count(self, batches: int) -> int:
        """How many of `batches` belong to this process."""
        return (batches - self.index + self.sites - 1) // self.sites // self._of

    def own(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of this process. Each waits until every process of the site has one."""
        mine = None
        for i, batch in enumerate(batches):
            turn, site = divmod(i, self.sites)
            if site != self.index:
                continue
            if turn % self._of == self._rank:
                mine = batch
            if turn % self._of == self._of - 1:
                yield mine

    def _batches(self) -> Iterator[Any]:
        return self.own(self._source)

    def __iter__(self) -> Iterator[Any]:
        while True:
            self._at, skip, self._skip = 0, self._skip, 0
            for batch in self._batches():
                if self._run.ended:
                    return
                self._at += 1
                if self._at > skip:
                    yield batch
            empty = self._at == 0
            self.epoch += 1
            self._at = 0
            if empty or not self.endless or self._run.ended:
                return

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_source"], name)


class _EveryNth:
    """A batch sampler that leaves the others' batches out before anything is loaded."""

    def __init__(self, inner: Any, share: "LoaderShare") -> None:
        self._inner, self._share = inner, share

    def __iter__(self) -> Iterator[Any]:
        return self._share.own(self._inner)

    def __len__(self) -> int:
        return self._share.count(len(self._inner))


class LoaderShare(Share):
    """A share of a torch DataLoader with a map-style dataset: its sampler skips the others' batches."""

    def __init__(self, loader: Any, *more: Any) -> None:
        super().__init__(loader, *more)
        self._sampler: Any = getattr(loader, "sampler", None)
        self._source = _rebuilt(loader, _EveryNth(loader.batch_sampler, self))

    def __len__(self) -> int:
        return len(self._source)

    def _batches(self) -> Iterator[Any]:
        import torch

        if hasattr(self._sampler, "generator"):
            self._sampler.generator = torch.Generator().manual_seed(_SEED + self.epoch)
        if hasattr(self._sampler, "set_epoch"):
            self._sampler.set_epoch(self.epoch)
        return iter(self._source)


def _rebuilt(loader: Any, batch_sampler: Any) -> Any:
    keep = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
            "generator", "prefetch_factor", "persistent_workers", "pin_memory_device")
    options = {k: getattr(loader, k) for k in keep if hasattr(loader, k)}
    if not options.get("pin_memory_device"):
        options.pop("pin_memory_device", None)
    return type(loader)(loader.dataset, batch_sampler=batch_sampler, **options)


def _divided(loader: Any, torch: Any) -> bool:
    """Whether the loader already gives each process of the site its own batches."""
    samplers = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    return (any(isinstance(s, torch.utils.data.DistributedSampler) for s in samplers)
            or type(loader).__module__.startswith("accelerate."))


def share_of(loader: Any, run: Any, state: Optional[Dict[str, int]], rank: int = 0, of: int = 1) -> Share:
    """The share of any iterable of batches for process `rank` of the `of` processes of this site."""
    torch = sys.modules.get("torch")
    if torch is not None and of > 1 and _divided(loader, torch):
        rank, of = 0, 1
    if torch is not None and type(loader) is torch.utils.data.DataLoader and loader.batch_sampler is not None:
        return LoaderShare(loader, run, state, rank, of)
    return Share(loader, run, state, rank, of)
