"""A site's part in a run: joining, stepping, leaving. This file knows arrays and slots; modules.py knows torch."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
import threading
import time
import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import library as lib
from .errors import ConfigError, CorruptError, InvalidError, StateError
from .layers import LayerSlot, is_layer, is_tensor, layer_slots
from .slots import Look, Slot, check_finite, host_slot, mapping_slots

_PATIENCE = 0.2  # seconds in the library at a time, so that Ctrl-C is heard
_EXIT_PATIENCE = 10  # seconds that the interpreter's exit waits for a daemon thread to come back from the library
_LOOK_FIRST, _LOOK_EVERY = 64, 32  # steps before which all parameters are checked; the library copies only after a check
_STATE_VERSION = 1

PathLike = Union[str, "os.PathLike[str]"]


class Run:
    """This process as one site of a run on several sites.

    job       the run's job file; the package uses its sections `sites:` and `wan:`. None: as NEBULA_JOB says
    site      which of the job's sites this is. None: as NEBULA_SITE says; `nebula-i lab JOB -- COMMAND` sets both
    wait      how many seconds `attach()` waits for the other sites; then this one goes on alone
    settings  changes to the job, as {"wan.interval": 50}
    finish    at a clean end of the `with` block call `finish()`, so that the parameters are the run's result. After an
              exception the site leaves at once; it can come back later.

    A run that is still open when the interpreter exits leaves then, as `close()` does.
    """

    def __init__(self, job: Optional[PathLike] = None, site: Optional[str] = None, *, wait: float = 20.0,
                 settings: Optional[Mapping[str, Any]] = None, finish: bool = True) -> None:
        self._handle: Optional[ctypes.c_void_p] = None
        self._pid = os.getpid()
        # The library takes one call at a time. A signal handler may close the run within a call: in a callback's Python code.
        self._lock = threading.RLock()
        self._inside, self._leaving = 0, False
        self._slots: Sequence[Slot] = []
        self._look = Look([])  # before each call in which the library may copy: where the values are now
        self._started = False
        self._failure: Optional[BaseException] = None
        self._wait, self._finish = wait, finish
        self._team: Any = None  # the processes of this site, where there are several (modules.Team)
        self._loader: Any = None
        self._shared: Any = None  # what the gateway told the other processes of its site (_facts)
        self.ended = False
        self.changed = False
        self.tokens = 0
        self.steps = 0
        self._here = 0  # steps of this process
        self._due = ctypes.c_bool()
        self._due_at = ctypes.byref(self._due)
        self._job = None if job is None else os.fsencode(job)
        self._site_name = None if site is None else site.encode()
        self._settings = dict(settings or {})
        self._read, self._write = lib.COPY(self._on_read), lib.COPY(self._on_write)
        if _processes()[0] == 0:  # only the first process of a site talks to other sites
            self._open()

    def _open(self) -> None:
        words = [f"{k}={_word(v)}".encode() for k, v in self._settings.items()]
        array = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        handle = ctypes.c_void_p()
        with self._lock:
            _OPEN.add(self)
            lib.check(lib.library().neb_session_open_job(self._job, self._site_name, array, ctypes.byref(handle)))
            self._handle = handle

    def _call(self, function: str, *arguments: Any) -> int:
        """One call of the library for this session."""
        with self._lock:
            if self._handle is None:
                raise StateError("the run was closed (NEB_ERR_STATE)")
            self._inside += 1
            try:
                return getattr(lib.library(), function)(self._handle, *arguments)
            finally:
                self._inside -= 1
                if self._leaving and not self._inside:
                    self._release()

    # ---- joining ---------------------------------------------------------------------------------------------------

    def attach(self, model: Any, optimizer: Any = None, dataloader: Any = None, *,
               masters: Optional[Mapping[str, Any]] = None, state: Optional[Mapping[str, Any]] = None) -> Any:
        """Makes the trainable parameters of `model` the run's, and joins the other sites.

        model       a torch module, a Paddle layer, or a dict of float32 arrays by name (NumPy, or anything that speaks DLPack)
        optimizer   the torch or Paddle optimizer that trains it; only the parameters that it trains are sent
        dataloader  a torch DataLoader or any iterable of batches, the same at every site and in all its processes
        masters     fp32 masters by parameter name, if the optimizer trains those instead of a bf16 model
        state       the result of `state_dict()` from this site's last checkpoint

        Returns this process's share of the dataloader (None without one). Afterwards the parameters hold the present
        state of the run. Raises ConfigError if another site trains another model, NonfiniteError, ShapeError, DtypeError.
        """
        self._alive()
        if self._started:
            raise StateError("attach() was called twice: a run trains one model (NEB_ERR_STATE)")
        slots = _slots_of(model, optimizer, masters)
        if not slots:
            raise ConfigError("the model has no parameter to train: is everything frozen? (NEB_ERR_CONFIG)")
        check_finite(slots)
        self._team = _team_of(model, slots)
        self._slots, self._look = slots, Look(slots)
        self._gather()
        if self._handle is not None:
            for i, slot in enumerate(slots):
                self._register(i, slot)
            if state is not None:
                self._load(state)
            self._look()
            self._guarded(self._call("neb_session_start", 0.0))
        self._started = True
        self._meet()
        if self._team is not None:
            self._facts()  # all processes are here; afterwards one may ask without the others
            self._team.share_all()
        if state is not None:
            self.tokens, self.steps = int(state.get("tokens", 0)), int(state.get("steps", 0))
        if dataloader is None:
            return None
        from .data import share_of

        place = (self._team.rank, self._team.size) if self._team is not None else (0, 1)
        self._loader = share_of(dataloader, self, (state or {}).get("data"), *place)
        return self._loader

    def _register(self, index: int, slot: Slot) -> None:
        shape, c = _four(slot.shape), lib.library()
        slot.values.read, slot.values.write, slot.values.arg = self._read, self._write, index
        p = lib.Param(name=slot.name.encode(), ndim=len(shape), shape=(ctypes.c_int64 * 4)(*shape),
                      read=ctypes.cast(c.neb_values_read, ctypes.c_void_p), write=ctypes.cast(c.neb_values_write, ctypes.c_void_p),
                      arg=ctypes.addressof(slot.values))
        lib.check(self._call("neb_session_register", ctypes.byref(p)))

    def _meet(self) -> None:
        """Waits for the other sites and merges their work. Raises their objections as exceptions."""
        if self._handle is not None:
            until = time.monotonic() + self._wait
            while time.monotonic() < until:
                now = self.status()
                if now["halted"] or now["ended"] or now["view"] > 0:
                    break
                time.sleep(0.02)
            self._merge()

    # ---- the library reads and changes values -------------------------------------------------------------------------------

    def _on_read(self, arg: Optional[int], first: int, n: int, address: int, status: Any) -> None:
        self._copy(arg or 0, first, n, address, False, status)

    def _on_write(self, arg: Optional[int], first: int, n: int, address: int, status: Any) -> None:
        self._copy(arg or 0, first, n, address, True, status)

    def _copy(self, index: int, first: int, n: int, address: int, write: bool, status: Any) -> None:
        try:
            slot = self._slots[index]
            slot.check()
            (slot.write if write else slot.read)(first, n, address)
            status[0] = lib.OK
        except BaseException as e:  # an exception cannot cross the library, so it is raised after the call
            self._failure = e

    def _guarded(self, code: int) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        lib.check(code)

    # ---- stepping --------------------------------------------------------------------------------------------------

    def step(self, tokens: int) -> bool:
        """Exchanges work with the other sites. Call it after every optimizer.step().

        tokens  how many tokens this process trained on in this step. They weigh this site's part and count towards the
                run's target (`wan.tokens`).

        Returns True while the run goes on. Returns False when it has ended; then the parameters are its result, without
        the steps that this site has made beyond it. The call takes microseconds unless a round is due. It waits only at the drift limit and at the end. Raises NonfiniteError
        (nothing of the NaN was sent), ShapeError (a parameter is not what was attached), StateError (this site cannot go
        on committing).
        """
        self._alive()
        if not self._started:
            raise StateError("step() was called before attach() (NEB_ERR_STATE)")
        if isinstance(tokens, bool) or not hasattr(tokens, "__index__") or tokens.__index__() < 0:
            raise InvalidError(f"step(tokens): {tokens!r} is not a number of tokens (NEB_ERR_INVALID)")
        if self.ended:
            self._take_result()
            return False
        tokens = tokens.__index__()
        if self._here < _LOOK_FIRST or self._here % _LOOK_EVERY == 0:
            self._look()
        self._here += 1
        self.steps += 1
        if self._team is not None:
            tokens = self._team.sum(tokens)
        self.tokens += tokens
        if self._handle is not None:
            self._count(tokens, self._sharded)
        if self._sharded and self._team.agree(self._due.value)[0]:
            self._gather()
            self._merge()
        if self._team is not None:
            self.changed, self.ended = self._team.agree(self.changed, self.ended)
            if self.changed:
                self._team.share_all()
        return not self.ended

    def _count(self, tokens: int, only: bool) -> None:
        """Counts a step. Only if the library wants to copy parameters, it must know where they are now. only: and no more."""
        self.changed = False
        lib.check(self._call("neb_step_counted", tokens, self._due_at))
        if self._due.value and not only:
            self._merge()

    @property
    def _sharded(self) -> bool:
        return self._team is not None and self._team.sharded

    def _gather(self) -> None:
        """Before the library reads or changes values: the gateway has all of them."""
        if self._sharded:
            self._team.gather()

    def _enter(self) -> None:
        changed, any_change, code = ctypes.c_bool(), False, lib.ERR_AGAIN
        while code == lib.ERR_AGAIN:
            self._look()
            code = self._call("neb_step_within", lib.NO_STEP, _PATIENCE, ctypes.byref(changed))
            any_change = any_change or changed.value
        self.changed = any_change
        if code == lib.ERR_CANCELLED:
            self.ended = True
            return
        self._guarded(code)

    def _merge(self) -> None:
        """As a step, without one."""
        if self._handle is not None:
            self._enter()

    def _take_result(self) -> None:
        self._gather()
        self._merge()
        if self._team is not None:
            self._team.share_all()

    def finish(self, timeout: Optional[float] = None) -> bool:
        """Says that this site makes no more steps, and takes part until the run has ended.

        The run ends at its token target, if it has one, or when every site in reach has called this. The log says for whom
        a site waits. Returns True when the run has ended; then the parameters are its result, the same at every site.
        """
        self._alive()
        if not self._started:
            raise StateError("finish() was called before attach() (NEB_ERR_STATE)")
        if self._handle is not None and not self.ended:
            lib.check(self._call("neb_session_finish"))
        return self.wait_for_end(timeout)

    def wait_for_end(self, timeout: Optional[float] = None) -> bool:
        """Takes part without training until the others have brought the run to its end. Returns True when it has ended."""
        self._alive()
        until = None if timeout is None else time.monotonic() + timeout
        late = False
        self._gather()  # once: no step follows
        while not self.ended and self._started and not late and (self._handle is not None or self._team is not None):
            self._merge()
            late = until is not None and time.monotonic() > until
            if self._team is not None:
                self.changed, self.ended, late = self._team.agree(self.changed, self.ended, late)
                if self.changed:
                    self._team.share_all()
            if not self.ended:
                time.sleep(0.02)
        return self.ended

    # ---- looking ---------------------------------------------------------------------------------------------------

    def status(self) -> Dict[str, Any]:
        """How this site is: record, state root, members, bytes, and where the time went."""
        self._alive()
        if self._handle is None:
            return {"steps": self.steps, "gateway": False}
        size = ctypes.c_size_t(1 << 13)
        while True:
            room = ctypes.create_string_buffer(size.value)
            code = self._call("neb_session_status_json", room, ctypes.byref(size))
            if code == lib.OK:
                return json.loads(room.value)
            if code != lib.ERR_NOSPACE:
                lib.check(code)

    @property
    def is_gateway(self) -> bool:
        """Whether this is the process of its site that talks to other sites."""
        return self._handle is not None

    @property
    def sites(self) -> List[str]:
        """The names of the sites that train, in the roster's order.

        In a site of several processes the gateway tells the others. So before attach() either every process asks, or
        none does.
        """
        return self._facts()[0]

    @property
    def site_index(self) -> int:
        """This site's place in `sites`, which decides its share of the data."""
        return self._facts()[1]

    @property
    def has_target(self) -> bool:
        """Whether the job sets a number of tokens that ends the run (`wan.tokens`)."""
        return self._facts()[2]

    def _facts(self) -> Any:
        """The sites, this one's place, whether there is a target. The gateway knows them and tells the others once."""
        self._alive()
        if self._shared is not None:
            return self._shared
        facts = None
        if self._handle is not None:
            now = self.status()
            facts = [now["sites"], now["sites"].index(now["name"]), now["token_target"] > 0]
        if self._team is not None or (not self._started and _processes()[1] > 1):
            from .modules import same

            facts = self._shared = same(facts)
        if facts is None:
            raise StateError("only the first process of a site knows the other sites: attach a dict of arrays only "
                             "in that one (NEB_ERR_STATE)")
        return facts

    # ---- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """This site's part of a checkpoint, beside the state of the model and of the optimizer.

        It holds plain values (and one uint8 tensor if torch is in use), so torch.save() and
        torch.load(weights_only=True) take it. Give it to `attach(state=…)` when the site comes back. Where the model is
        sharded (fully_shard()), every process of the site must call this; the first one's result is the site's.
        """
        self._alive()
        if self._started:
            self._gather()
        state: Dict[str, Any] = {"version": _STATE_VERSION, "tokens": self.tokens, "steps": self.steps}
        if self._loader is not None and hasattr(self._loader, "state_dict"):
            state["data"] = self._loader.state_dict()
        if self._handle is None or not self._started:
            return state
        size = ctypes.c_size_t()
        lib.check(self._call("neb_session_save", None, ctypes.byref(size)))
        room = bytearray(size.value)
        view = (ctypes.c_char * size.value).from_buffer(room)
        self._look()
        self._guarded(self._call("neb_session_save", view, ctypes.byref(size)))
        del view
        del room[size.value:]  # the room was for the longest state there may be
        torch = sys.modules.get("torch")
        state["session"] = torch.frombuffer(room, dtype=torch.uint8) if torch is not None else bytes(room)
        return state

    def _load(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION or "session" not in state:
            raise CorruptError("attach(state=…): not the result of state_dict() in the site's gateway process "
                               "(NEB_ERR_CORRUPT)")
        blob = state["session"]
        blob = bytes(blob) if isinstance(blob, (bytes, bytearray, memoryview)) else bytes(blob.cpu().numpy().data)
        lib.check(self._call("neb_session_load", blob, len(blob)))

    # ---- leaving ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves at once and tells the others. The site can come back with its checkpoint.

        A call of another thread ends first. In a child of fork() this does nothing: the run is the parent's.
        """
        if self._pid == os.getpid():
            with self._lock:
                if self._inside:
                    self._leaving = True  # _call() releases it
                else:
                    self._release()
        self._pid = -1

    def _release(self) -> None:
        handle, self._handle = self._handle, None
        _OPEN.discard(self)
        if handle is not None:
            lib.library().neb_session_close(handle)

    def _close_at_exit(self) -> None:
        """As close(). The lock is kept, so that a daemon thread's next call waits in silence until the process has gone.

        A daemon thread that stays in the library for long is left there. The library stops its own threads in any case.
        """
        if self._pid == os.getpid() and self._lock.acquire(timeout=_EXIT_PATIENCE):
            self.close()

    def _alive(self) -> None:
        if self._pid == -1:
            raise StateError("the run was closed (NEB_ERR_STATE)")
        if self._pid != os.getpid():
            raise StateError("a run belongs to the process that opened it: a data-loading worker or another child "
                             "cannot use it (NEB_ERR_STATE)")

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            if kind is None and self._finish and self._started and self._pid == os.getpid():
                self.finish()
        finally:
            self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:
            pass


