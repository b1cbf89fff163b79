"""The arrays that a batch consists of, in the library that the user asked for."""

import importlib
import warnings

import numpy as np

from . import _engine, dtypes
from ._view import StoreView
from .collate import Flat, Pad
from .errors import ArgumentError, DtypeError, PrecisionWarning

__all__ = ["Output", "warn_narrowed"]

_NAMES = ("numpy", "torch", "jax")


class Output:
    """How memory for batches is had and how it is shown.

    Parameters
    ----------
    name : str
        ``"numpy"``, ``"torch"`` or ``"jax"``.
    pin_memory : bool
        Whether the memory is page-locked, for fast copies to a GPU.

    Attributes
    ----------
    pinned : bool
        Whether it is. Then nobody but torch may use it again: a copy that goes on in the
        background holds no reference, and torch alone knows when it ends. That works for tensors
        that share the storage of one that its allocator made; others over the same memory
        are unknown to it.
    """

    def __init__(self, name, pin_memory):
        if name not in _NAMES:
            raise ArgumentError(f"output must be one of {_NAMES}, got {name!r}")
        self.name, self.pinned = name, False
        self._kinds = {}  # NumPy's dtypes -> torch's
        self._types = {}  # streams that are read as bits -> what torch makes of them
        if name != "numpy":
            try:
                self._library = importlib.import_module(name)
            except ImportError as exc:
                raise ArgumentError(f"output={name!r} needs {name}, which can't be imported: {exc}") from exc
        if pin_memory and name != "torch":
            raise ArgumentError(f"pin_memory=True needs output='torch', got output={name!r}")
        if pin_memory:
            self.pinned = self._library.cuda.is_available()
            if not self.pinned:
                warnings.warn("pin_memory=True has no effect: torch finds no GPU", stacklevel=4)

    def memory(self, nbytes):
        """Return a new uint8 array of at least that size; batches are views of it."""
        if not self.pinned:
            return np.empty(nbytes, np.uint8)
        try:
            return self._page_locked(nbytes).numpy()
        except RecursionError:
            raise
        except RuntimeError as exc:  # as torch tells it
            raise MemoryError(str(exc)) from exc

    def _page_locked(self, nbytes):
        return self._library.empty(nbytes, dtype=self._library.uint8, pin_memory=True)

    def sources(self, streams):
        """Return the streams to read from in place of those given, which make batches of the same names.

        Of types that NumPy does not have itself torch is given the bits, and their name: that
        needs no ``ml_dtypes``.

        Raises
        ------
        DtypeError
            The library has no arrays of a stream's dtype.
        """
        sources = {}
        for name, stream in streams.items():
            sources[name] = stream
            dataset = stream.dataset if isinstance(stream, (Pad, Flat)) else stream
            try:
                if self.name == "torch" and isinstance(dataset, StoreView) and not dataset._bits:
                    kind = dtypes.torch_name(dataset.dtype_name)
                    if kind is not None:
                        self._types[name] = getattr(self._library, kind)
                        bits = dataset._as_bits()
                        sources[name] = bits if dataset is stream else stream._reading(bits)
                        continue
                dtype = getattr(dataset, "dtype", None)
                if self.name != "numpy" and dtype is not None:
                    self.shown(np.zeros(1, dtype))
            except DtypeError as exc:
                raise DtypeError(f"stream {name!r}: {exc}") from None
            except (TypeError, ValueError, AttributeError) as exc:
                what = dtypes.shown(dataset.dtype_name) if isinstance(dataset, StoreView) else dtype
                raise DtypeError(f"stream {name!r}: {self.name} has no dtype {what}: {exc}") from None
        return sources

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
            return self._typed(array, getattr(torch, array.dtype.name))
        return torch.from_numpy(array)

    def batch(self, entries):
        """Convert those values of a dict that are NumPy arrays, or lists of them."""
        if self.name == "numpy":
            return entries
        types = self._types
        return {name: self._any(value, types.get(name)) for name, value in entries.items()}

    def _any(self, value, kind):
        if isinstance(value, np.ndarray):
            if self.pinned:
                return self._sharing(value, kind)
            return self.shown(value) if kind is None else self._typed(value, kind)
        if isinstance(value, list):
            return [self._any(item, kind) for item in value]
        return value

    def _typed(self, bits, kind):
        # Not every release of torch knows unsigned integers of two bytes.
        plain = bits.view("u1" if bits.dtype.itemsize == 1 else "i2")
        return self._library.from_numpy(plain).view(kind)

    def _sharing(self, array, kind):
        """Return a page-locked tensor: one of the storage beneath an array of `memory`, or a copy."""
        owner = array.base
        whole = owner.base if isinstance(owner, np.ndarray) else None
        if not isinstance(whole, self._library.Tensor):  # read by Python
            tensor = self.shown(array) if kind is None else self._typed(array, kind)
            return self._copied(tensor)
        if kind is None:
            kind = self._kinds.get(array.dtype)
            if kind is None:
                kind = self._kinds[array.dtype] = self.shown(np.zeros(1, array.dtype)).dtype
        at = _engine.address(array) - _engine.tensor_address(whole)
        return whole[at : at + array.nbytes].view(kind).view(array.shape)

    def _copied(self, tensor):
        return tensor.pin_memory()


def warn_narrowed(streams):
    """Warn the caller's caller of numbers in streams that JAX will turn into some of half the width."""
    jax = importlib.import_module("jax")
    if jax.config.jax_enable_x64:
        return
    names = {}
    for name, stream in streams.items():
        dtype = getattr(stream.dataset if isinstance(stream, (Pad, Flat)) else stream, "dtype", None)
        if isinstance(dtype, np.dtype) and (dtype.kind, dtype.itemsize) in _WIDE:
            names[name] = str(dtype)
    if names:
        warnings.warn(
            f"JAX turns streams of 64 bits into 32, and integers too large for that into others: {names}. Store them "
            "in 32 bits, or set jax_enable_x64",
            PrecisionWarning,
            stacklevel=3,
        )


_WIDE = {("i", 8), ("u", 8), ("f", 8), ("c", 16)}
