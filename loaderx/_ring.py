"""The engine's pipeline and the slots that go round between it and the consumer."""

import base64
import json
import math
import os
import sys
import threading
import time
import weakref
from collections import deque

import numpy as np

from . import _engine
from ._feed import here, stale
from ._slots import Memory, Slot
from .collate import Flat, Pad
from .dataset import DenseDataset, RaggedDataset
from .errors import ArgumentError, ClosedError, OutOfMemoryError

__all__ = ["Ring", "Stream"]

# The engine's numbers.
_GROW, _END, _LATER = 1, 2, 3
_DENSE, _PAD, _FLAT = 0, 1, 2

#: How long `close` waits for the engine to let go of the memory. It takes as long as copying a
#: few records does, unless the disk has stopped answering.
_PATIENCE_SECONDS = 10.0

#: The memory of pipelines that have not been seen to end, by their numbers, with a weak reference
#: to the ring. It must not be freed, whatever an exception of a signal handler cut short.
_running = {}


class Stream:
    """What the engine and a slot need to know about a stream.

    Parameters
    ----------
    name : str
    source : DenseDataset, Pad or Flat
    most : int
        Records of the largest step.
    """

    def __init__(self, name, source, most):
        self.name = name
        self.kind = {DenseDataset: _DENSE, Pad: _PAD, Flat: _FLAT}[type(source)]
        dataset = source if self.kind == _DENSE else source.dataset
        self.store, self.path = dataset.store, dataset.path
        self.dtype, self.item_shape = dataset.dtype, dataset.item_shape
        self.row_bytes = math.prod(self.item_shape) * self.dtype.itemsize
        self.width = (source.max_len or 0) if self.kind == _PAD else 0
        self.filler = source._filler if self.kind == _PAD else b""
        self.truncate = self.kind == _PAD and source.truncate
        self.second = None if self.kind == _DENSE else name + source.suffix
        # Ragged batches begin with room for one row a record and grow to what they need.
        self.data_bytes = most * self.row_bytes * (self.width or 1)
        self.aux_bytes = 0 if self.kind == _DENSE else 8 * (most + 1)

    @staticmethod
    def takes(source):
        """Whether the engine can read a stream by itself."""
        if type(source) in (Pad, Flat):
            dataset, kind = source.dataset, RaggedDataset
        else:
            dataset, kind = source, DenseDataset
        # A subclass may read otherwise.
        return type(dataset) is kind and dataset._row_bytes > 0

    def config(self):
        return {
            "Name": self.name,
            "Path": str(self.path),
            "Store": self.store._id(),
            "Kind": self.kind,
            "RowBytes": self.row_bytes,
            "Width": self.width,
            "Truncate": self.truncate,
            "Filler": base64.b64encode(self.filler).decode(),
        }

    def entries(self, i, slot, n):
        """Yield name and array of what a slot holds of this stream."""
        if self.kind == _DENSE:
            yield self.name, slot.view(2 * i, self.dtype, (n, *self.item_shape))
            return
        rows = slot.words[6 + 4 * i]
        shape = (n, rows, *self.item_shape) if self.kind == _PAD else (rows, *self.item_shape)
        yield self.name, slot.view(2 * i, self.dtype, shape)
        yield self.second, slot.view(2 * i + 1, np.int64, (n if self.kind == _PAD else n + 1,))