_OPEN: "weakref.WeakSet[Run]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """The interpreter runs this at its exit, when other threads may still run and OpenSSL still works."""
    for run in list(_OPEN):
        run._close_at_exit()


def _word(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _four(shape: Sequence[int]) -> List[int]:
    """At most four dimensions, as the library wants. A scalar is one value; leading dimensions are joined."""
    dims = list(shape) or [1]
    while len(dims) > 4:
        dims[0:2] = [dims[0] * dims[1]]
    return dims


def _is_module(model: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def _slots_of(model: Any, optimizer: Any, masters: Optional[Mapping[str, Any]]) -> Sequence[Slot]:
    if _is_module(model):
        from .modules import module_slots

        return module_slots(model, optimizer, masters)
    if is_layer(model):
        return layer_slots(model, optimizer)
    if isinstance(model, Mapping):
        return mapping_slots(model, _slot_of)
    raise ConfigError(f"attach() takes a torch module, a Paddle layer or a dict of float32 arrays, not a {type(model).__name__} "
                      "(NEB_ERR_CONFIG)")


def _slot_of(name: str, array: Any) -> Slot:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return LayerSlot(name, array) if is_tensor(array) else host_slot(name, array)
    from .modules import TensorSlot

    return TensorSlot(name, array)


def _team_of(model: Any, slots: Sequence[Any]) -> Any:
    if not _is_module(model):
        return None
    from .modules import team_of

    return team_of(slots)


def _processes() -> Tuple[int, int]:
    """The number of this process among those of its site, and how many there are."""
    torch = sys.modules.get("torch")
    d = getattr(torch, "distributed", None)
    if d is None or not d.is_available() or not d.is_initialized():
        return 0, 1
    return d.get_rank(), d.get_world_size()
