"""Where batches come from: the engine's ring, or Python objects that are asked for records."""

import os
import sys
import threading

import numpy as np

from ._feed import ended, enlist, failed, here, not_within, stale
from ._ring import Stream
from ._view import StoreView
from .collate import Flat, Pad
from .errors import ArgumentError, ClosedError, OutOfMemoryError, ZrecordError

__all__ = ["Direct", "EngineSource", "PythonSource", "engine_takes"]


def engine_takes(streams):
    """Whether the engine can read all streams by itself."""
    return all(Stream.takes(source) for source in streams.values())


class PythonSource:
    """Streams of any kind, read by the thread that asks.

    Parameters
    ----------
    streams : dict
    plan : Plan or None
        None for who reads records of its own choice.
    output : Output
    indices : str or None
    """

    def __init__(self, streams, plan, output, indices):
        self._streams, self._plan, self._output, self._indices = streams, plan, output, indices
        if plan is not None:
            _check_memory(plan)

    def begin(self, step):
        """Do nothing: any step can be read at any time."""

    def read(self, step):
        """Return the batch of a step."""
        return self.gathered(self._plan.indices(step), f"step {step}: ")

    def gathered(self, indices, where=""):
        """Return the batch of the records with these numbers."""
        streams = self._streams
        if streams is None:
            raise ClosedError("the loader is closed")
        batch = {}
        for name, stream in streams.items():
            if isinstance(stream, (Pad, Flat)):
                batch[name], batch[name + stream.suffix] = stream._collated(indices, f'{where}stream "{name}": ')
            elif isinstance(stream, StoreView):
                batch[name] = stream.__getitems__(indices)
            else:
                batch[name] = _asked(name, stream, indices)
        if self._indices:
            batch[self._indices] = indices
        return self._output.batch(batch)

    def stop(self):
        """Do nothing: a read of another object can't be interrupted."""

    def close(self):
        """Forget the streams; reading raises `ClosedError` from now on."""
        self._streams = None


def _asked(name, stream, indices):
    """Return what a stream in Python has for these numbers, which it can't change for the others."""
    given = indices.view()
    given.flags.writeable = False
    got = stream.__getitems__(given)
    # Of other objects, a dict or a tuple of arrays for instance, only the transform knows.
    count = len(got) if isinstance(got, list) else (*getattr(got, "shape", (len(indices),)), -1)[0]
    if count != len(indices):
        number = "one that has no first axis" if count < 0 else f"{count} records"
        raise ArgumentError(
            f"stream {name!r} ({type(stream).__name__}) was asked for {len(indices)} records, and returned {number}"
        )
    return got


def _check_memory(plan):
    """Raise now, rather than at the first step, if there is no memory for the indices of one."""
    size = 8 * plan.most
    needs = f"the {size} bytes that a batch's indices take, for batch_size {plan.batch_size}"
    if size > sys.maxsize:
        raise ArgumentError(f"no machine has memory for {needs}")
    try:
        np.empty(size, np.uint8)
    except MemoryError:
        raise OutOfMemoryError(f"no memory for {needs}") from None


class EngineSource:
    """The engine's ring, for threads that transform its batches.

    Parameters
    ----------
    make : callable
        Takes a step and returns a `Ring` that begins with it.
    """

    def __init__(self, make):
        self._make = make
        self._ring = None
        self._stopped = False

    def begin(self, step):
        """Make a ring that begins with a step, in place of the one there was.

        Parameters
        ----------
        step : int
        """
        self.close()
        ring = self._ring = self._make(step)
        if self._stopped:  # by another thread, meanwhile
            ring.close()

    def read(self, step):
        """Return the batch of a step."""
        return self._ring.take(step)

    def stop(self):
        """Make every `read` raise soon."""
        self._stopped = True
        if self._ring is not None:
            self._ring.stop()

    def close(self):
        """Give the memory up once the engine has let go of it."""
        if self._ring is not None:
            self._ring.close()


class Direct:
    """The engine's batches without any Python thread; has the interface of `Feed`.

    Where a signal handler raises in the middle of `take`, the ring may have lost a slot. Then the
    next call makes a new one, which begins with the step that was not delivered.

    Parameters
    ----------
    make : callable
        Takes a step and returns a `Ring` that begins with it.
    step, end : int
        The first step, and the one after the last.
    """

    def __init__(self, make, step, end):
        self.pid = os.getpid()
        self.closed = self.once = False
        self.why = "the loader is closed"
        self.delivered = step
        self._end = end
        self._source = EngineSource(make)
        self._turn = threading.RLock()
        self._whole = False  # whether the ring can be asked for the step `delivered`
        enlist(self)

    def start(self):
        """Begin to prepare batches. Idempotent; one that was interrupted may be called again."""
        with self._turn:
            if not self._whole and not self.closed:
                self._source.begin(self.delivered)
                self._whole = True

    def within(self):
        """Whether this thread is inside `take` or `start`, as a signal handler may be."""
        return self._turn._is_owned()

    def take(self):
        """Return the next step's batch, or close and raise what the step raised."""
        turn, source = self._turn, self._source
        if self.pid != here.pid:
            raise stale()
        if turn._is_owned():
            raise not_within("next")
        given = 0  # the step after the one that is delivered, once it is
        try:
            with turn:
                if self.closed:
                    raise ended(self.why)
                step = self.delivered
                if step >= self._end:
                    raise StopIteration
                if not self._whole:
                    source.begin(step)
                self._whole = False  # until the batch is there
                try:
                    batch = source._ring.take(step)
                except ZrecordError as exc:
                    if self.closed:
                        raise ended(self.why) from None
                    self._end_with(failed(step, exc))
                    raise
                given = self.delivered = step + 1
                self._whole = True
            return batch
        except BaseException:
            if given:
                with turn:
                    if self.delivered == given:  # no later step reached anybody
                        self.delivered, self._whole = given - 1, False
            raise

    def _end_with(self, why):
        if not self.closed:
            self.why = why
        self.closed = True
        self._source.close()

    def stop(self, why=None):
        """Make a `take` that waits raise. Any thread may call it, at any time."""
        if why and not self.closed:
            self.why = why
        self.closed = True
        self._source.stop()

    def release(self):
        """Give up the memory, once the engine has let go of it."""
        self._source.close()

    def join(self, _deadline=None):
        """Release; there are no threads to wait for."""
        self._source.close()
