"""Ragged records in batches: padded to one length, or flat with the places where they begin.

Wrap a `loaderx.dataset.RaggedDataset` in one of these and pass it to the DataLoader as a stream.
"""

from abc import ABC, abstractmethod
from operator import index as _as_int

import numpy as np

from . import dtypes
from .dataset import RaggedDataset
from .errors import ArgumentError, DtypeError

__all__ = ["Flat", "Pad"]


class _Collated(ABC):
    """A ragged stream and the arrays that a batch of it consists of."""

    #: Added to the stream's name, for the name of the second array.
    suffix = None

    def __init__(self, dataset):
        if not isinstance(dataset, RaggedDataset):
            raise DtypeError(f"{type(self).__name__} takes a RaggedDataset, got {type(dataset).__name__}")
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __repr__(self):
        return f"{type(self).__name__}({self.dataset!r}{self._options()})"

    def _options(self):
        return ""

    def _reading(self, bits):
        """Return the same collate of a view of its dataset that reads bits."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, dataset=bits)
        return made

    def __getitems__(self, indices):
        """Return the arrays of a batch; for loaders other than ours."""
        return self._collated(indices, "")

    @abstractmethod
    def _collated(self, indices, where):
        """Return the arrays of a batch; `where` begins the message of an error."""


class Pad(_Collated):
    """Records filled up to the same number of rows.

    A batch of the stream ``x`` is ``x`` of shape ``(batch, rows, *item_shape)`` and ``x_lengths``,
    int64 of shape ``(batch,)``, with the rows of each record that are its own.

    Parameters
    ----------
    dataset : RaggedDataset
    max_len : int, optional
        Rows of every record; by default those of the longest in the batch.
    pad_value : scalar
        Fills the rows after a record's end. The records' dtype must be able to hold it:
        rounding to a floating-point type is fine, nothing else is.
    truncate : bool
        Whether records longer than `max_len` are cut. Otherwise they are an error of their step.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from loaderx.converter import from_iterator
    >>> from loaderx.dataloader import DataLoader
    >>> from loaderx.dataset import RaggedDataset
    >>> path = tempfile.mkdtemp()
    >>> from_iterator(path, [np.arange(n, dtype=np.int32) for n in (3, 1, 2)])
    3
    >>> with DataLoader({"t": Pad(RaggedDataset(path), pad_value=-1)}, batch_size=3, mode=0) as loader:
    ...     batch = next(loader)
    >>> batch["t"]
    array([[ 0,  1,  2],
           [ 0, -1, -1],
           [ 0,  1, -1]], dtype=int32)
    >>> batch["t_lengths"]
    array([3, 1, 2])
    """

    suffix = "_lengths"

    def __init__(self, dataset, max_len=None, pad_value=0, truncate=False):
        super().__init__(dataset)
        if max_len is not None:
            try:
                max_len = _as_int(max_len)
            except TypeError:
                raise DtypeError(f"max_len must be an integer or None, got {max_len!r}") from None
            if not 1 <= max_len < 1 << 40:
                raise ArgumentError(f"max_len must be in 1..{(1 << 40) - 1}, got {max_len}")
        if truncate and max_len is None:
            raise ArgumentError("truncate=True needs max_len: nothing is longer than the longest record")
        self.max_len, self.truncate = max_len, bool(truncate)
        self.pad_value = pad_value
        # As the engine fills up: the bytes of one element. Zeros are the engine's default.
        try:
            dtype = dtypes.from_name(dataset.dtype_name)
        except DtypeError:  # a type of ml_dtypes, without that
            raw = self._rounded(pad_value)
        else:
            raw = dtypes.filler(pad_value, dtype).tobytes()
        self._filler = raw if any(raw) else b""

    def _options(self):
        shown = (("max_len", None), ("pad_value", 0), ("truncate", False))
        return "".join(f", {name}={getattr(self, name)!r}" for name, usual in shown if getattr(self, name) is not usual)

    def _rounded(self, value):
        """Return the bytes of a number of a type that NumPy does not know here."""
        name = self.dataset.dtype_name
        if np.ndim(value):
            raise ArgumentError(f"pad_value must be a scalar, got shape {np.shape(value)}")
        try:
            return dtypes.element_bytes(value, name)
        except ArgumentError:
            raise
        except (TypeError, ValueError) as exc:
            raise ArgumentError(f"pad_value {value!r} is no {dtypes.shown(name)}: {exc}") from None

    def _collated(self, indices, where):
        """Return the padded records and their lengths."""
        records = self.dataset.__getitems__(indices)
        if self.truncate:
            records = [record[: self.max_len] for record in records]
        lengths = np.array([len(record) for record in records], np.int64)
        longest = int(lengths.max(initial=0))
        rows = self.max_len or longest
        if longest > rows:
            number = int(np.arange(len(self))[indices][lengths.argmax()])
            # In the words of the engine.
            raise ArgumentError(
                f"{where}record {number} has {longest} rows, more than the {rows} that records are padded to: pad to "
                "more (max_len), or cut longer ones (truncate=True)"
            )
        element = np.frombuffer(self._filler or bytes(self.dataset.itemsize), self.dataset.dtype)
        out = np.full((len(records), rows, *self.dataset.item_shape), element, self.dataset.dtype)
        for place, record in zip(out, records, strict=True):
            place[: len(record)] = record
        return out, lengths


class Flat(_Collated):
    """Records one after the other in one array.

    A batch of the stream ``x`` is ``x`` of shape ``(rows of all records, *item_shape)`` and
    ``x_splits``, int64 of shape ``(batch + 1,)``: record i is ``x[x_splits[i]:x_splits[i + 1]]``.

    Parameters
    ----------
    dataset : RaggedDataset
    """

    suffix = "_splits"

    def _collated(self, indices, _where):
        """Return the rows of all records and where each begins."""
        records = self.dataset.__getitems__(indices)
        splits = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record) for record in records], out=splits[1:])
        empty = np.empty((0, *self.dataset.item_shape), self.dataset.dtype)
        return np.concatenate([empty, *records]), splits
