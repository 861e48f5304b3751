"""A site's share of the data: every n-th batch of an order that all sites agree on.

Every site goes through the same batches in the same order and takes those whose number, modulo the number of sites, is its
own place in the roster. A DataLoader with a shuffling sampler gets a generator seeded by the epoch, so that the order is
the same everywhere; its workers then load only this site's batches. Any other iterable is walked through, and the others'
batches are dropped.

The run ends at its token target (`wan.tokens`), not at a number of epochs: with a target, one `for batch in share` goes on,
epoch behind epoch, until the run has ended; without one it is an epoch.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterator, Optional

_SEED = 0x6E65


class Share:
    """Iterates over this site's batches; remembers where it is for a checkpoint."""

    def __init__(self, source: Any, run: Any, state: Optional[Dict[str, int]]) -> None:
        self._source, self._run = source, run
        self.sites, self.index = len(run.sites), run.site_index
        self.epoch = int((state or {}).get("epoch", 0))
        self._skip = int((state or {}).get("batch", 0))
        self._at = 0
        self.endless = run.has_target

    def state_dict(self) -> Dict[str, int]:
        """The epoch and how many of this site's batches of it were given out."""
        return {"epoch": self.epoch, "batch": self._at}

    def __len__(self) -> int:
        return (len(self._source) - self.index + self.sites - 1) // self.sites

    def _batches(self) -> Iterator[Any]:
        for i, batch in enumerate(self._source):
            if i % self.sites == self.index:
                yield batch

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
    """A batch sampler that leaves the other sites' batches out before anything is loaded."""

    def __init__(self, inner: Any, share: "LoaderShare") -> None:
        self._inner, self._share = inner, share

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(self._inner):
            if i % self._share.sites == self._share.index:
                yield batch

    def __len__(self) -> int:
        return (len(self._inner) - self._share.index + self._share.sites - 1) // self._share.sites


class LoaderShare(Share):
    """The same over a torch DataLoader with a map-style dataset: the loader itself gets the thinned sampler."""

    def __init__(self, loader: Any, run: Any, state: Optional[Dict[str, int]]) -> None:
        super().__init__(loader, run, state)
        self._sampler = getattr(loader, "sampler", None)
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


def share_of(loader: Any, run: Any, state: Optional[Dict[str, int]]) -> Share:
    """This site's share of any iterable of batches."""
    torch = sys.modules.get("torch")
    if torch is not None and type(loader) is torch.utils.data.DataLoader and loader.batch_sampler is not None:
        return LoaderShare(loader, run, state)
    return Share(loader, run, state)
