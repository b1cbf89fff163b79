"""What the kinds of datasets have in common."""

import math
import os
from pathlib import Path

import numpy as np

from . import _engine, dtypes
from ._format import format_info
from ._schema import read_schema
from .errors import ClosedError, DtypeError, StoreFormatError
from .zrecord import Zrecord

__all__ = ["BLOCK_BYTES", "BLOCK_RECORDS", "StoreView"]

# Iterating reads blocks of about this size: large enough to spread the cost of a
# call, small enough that a record which is kept does not keep much else alive.
BLOCK_BYTES = 1 << 20
BLOCK_RECORDS = 1024


class StoreView:
    """Base of the datasets: a store's schema, its life cycle, pickling and iteration."""

    _kind = None

    def __init__(self, path, bits=False):
        _engine.path_arg(path)  # refuses what is no path
        self.path = Path(os.fsdecode(path))
        # Another process, or this one later, may have another working directory.
        self._where = os.path.abspath(self.path)
        schema = read_schema(path)
        kind = schema.get("kind")
        if kind != self._kind:
            names = {"dense": "DenseDataset", "ragged": "RaggedDataset"}
            hint = f"open it with {names[kind]}" if kind in list(names) else "which this release does not know"
            raise StoreFormatError(f"{path} is a {kind!r} store, not {self._kind!r}: {hint}")
        self.item_shape = tuple(schema["item_shape"])
        self.codec = schema["codec"]
        self._set_type(schema.get("dtype"), bits)
        self._row_bytes = math.prod(self.item_shape) * self.itemsize
        if self._row_bytes > format_info()["max_record_len"]:
            raise StoreFormatError(
                f"the schema of {path} gives rows of {self._row_bytes} bytes; no record has that many"
            )
        self._store = Zrecord(path, codec=self.codec, mode="r")

    def _set_type(self, name, bits):
        """Find out what arrays of the records are made of."""
        try:
            dtype = dtypes.from_name(name)
            self.dtype_name = dtypes.to_name(dtype)
        except DtypeError:
            dtype, self.dtype_name = None, name
        plain = dtypes.bits_of(name) if bits or dtype is None else None
        self._bits = bool(bits)
        self._dtype = plain if bits else dtype
        self.itemsize = (dtype or plain).itemsize
        # NumPy exports no buffer for some dtypes, which makes their address expensive to ask for.
        array = self._dtype
        self._exported = array is not None and array.kind in "biufc" and array.type.__module__ == "numpy"

    def _as_bits(self):
        """Return the same open store, read with ``bits=True``."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view._set_type(self.dtype_name, True)
        return view

    @property
    def dtype(self):
        """NumPy's dtype of the arrays; raises `DtypeError` where it needs ``ml_dtypes``, which is missing."""
        if self._dtype is None:
            raise DtypeError(
                f"{self.path} holds {self.dtype_name}, and NumPy has arrays of it only with ml_dtypes: "
                f"pip install ml_dtypes, or open it with bits=True and read the bits as "
                f"{dtypes.bits_of(self.dtype_name)}. The loaders for torch give torch.{self.dtype_name} without it"
            )
        return self._dtype

    @property
    def store(self):
        """The `Zrecord` beneath."""
        return self._store

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._store.closed

    def __len__(self):
        return len(self._store)

    def __contains__(self, value):
        raise DtypeError(f"{type(self).__name__} has no membership test; compare the arrays it returns")

    def __iter__(self):
        # A store that grows meanwhile must not keep the loop from ending.
        length = len(self)
        step = max(1, min(BLOCK_RECORDS, BLOCK_BYTES // max(1, self._row_bytes)))
        for start in range(0, length, step):
            yield from self[start : min(length, start + step)]

    def close(self):
        """Close the store. Idempotent; calls of other threads are waited for."""
        self._store.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def __getstate__(self):
        if self.closed:
            raise ClosedError(f"{self!r} can't be pickled or copied")
        state = self.__dict__.copy()
        state["path"] = Path(self._where)
        state["_store"] = self._store.__getstate__()
        del state["_dtype"]  # where it arrives, ml_dtypes may be missing
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._set_type(self.dtype_name, self._bits)
        self._store = Zrecord.__new__(Zrecord)
        self._store.__setstate__(state["_store"])

    def _typed(self):
        """Return the dtype as `repr` shows it."""
        return f"dtype={dtypes.shown(self.dtype_name)}" + (f", bits=True ({self._dtype})" if self._bits else "")

    def _buffer(self, shape):
        """Return an uninitialised array and the address of its memory."""
        if self._exported:
            out = np.empty(shape, self._dtype)
            return out, _engine.address(out)
        dtype = self.dtype
        flat = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
        return flat.view(dtype).reshape(shape), _engine.address(flat)
