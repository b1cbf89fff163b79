"""Endless batches of several streams, in the order of their steps."""

import os
import threading
import weakref
from collections.abc import Mapping

from ._feed import Feed
from .errors import ArgumentError, ClosedError
from .sampler import Sampler, _integer

__all__ = ["DataLoader"]


class DataLoader:
    """An endless stream of batches, prepared ahead by threads and delivered in order.

    A batch is a dict of one array per stream, all for the same records. Which records step k
    holds depends on (seed, step, batch_size, mode, number of records) alone, never on
    `num_workers`, `prefetch_size` or which thread is faster.

    Parameters
    ----------
    streams : mapping of str to dataset
        Each has a length and ``__getitems__(indices)``, which must be safe to call from
        several threads, as it is for `loaderx.dataset.DenseDataset`. All have one length.
    num_workers : int
        Threads that read and transform, 0 to 1024. With 0 that happens inside `next`.
    batch_size : int
        Records in a batch.
    prefetch_size : int
        Batches prepared ahead of the consumer, at least 1. Every worker may be at work on one
        batch, so that up to ``max(prefetch_size, num_workers)`` exist.
    mode : loaderx.sampler.Mode or int
        SEQUENTIAL (0), IID (1) or CYCLIC (2), see `loaderx.sampler.Sampler`.
    seed : int
        Seed of the order.
    transform : callable, optional
        Takes the batch and returns what `next` returns. Runs in the workers, several batches
        at once.

    Attributes
    ----------
    streams : dict
        The streams; the loader does not close them.
    num_workers, batch_size, prefetch_size, mode, seed, transform
        As given, `mode` as a `Mode`.

    Raises
    ------
    ArgumentError
        A value that is not allowed; no streams, an empty or malformed one, unequal lengths.
    DtypeError
        Not an integer.

    Notes
    -----
    What a transform or a read raises, the matching `next` raises, with its traceback; all
    earlier batches come first. The loader is closed then, as its next batch would not be what
    the step says.

    Safe to use from many threads: each batch goes to one of them. `close` may be called from
    any thread and from the transform. A loader that nobody refers to closes itself, unless its
    transform refers to it: then close it. In a forked child it goes on at the step it had, with new threads.
    Pickles as its arguments and that step, if streams and transform can.

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
    ):
        self.streams, length = _checked(streams)
        self.num_workers = _integer("num_workers", num_workers, 0, 1024)
        self.prefetch_size = _integer("prefetch_size", prefetch_size, 1, 1 << 20)
        if transform is not None and not callable(transform):
            raise ArgumentError(f"transform must be callable or None, got {transform!r}")
        self.transform = transform
        sampler = Sampler(length, batch_size, mode, seed)
        self.batch_size, self.mode, self.seed = sampler.batch_size, sampler.mode, sampler.seed
        self._start(sampler)

    def _start(self, sampler):
        """Begin to prepare batches at the sampler's step."""
        self._length = sampler.length
        self._feed = Feed(self.streams, self.transform, sampler, self.num_workers, self.prefetch_size)
        # The threads know the feed and the feed not the loader, so the loader can be collected.
        # Not at exit: the feeds see to that themselves.
        weakref.finalize(self, self._feed.stop).atexit = False

    def __next__(self):
        """Return the next step's batch.

        Raises
        ------
        ClosedError
            The loader was closed, perhaps while this call waited.
        """
        feed = self._feed
        if feed.pid != os.getpid():
            feed = self._restarted(feed)
        return feed.take()

    def _restarted(self, old):
        """Replace the feed of the parent process, whose threads do not exist in this one."""
        with _restart_lock:
            if self._feed is old:
                if old.closed:
                    raise ClosedError(old.why)
                self._start(self._sampler(old.delivered))
            return self._feed

    def _sampler(self, step):
        sampler = Sampler(self._length, self.batch_size, self.mode, self.seed)
        sampler.seek(step)
        return sampler

    def __iter__(self):
        return self

    def __len__(self):
        raise TypeError("the loader is endless and has no length; take the batches you need, with itertools.islice")

    @property
    def closed(self):
        """Whether the loader is closed."""
        return self._feed.closed

    def close(self):
        """Stop the threads. Idempotent.

        A `next` that waits in another thread raises `ClosedError` at once. A transform that is
        still running is not interrupted: it is waited for, but not for more than two
        seconds, and its result is dropped.
        """
        self._feed.stop()
        self._feed.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __getstate__(self):
        if self.closed:
            raise ClosedError(self._feed.why)
        state = self.__dict__.copy()
        state["_feed"] = self._feed.delivered
        return state

    def __setstate__(self, state):
        step = state.pop("_feed")
        self.__dict__.update(state)
        self._start(self._sampler(step))

    def __repr__(self):
        state = "closed" if self.closed else f"step={self._feed.delivered}"
        return (
            f"DataLoader({list(self.streams)}, records={self._length}, batch_size={self.batch_size}, "
            f"mode=Mode.{self.mode.name}, seed={self.seed}, num_workers={self.num_workers}, {state})"
        )


def _checked(streams):
    """Return the streams as a dict, and their length."""
    if not isinstance(streams, Mapping):
        raise ArgumentError(f"streams must be a mapping of names to datasets, got {type(streams).__name__}")
    streams = dict(streams)
    if not streams:
        raise ArgumentError("streams is empty; name at least one dataset, as in {'image': dataset}")
    lengths = {}
    for name, stream in streams.items():
        missing = [m for m in ("__len__", "__getitems__") if not hasattr(stream, m)]
        if missing:
            raise ArgumentError(f"stream {name!r} ({type(stream).__name__}) has no {' and no '.join(missing)}")
        lengths[name] = len(stream)
    empty = [name for name, n in lengths.items() if n == 0]
    if empty:
        raise ArgumentError(f"streams without records: {empty}")
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"streams must have the same number of records, got {lengths}")
    return streams, lengths[name]


_restart_lock = threading.Lock()


def _after_fork_in_child():
    global _restart_lock
    _restart_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