class Ring:
    """A running pipeline of the engine, and the memory it fills.

    Safe to use from many threads, and each step is asked for by one of them.

    Parameters
    ----------
    sources : dict
        Names to streams that `Stream.takes`.
    plan : Plan
    step : int
        The first step.
    workers : int
        Goroutines.
    ahead : int
        Steps begun before they are asked for.
    held : int
        Slots that consumers have in hand as a rule. With more, batches get new memory.
    output : Output
    indices : str or None
        Name of an additional array with the records' numbers.
    """

    def __init__(self, sources, plan, step, workers, ahead, held, output, indices=None):
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._output, self._indices = output, indices
        self._held, self._taking = held, 0
        self._taken = deque()  # slots that consumers have, the first one delivered first
        self._id, self._library = 0, _engine.lib
        most = plan.most
        self._streams = [Stream(name, source, most) for name, source in sources.items()]
        self._fixed = None if plan.once else most
        count = ahead + held + (ahead == 0)
        size = sum(s.data_bytes + s.aux_bytes for s in self._streams) + 8 * most
        needs = f"{count} batches of {size} bytes, for batch_size {plan.batch_size}"
        if count * size > sys.maxsize:
            raise ArgumentError(f"no machine has memory for {needs}")
        memory = Memory(output.memory, count, again=not output.pinned)
        try:
            self._slots = [Slot(k, self._streams, most, memory) for k in range(count)]
        except MemoryError as exc:
            raise OutOfMemoryError(f"no memory for {needs}") from exc
        config = {
            "Plan": plan.config(),
            "Step": step,
            "Streams": [stream.config() for stream in self._streams],
            "Workers": workers,
            "Ahead": ahead,
            "Slots": count,
        }
        raw = np.frombuffer(json.dumps(config).encode(), np.uint8)
        library = self._library = _engine.lib
        _sweep(library)
        number = _engine.check(library.HandleReserve())
        _running[number] = weakref.ref(self), self._slots
        self._id = number
        try:
            _engine.check(library.PipeOpen(number, _engine.address(raw), raw.size))
            for slot in self._slots:
                _engine.check(self._library.PipeGive(self._id, slot.number, slot.words_address))
        except BaseException:
            self.close()
            raise

    def take(self, step):
        """Return a step's batch; None past the last step.

        After an exception that is no `ZrecordError`, Ctrl-C above all, the ring must be closed:
        a slot may be lost on the way.
        """
        slots, library, this = self._slots, self._library, self._id
        if self._pid != here.pid:
            raise stale()
        if not this:
            raise ClosedError("the loader is closed")
        with self._lock:
            given = self._recycled()
            self._taking += 1
        try:
            number, address = (-1, 0) if given is None else (given.number, given.words_address)
            while True:
                status = library.PipeNext(this, step, number, address, _engine.WAIT_MS)
                if status < 0:
                    _engine.check(status)
                number = -1
                outcome = status & 3
                if outcome == _END:
                    return None
                if outcome == _LATER:
                    continue
                slot = slots[(status >> 2) - 1]
                if outcome == _GROW:
                    for i, stream in enumerate(self._streams):
                        if stream.aux_bytes:
                            slot.grow(i, slot.words[6 + 4 * i])
                    number, address = slot.number, slot.words_address
                    continue
                batch = self._shown(slot)
                with self._lock:
                    self._taken.append(slot)
                return batch
        finally:
            with self._lock:
                self._taking -= 1

    def _recycled(self):
        """Return a slot to give back, or None while consumers have none too many."""
        taken = self._taken
        for slot in taken:
            if slot.free:
                taken.remove(slot)
                return slot
        if len(taken) + self._taking < self._held:
            return None
        slot = taken.popleft() if taken else None
        if slot is not None:
            slot.renew()
        return slot

    def _shown(self, slot):
        """Make the arrays of a batch."""
        n = self._fixed
        if n is None:
            n = slot.words[1]
        batch = {}
        for i, stream in enumerate(self._streams):
            if stream.kind == _DENSE:
                batch[stream.name] = slot.view(2 * i, stream.dtype, (n, *stream.item_shape))
            else:
                batch.update(stream.entries(i, slot, n))
        if self._indices:
            batch[self._indices] = slot.view("indices", np.int64, (n,))
        return self._output.batch(batch)

    def stop(self):
        """Make `take` raise in every thread, soon; waits for nothing."""
        this = self._id
        if this and self._pid == os.getpid():
            self._library.PipeStop(this)

    def close(self):
        """Stop, and return when the engine touches none of the memory. Idempotent.

        An interrupted call may be made again.
        """
        this, library = self._id, self._library
        if self._pid != os.getpid():
            return
        _sweep(library)
        if not this:
            return
        library.PipeStop(this)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not library.HandleClose(this, _engine.WAIT_MS):
            if time.monotonic() > deadline:
                return  # the memory stays in _running
        _running.pop(this, None)
        self._id = 0


def _sweep(library):
    """Close pipelines of rings that are gone, whose closing was interrupted."""
    for number, (ring, _slots) in list(_running.items()):
        if ring() is None and library.HandleClose(number, _engine.WAIT_MS):
            _running.pop(number, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # the parent's numbers mean nothing there
