"""Memory for results, used again as soon as no tensor refers to it.

Fresh memory is dear: the system zeroes every page of it at the first touch, which takes a
look-up of 32 MB three times as long as the copying.
"""

from collections import OrderedDict

import numpy as np
import torch

from loaderx import _engine
from loaderx._slots import Memory

__all__ = ["Results"]

#: Results that are smaller come from torch's allocator, which has such memory at hand.
_SMALL = 1 << 20

#: Bytes of all memory that is watched; what is larger is never used again.
_MOST = 256 << 20


_NUMPY = {torch.float32: np.dtype("f4"), torch.float64: np.dtype("f8"), torch.float16: np.dtype("f2")}
_NUMPY |= {torch.bfloat16: np.dtype("u2")}


class Results:
    """Where the memory of results comes from.

    Parameters
    ----------
    small, most : int
        Bytes from which on memory is used again, and how many are kept for that.

    Notes
    -----
    Safe to use from many threads. Tensors, views of them, NumPy arrays and storages, each refers to
    the array that owns the memory, so nothing is handed out that somebody still refers to. What
    is kept while nobody uses it is bounded by `most`; the memory in use is its users'.
    """

    def __init__(self, small=_SMALL, most=_MOST):
        self._memory = Memory(lambda size: np.empty(size, np.uint8), 0)
        self._small, self._most = small, most
        self._buffers = OrderedDict()  # a number -> its buffer, the one used longest ago first
        self._next = 0
        self._lock = _engine.Lock()

    def empty(self, shape, dtype):
        """Return a tensor, whose content is undefined, and its memory as the engine takes it best.

        Parameters
        ----------
        shape : tuple of int
        dtype : torch.dtype

        Returns
        -------
        tensor : torch.Tensor
        memory : torch.Tensor or ndarray
            Of the same shape, and of a dtype as wide.
        """
        size = dtype.itemsize
        for length in shape:
            size *= length
        if not self._small <= size <= self._most:
            tensor = torch.empty(shape, dtype=dtype, device="cpu")
            return tensor, tensor
        with self._lock():
            owner, start = self._take(size)
        # As few calls as may be: between two look-ups the processor's caches have lost them all, and each costs
        # microseconds, not the fractions that a loop shows.
        memory = np.ndarray(shape, _NUMPY[dtype], owner, start)
        tensor = torch.from_numpy(memory)
        return (tensor if dtype is not torch.bfloat16 else tensor.view(dtype)), memory

    def _take(self, size):
        for number in reversed(self._buffers):  # the processor's caches may hold the one used last
            buffer = self._buffers[number]
            # Not one far too large: a small result that is kept would keep all of it.
            if size <= buffer.size <= 2 * size and buffer.free:
                self._buffers.move_to_end(number)
                return buffer.owner, buffer.at
        buffer = self._memory.buffer(size)
        # Counted anew each time: a count that is kept goes wrong where an interrupt comes between two steps.
        kept = size + sum(other.size for other in self._buffers.values())
        while self._buffers and kept > self._most:
            kept -= self._buffers.popitem(last=False)[1].size
        self._buffers[self._next] = buffer
        self._next += 1
        return buffer.owner, buffer.at
