"""Which records make up a step: sequential, uniform, or shuffled without replacement."""

import os
import threading
from contextlib import suppress
from enum import IntEnum

import numpy as np

from . import _engine
from ._checks import integer
from .errors import ArgumentError, OutOfMemoryError

__all__ = ["Mode", "Sampler"]

#: Batches are drawn ahead in blocks of up to this size. More would help no further, and a
#: batch that is kept keeps its whole block.
_BLOCK_BYTES = 64 << 10

_MAX = (1 << 63) - 1
LAST_STEP = _MAX


class Mode(IntEnum):
    """The order in which records are visited."""

    #: A window of ``batch_size`` slides over the records and wraps at the end.
    SEQUENTIAL = 0
    #: Uniform with replacement: a record may come twice before another comes once.
    IID = 1
    #: A new random order in every cycle over the records, each at most once in a cycle.
    CYCLIC = 2


def mode_arg(value):
    """Return a mode that is given as one, as its number or as its name."""
    if isinstance(value, str):
        try:
            return Mode[value.upper()]
        except KeyError:
            raise ArgumentError(f"mode must be one of {[mode.name.lower() for mode in Mode]}, got {value!r}") from None
    return Mode(integer("mode", value, 0, 2, " (loaderx.sampler.Mode.SEQUENTIAL, IID, CYCLIC, or their names)"))


class _Block(list):
    """Batches drawn ahead, the next one last, and the step that follows them."""

    __slots__ = ("end", "size")

    def __init__(self, start, rows=()):
        super().__init__(rows)
        self.size = len(self)
        self.end = start + self.size


class Sampler:
    """An endless stream of index batches, one for every step.

    A batch is a pure function of (length, batch_size, mode, seed, step), the same on every
    machine; SEQUENTIAL and CYCLIC give the indices that loaderx 0.9.4 gives.

    Parameters
    ----------
    length : int
        Number of records, 1 to 2**63 - 1. Takes no memory.
    batch_size : int
        Indices in a batch, 1 to 2**63 - 1.
    mode : Mode, int or str
        `Sampler.Mode.SEQUENTIAL` (0, ``"sequential"``), `IID` (1, ``"iid"``) or `CYCLIC` (2, ``"cyclic"``).
    seed : int
        From -2**63 to 2**64 - 1; a negative seed is the same as itself plus 2**64. Not used
        by SEQUENTIAL.

    Attributes
    ----------
    length, batch_size, mode, seed
        As given, `mode` as a `Mode`.

    Raises
    ------
    ArgumentError
        A value outside these ranges.
    DtypeError
        Not an integer.

    Notes
    -----
    CYCLIC batches are always full: what is left at the end of a cycle is dropped, and with
    fewer records than `batch_size` every batch is one whole cycle, and so shorter.

    Safe to use from many threads: every batch goes to one of them, and which one is chance.
    Pickles and copies as its arguments and its step; goes on in a forked child.

    Examples
    --------
    >>> sampler = Sampler(10, 4, Sampler.Mode.CYCLIC, seed=42)
    >>> sampler.next()
    array([4, 9, 2, 3], dtype=uint64)
    >>> sampler.next()
    array([0, 7, 8, 5], dtype=uint64)
    >>> sampler.seek(0)
    >>> next(sampler)
    array([4, 9, 2, 3], dtype=uint64)
    """

    Mode = Mode

    def __init__(self, length, batch_size, mode, seed=42):
        self.length = integer("length", length, 1, _MAX)
        self.batch_size = integer("batch_size", batch_size, 1, _MAX)
        self.mode = mode_arg(mode)
        self.seed = integer("seed", seed, -(1 << 63), (1 << 64) - 1)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._per_step = min(self.batch_size, self.length) if self.mode is Mode.CYCLIC else self.batch_size
        self._sequence = (self.length, self.batch_size, int(self.mode), self.seed % (1 << 64))
        self._most = max(1, _BLOCK_BYTES // (8 * self._per_step))
        self._block = _Block(0)

    def next(self):
        """Return the next step's indices.

        Returns
        -------
        ndarray of uint64, shape (batch_size,)
            A new, writable array; in CYCLIC mode of ``min(batch_size, length)`` indices.
        """
        # The whole cost of most calls: `list.pop` is atomic, so no lock is needed here.
        block = self._block
        if block:
            try:
                return block.pop()
            except IndexError:  # another thread took the last one
                pass
        return self._next_block()

    __next__ = next

    def __iter__(self):
        return self

    def _next_block(self):
        with self._guard():
            block = self._block
            while block:  # another thread drew it while this one waited
                with suppress(IndexError):
                    return block.pop()
            # From one batch up to a full block, by doubling: the first comes at once, and who
            # takes a few only does not pay for many.
            count = min(self._most, 2 * block.size or 1)
            block = self._draw(block.end, count)
            batch = block.pop()
            self._block = block
            return batch

    def _draw(self, step, count):
        """Return the batches of `count` steps, or of fewer up to the last step there is."""
        count = min(count, LAST_STEP + 1 - step)
        if count < 1:
            raise ArgumentError(f"the stream ends with step {LAST_STEP}")
        size = count * self._per_step
        try:
            memory = np.empty(size, np.uint64)
        except (ValueError, MemoryError):
            raise OutOfMemoryError(f"no memory for a batch of {self._per_step} indices") from None
        _engine.check(_engine.lib.SamplerFill(*self._sequence, step, count, _engine.address(memory), size))
        if count == 1:
            return _Block(step, [memory])
        return _Block(step, list(memory.reshape(count, -1))[::-1])

    def _guard(self):
        # In a forked child another thread of the parent may hold the lock for ever.
        if self._pid != os.getpid():
            self._lock = threading.Lock()
            self._pid = os.getpid()
        return self._lock

    @property
    def step(self):
        """The step whose batch `next` returns next, from 0."""
        block = self._block
        return block.end - len(block)

    def seek(self, step):
        """Make `step` the next step. Costs the same wherever it is.

        Parameters
        ----------
        step : int
            From 0 to 2**63 - 1.
        """
        step = integer("step", step, 0, LAST_STEP)
        with self._guard():
            self._block = _Block(step)

    def __getstate__(self):
        return {
            "length": self.length,
            "batch_size": self.batch_size,
            "mode": int(self.mode),
            "seed": self.seed,
            "step": self.step,
        }

    def __setstate__(self, state):
        state = dict(state)
        step = state.pop("step")
        self.__init__(**state)
        self.seek(step)

    def __repr__(self):
        return (
            f"Sampler(length={self.length}, batch_size={self.batch_size}, "
            f"mode=Mode.{self.mode.name}, seed={self.seed}, step={self.step})"
        )
