"""Endless batches of several streams, in the order of their steps."""

import contextlib
import os
import sys
import threading
import weakref

from . import _engine, _state
from ._checks import integer as _integer
from ._feed import Feed, not_within
from ._output import Output, warn_narrowed
from ._plan import Plan
from ._ring import Ring
from ._sources import Direct, EngineSource, PythonSource, engine_takes
from ._streams import INDICES, checked
from .errors import ArgumentError, ClosedError
from .sampler import LAST_STEP, Mode, mode_arg

__all__ = ["DataLoader"]

#: Batches that the consumer has in hand: the last one and the one that takes its place.
_HELD = 2


def _drop(fronts):
    """End fronts without waiting for a running transform."""
    for front in list(fronts):
        front.stop()
        front.release()


class DataLoader:
    """An endless stream of batches, prepared ahead and delivered in order.

    A batch is a dict of one array per stream, all for the same records. Which records step k
    holds depends on (seed, step, batch_size, mode, rank, world_size, number of records) alone,
    never on `num_workers`, `prefetch_size` or which thread is faster.

    Parameters
    ----------
    streams : mapping of str to dataset
        A `DenseDataset`, or a `RaggedDataset` in a `loaderx.collate.Pad` or ``Flat``: read by the
        engine, in Go. Or anything with a length and ``__getitems__(indices)``, which gets a
        read-only array of int64, returns an array or a list of as many records, and must be safe
        to call from several threads: then Python threads read all streams. A bare `RaggedDataset`
        is such a one, whose batches are lists of arrays. All have one length.
    num_workers : int
        Threads that read and transform, 0 to 1024. With 0 that happens inside `next`. Without
        `transform` they are the engine's, and never more than there are processors.
    batch_size : int
        Records in a batch, of this rank.
    prefetch_size : int
        Batches prepared ahead of the consumer, at least 1. Every worker may transform one
        batch, so that up to ``max(prefetch_size, num_workers)`` exist.
    mode : loaderx.sampler.Mode, int or str
        SEQUENTIAL (0, ``"sequential"``), IID (1, ``"iid"``) or CYCLIC (2, ``"cyclic"``), see
        `loaderx.sampler.Sampler`.
    seed : int
        Seed of the order.
    transform : callable, optional
        Takes the batch and returns what `next` returns. Runs in `num_workers` Python threads,
        several batches at once.
    rank, world_size : int
        The part of a distributed run: every step has a global batch of
        ``world_size * batch_size`` records, and each rank gets its own contiguous part. In CYCLIC
        mode with fewer records than that, the parts of a cycle differ in size by at most one.
    step : int
        The step to begin with. There are 2**63 - 1 of them; then `next` raises `StopIteration`.
    output : {"numpy", "torch", "jax"}
        The arrays in a batch. JAX turns numbers of 64 bits into 32, unless ``jax_enable_x64`` is
        set: a `loaderx.errors.PrecisionWarning` names the streams.
    pin_memory : bool
        Page-locked memory for copies to a GPU; with ``output="torch"``. ``tensor.to("cuda",
        non_blocking=True)`` is safe for tensors of the batch and views of them: torch, and not the
        loader, uses such memory again, once the copies from it have ended. What reads from it
        without torch's knowledge needs a reference to the batch until its end.
    indices : bool
        Add ``batch["indices"]``, int64: the numbers of the records.
    records : int, optional
        Use only the first so many of each stream; by default all that there are now. Records that
        are appended later are another run's: it may go on with these by this argument.

    Attributes
    ----------
    streams : dict
        The streams; the loader does not close them.
    num_workers, batch_size, prefetch_size, mode, seed, transform, rank, world_size
        As given, `mode` as a `Mode`.

    Raises
    ------
    ArgumentError
        A value that is not allowed; no streams, an empty or malformed one, unequal lengths.
    DtypeError
        Not an integer.
    OutOfMemoryError
        There is no memory for batches of that size.

    Notes
    -----
    Arrays are writable and the consumer's for as long as anything refers to them: other arrays,
    tensors and views of the same memory, too. After that the memory is used for a later batch,
    which is what makes loading fast; keeping batches costs new memory and nothing else. JAX takes
    over what it can use as it is, and copies the rest.

    What a transform or a read raises, the matching `next` raises, with its traceback; all
    earlier batches come first. The loader is closed then, as its next batch would not be what
    the step says; a new one with ``step=`` goes on.

    Ctrl-C, or whatever else a signal handler raises, ends the call that it comes upon. It closes
    the loader only if it is an `Exception` raised inside a transform or a stream in Python. A
    `next` that is called again returns the step that was under way, read anew where the
    transform may have changed it; a `seek` has arrived or not, as `step` tells; a `close` may be
    repeated, and an epoch is over. No handler can be kept from raising between the return of
    `next` and the caller's assignment (in CPython 3.11, ``for batch in loader`` leaves it no room
    there): that batch counts as delivered, `step` is then one more than the caller's own count,
    and ``loader.seek(count)`` has it delivered again.

    Safe to use from many threads: each batch goes to one of them. `close` may be called from
    any thread and from the transform; `next`, `seek` and `load_state_dict` raise `ZrecordError`
    in the transform or a stream of this loader, and in a signal handler amid one of its calls,
    which they would wait for. A loader that nobody refers to closes itself, unless its
    transform refers to it: then close it. In a forked child it goes on at the step it had, with
    a new ring. Pickles as its arguments and that step, if streams and transform can. At the
    interpreter's exit, `next` ends other threads quietly, with `SystemExit`.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from loaderx.converter import from_numpy
    >>> from loaderx.dataset import DenseDataset
    >>> path = tempfile.mkdtemp()
    >>> from_numpy(path, np.arange(10) * 10)
    10
    >>> with DataLoader({"x": DenseDataset(path)}, batch_size=4, mode=0) as loader:
    ...     [next(loader)["x"].tolist() for _ in range(3)]
    [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90, 0, 10]]
    """

    def __init__(
        self,
        streams,
        num_workers=4,
        batch_size=256,
        prefetch_size=4,
        mode=1,
        seed=42,
        transform=None,
        *,
        rank=0,
        world_size=1,
        step=0,
        output="numpy",
        pin_memory=False,
        indices=False,
        records=None,
    ):
        self.streams, records = checked(streams, indices, records)
        self.num_workers = _integer("num_workers", num_workers, 0, 1024)
        self.prefetch_size = _integer("prefetch_size", prefetch_size, 1, 1 << 16)
        if transform is not None and not callable(transform):
            raise ArgumentError(f"transform must be callable or None, got {transform!r}")
        self.transform = transform
        self.batch_size = _integer("batch_size", batch_size, 1, (1 << 63) - 1)
        self.mode = mode_arg(mode)
        self.seed = _integer("seed", seed, -(1 << 63), (1 << 64) - 1)
        self.world_size = _integer("world_size", world_size, 1, (1 << 31) - 1)
        self.rank = _integer("rank", rank, 0, self.world_size - 1, f" for world_size {self.world_size}")
        step = _integer("step", step, 0, LAST_STEP)
        self._output = output, bool(pin_memory)
        self._indices = INDICES if indices else None
        plan = Plan(records, self.batch_size, self.mode, self.seed, self.rank, self.world_size)
        _possible(plan)
        self._shown = Output(*self._output)
        if output == "jax":
            warn_narrowed(self.streams)
        self._prepare(plan, step)

    def _prepare(self, plan, step):
        """Make what does not pickle, and begin."""
        self._prints = None
        self._sources = self._shown.sources(self.streams)
        self._lock = _engine.Lock(threading.RLock)  # for changing the front
        # Whatever may be running: the front, those of epochs, and old ones whose end was
        # interrupted. None of them knows the loader, so the loader can be collected.
        self._fronts = []
        self._adopt(plan, step)
        try:
            self._front.start()
        except BaseException:
            _drop(self._fronts)
            raise

    def _adopt(self, plan, step):
        """Take another front, which does nothing yet: a signal handler may raise before all know it."""
        front = self._prepared(plan, step)
        self._fronts.append(front)
        self._plan, self._front = plan, front
        return front

    def _prepared(self, plan, step):
        """Return a new front: the object that prepares batches, once started, and hands them over."""
        shown, streams, indices = self._shown, self._sources, self._indices
        end = plan.steps
        if not engine_takes(streams):
            source = PythonSource(streams, plan, shown, indices)
            return Feed(source, self.transform, step, end, self.num_workers, self.prefetch_size, weakref.ref(self))
        threads = self.num_workers if self.transform is not None else 0
        ahead = self.prefetch_size if self.num_workers else 0
        if threads:
            ahead = min(ahead, 2)  # the threads have batches of their own in hand
        workers = self.num_workers

        def make(step):
            return Ring(streams, plan, step, workers, ahead, threads + _HELD, shown, indices)

        if self.transform is None:
            return Direct(make, step, end)
        source = EngineSource(make)
        return Feed(source, self.transform, step, end, threads, self.prefetch_size, weakref.ref(self))

    def __next__(self):
        """Return the next step's batch.

        Raises
        ------
        ClosedError
            The loader was closed, perhaps while this call waited.
        """
        front = self._front
        if front.pid != os.getpid():
            front = self._forked(front)
        return front.take()

    def _forked(self, old):
        """Replace the front of the parent process, whose threads do not exist in this one."""
        with self._lock():
            if self._front is old:
                if old.closed:
                    raise ClosedError(old.why)
                self._adopt(self._plan, old.delivered)
            return self._front

    def __iter__(self):
        return self

    def __bool__(self):
        return True  # not by the length, which there is none of

    def __len__(self):
        raise TypeError(
            "the loader is endless and has no length; take the batches you need, with itertools.islice, or one pass, "
            "with epoch(). For torch.utils.data.DataLoader there is loaderx.torch.IterableLoader"
        )

    @property
    def records(self):
        """How many records of each stream are used: those it had when the loader was made, or as given."""
        return self._plan.records

    # ---- position -------------------------------------------------------------------------

    @property
    def step(self):
        """The step that `next` returns next."""
        return self._front.delivered

    def seek(self, step):
        """Go to a step of the run that these arguments describe, whatever was loaded before.

        Parameters
        ----------
        step : int
            From 0 on. Costs the same wherever it is.
        """
        step = _integer("step", step, 0, LAST_STEP)
        self._move("seek", self._plan.restarted(), step)

    def state_dict(self):
        """Return what a new loader needs to go on exactly here, as plain JSON values.

        It holds the step that `next` would return, the same on every rank: batches that were
        prepared and not delivered are not lost.

        Returns
        -------
        dict
        """
        return _state.save(self._plan, self._front.delivered, self._fingerprints())

    def load_state_dict(self, state):
        """Go on where another loader of the same streams, mode and seed was.

        Parameters
        ----------
        state : dict
            From `state_dict`, perhaps by way of JSON. With the same global batch
            (``world_size * batch_size``) the run continues bit for bit, however it is split. With
            another one it goes on at the same sample of the global order, and steps keep
            counting: exactly in SEQUENTIAL and IID mode, and in CYCLIC mode up to the remainder
            that is dropped at the end of each cycle, whose size depends on the global batch.

        Raises
        ------
        ArgumentError
            The state is of another run, or none; the message says what is wrong. The loader
            stays where it is. The run on a store that has grown since goes on in a loader with
            ``records=`` the number that it used.
        """
        plan, step = _state.check(state, self._plan, self._fingerprints())
        self._move("load_state_dict", plan, step)

    def _fingerprints(self):
        if self._prints is None:
            records = self._plan.records
            self._prints = {name: _state.fingerprint(stream, records) for name, stream in self._sources.items()}
        return self._prints

    def _move(self, name, plan, step):
        lock = self._lock()
        if lock._is_owned() or self._front.within():
            raise not_within(name)
        with lock:
            if self._front.closed:
                raise ClosedError(self._front.why)
            front = self._adopt(plan, step)
            for old in list(self._fronts):
                # Also one of an earlier call that was interrupted, and epochs go on.
                if old is not front and (old.closed or not old.once):
                    old.stop("the loader went to another step meanwhile")
                    old.join()
                    self._fronts.remove(old)
        front.start()

    def epoch(self):
        """Yield one pass over the records in their order, the short last batch included.

        For evaluation. Independent of the endless stream, of `mode` and `step`. The last global
        batch is split among the ranks as evenly as possible; a rank that would get nothing of
        it makes one step less.

        Yields
        ------
        dict
            As from `next`, with up to `batch_size` records.
        """
        if any(front.within() for front in list(self._fronts)):
            raise not_within("epoch")
        if self.closed:
            raise ClosedError(self._front.why)
        return self._pass()

    def _pass(self, ending=sys.is_finalizing):
        front = self._passing(0)
        try:
            while True:
                if front.pid != os.getpid():  # the threads of the parent do not exist here
                    if front.closed:
                        raise ClosedError(front.why)
                    front = self._passing(front.delivered)
                try:
                    batch = front.take()
                except StopIteration:
                    return
                yield batch
                del batch  # or its memory could not be used for the next
        finally:
            if not ending():  # then modules may be gone, and all fronts have been stopped
                _drop([front])
                with contextlib.suppress(ValueError):  # the loader went to another step meanwhile
                    self._fronts.remove(front)

    def _passing(self, step):
        """Return a new front that makes one pass."""
        front = self._prepared(self._plan.pass_(), step)
        front.once = True
        self._fronts.append(front)
        return front

    # ---- the end --------------------------------------------------------------------------

    @property
    def closed(self):
        """Whether the loader is closed."""
        return self._front.closed

    def close(self):
        """Stop all threads and free the memory that no batch refers to. Idempotent.

        A `next` that waits in another thread raises `ClosedError` at once. A transform that is
        still running is not interrupted: it is waited for, but not for more than two
        seconds, and its result is dropped.
        """
        fronts = list(self._fronts)
        for front in fronts:
            front.stop()
        for front in fronts:
            front.join()

    def __del__(self, drop=_drop, ending=sys.is_finalizing):
        # Not a `weakref.finalize`, which stays for ever if a signal handler raises as it begins.
        # Once modules are taken down their names are None, and all fronts have been stopped.
        if not ending():
            drop(self.__dict__.get("_fronts", ()))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __getstate__(self):
        if self.closed:
            raise ClosedError(self._front.why)
        state = self.__dict__.copy()
        for name in ("_fronts", "_lock", "_prints", "_shown", "_sources"):
            del state[name]
        state["_front"] = self._front.delivered
        return state

    def __setstate__(self, state):
        step = state.pop("_front")
        self.__dict__.update(state)
        self._shown = Output(*self._output)
        self._prepare(self._plan, step)

    def __repr__(self):
        state = "closed" if self.closed else f"step={self._front.delivered}"
        ranks = f"rank={self.rank}/{self.world_size}, " if self.world_size > 1 else ""
        return (
            f"DataLoader({list(self.streams)}, records={self._plan.records}, batch_size={self.batch_size}, "
            f"mode=Mode.{self.mode.name}, seed={self.seed}, {ranks}num_workers={self.num_workers}, {state})"
        )


def _possible(plan):
    """Raise `ArgumentError` for a plan that some rank could not follow; every rank raises alike."""
    world, records = plan.world_size, plan.records
    if world * plan.batch_size > (1 << 63) - 1:
        raise ArgumentError(f"world_size {world} times batch_size {plan.batch_size} is more than 2**63 - 1")
    if plan.mode == Mode.CYCLIC and records < world:
        raise ArgumentError(f"{records} records can't be shared by world_size {world}: some ranks would have none")
