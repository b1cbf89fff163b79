"""Memory for batches, used again as soon as nobody refers to it.

All arrays of a batch are views of a slot's owners: tensors, JAX arrays, memoryviews and views
of views included, each refers to the owner in the end. So an owner whose reference count is what
it was when the slot was made is in nobody's hands.
"""

from array import array
from collections import deque
from sys import getrefcount

import numpy as np

from . import _engine

__all__ = ["Memory", "Slot"]

_ALIGN = 64


class _Buffer:
    """One stream's memory in a slot."""

    __slots__ = ("address", "at", "owner", "rest", "size")

    def __init__(self, owner, size):
        self.owner, self.size = owner, size
        start = _engine.address(owner)
        self.at = -start % _ALIGN
        self.address = start + self.at
        self.rest = 0  # which no count is: in use for ever

    @property
    def free(self):
        return getrefcount(self.owner) == self.rest


class Memory:
    """Where buffers come from: new ones, and those that were lent out for longer.

    Not safe for concurrent use; the ring's lock guards it.

    Parameters
    ----------
    new : callable
        Takes a number of bytes and returns a uint8 array.
    keep : int
        How many buffers in the hands of consumers are watched, for each stream, to be used
        again. The consumer owns the others.
    again : bool
        Whether memory is used again at all. References do not tell whether a copy to a GPU,
        which goes on in the background, still reads from it.
    """

    def __init__(self, new, keep, again=True):
        self._new = new
        self._keep = keep if again else 0
        self._again = again
        self._lent = {}

    def buffer(self, size):
        buffer = _Buffer(self._new(size + _ALIGN), size)
        if self._again:
            # Counted in the same way as in `free`, and not in a frame that refers to it, too.
            buffer.rest = getrefcount(buffer.owner)
        return buffer

    def exchange(self, stream, old, size):
        """Return a free buffer of at least that size in place of one that is in use."""
        lent = self._lent.get(stream)
        if lent is None:
            lent = self._lent[stream] = deque(maxlen=self._keep)
        found = None
        for buffer in lent:
            if buffer.size >= size and buffer.free:
                found = buffer
                break
        if found is not None:
            lent.remove(found)
        if not old.free:
            lent.append(old)
        return found if found is not None else self.buffer(size)


class Slot:
    """The memory of one step, and its description in words that the engine reads and writes.

    Parameters
    ----------
    number : int
    streams : list
        Each has ``data_bytes``, ``aux_bytes`` and the position of its entry.
    most : int
        Records of the largest step.
    memory : Memory
    """

    __slots__ = ("_buffers", "_memory", "number", "words", "words_address")

    def __init__(self, number, streams, most, memory):
        self.number = number
        self._memory = memory
        self.words = array("Q", bytes(8 * (3 + 4 * len(streams))))
        self.words_address = _engine.address(self.words)
        self._buffers = {}
        self._set("indices", 8 * most, 2)
        for i, stream in enumerate(streams):
            self._set(2 * i, stream.data_bytes, 3 + 4 * i)
            if stream.aux_bytes:
                self._set(2 * i + 1, stream.aux_bytes, 5 + 4 * i)

    def _set(self, key, size, word):
        self._place(key, self._memory.buffer(size), word)

    def _place(self, key, buffer, word):
        self._buffers[key] = buffer, word
        self.words[word] = buffer.address
        if type(key) is int and not key & 1:
            self.words[word + 1] = buffer.size

    @property
    def free(self):
        """Whether nothing refers to any of the memory."""
        for buffer, _word in self._buffers.values():  # noqa: SIM110 - a generator would hold a reference
            if getrefcount(buffer.owner) != buffer.rest:
                return False
        return True

    def renew(self):
        """Leave the memory that is in use to those who use it, and take other."""
        for key, (buffer, word) in list(self._buffers.items()):
            if not buffer.free:
                self._place(key, self._memory.exchange(key, buffer, buffer.size), word)

    def grow(self, i, size):
        """Make stream i's memory at least that large."""
        buffer, word = self._buffers[2 * i]
        if buffer.size < size:
            # A little more than asked for, so that a slot soon stops growing.
            self._place(2 * i, self._memory.exchange(2 * i, buffer, size + size // 4), word)

    def view(self, key, dtype, shape):
        """Return an array over the memory of an entry, from its beginning."""
        buffer, _word = self._buffers[key]
        return np.ndarray(shape, dtype, buffer.owner, buffer.at)
