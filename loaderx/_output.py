"""The arrays that a batch consists of, in the library that the user asked for."""

import importlib
import warnings

import numpy as np

from .errors import ArgumentError, DtypeError

__all__ = ["Output"]

_NAMES = ("numpy", "torch", "jax")


class Output:
    """How memory for batches is had and how it is shown.

    Parameters
    ----------
    name : str
        ``"numpy"``, ``"torch"`` or ``"jax"``.
    pin_memory : bool
        Whether the memory is page-locked, for fast copies to a GPU.
    """

    def __init__(self, name, pin_memory):
        if name not in _NAMES:
            raise ArgumentError(f"output must be one of {_NAMES}, got {name!r}")
        self.name, self._pinned = name, False
        if name != "numpy":
            try:
                self._library = importlib.import_module(name)
            except ImportError as exc:
                raise ArgumentError(f"output={name!r} needs {name}, which can't be imported: {exc}") from exc
        if pin_memory and name != "torch":
            raise ArgumentError(f"pin_memory=True needs output='torch', got output={name!r}")
        if pin_memory:
            self._pinned = self._library.cuda.is_available()
            if not self._pinned:
                warnings.warn("pin_memory=True has no effect: torch finds no GPU", stacklevel=4)

    def memory(self, nbytes):
        """Return a new uint8 array of at least that size; batches are views of it."""
        if self._pinned:
            return self._library.empty(nbytes, dtype=self._library.uint8, pin_memory=True).numpy()
        return np.empty(nbytes, np.uint8)

    def check(self, name, dtype):
        """Raise `DtypeError` if the library has no arrays of a stream's dtype."""
        try:
            self.shown(np.zeros(1, dtype))
        except (TypeError, ValueError, AttributeError) as exc:
            raise DtypeError(f"stream {name!r}: {self.name} has no dtype {dtype}: {exc}") from None

    def shown(self, array):
        """Return the library's array over the same memory, where it can share it."""
        if self.name == "numpy":
            return array
        if self.name == "jax":
            # On the CPU jax takes over the memory as it is; either way it holds a reference for
            # as long as it reads from it.
            return self._library.device_put(array)
        torch = self._library
        if array.dtype.type.__module__ == "ml_dtypes":
            # torch's names of these types are the same as those of ml_dtypes.
            dtype = getattr(torch, array.dtype.name)
            return torch.from_numpy(array.view(f"u{array.dtype.itemsize}" if array.dtype.itemsize == 1 else "i2")).view(
                dtype
            )
        return torch.from_numpy(array)

    def batch(self, entries):
        """Convert those values of a dict that are NumPy arrays, or lists of them."""
        if self.name == "numpy":
            return entries
        return {name: self._any(value) for name, value in entries.items()}

    def _any(self, value):
        if isinstance(value, np.ndarray):
            return self.shown(value)
        if isinstance(value, list):
            return [self._any(item) for item in value]
        return value
