"""Stores as arrays: typed, read-only views of the records of a `Zrecord`.

`DenseDataset` is for records of one shape and behaves like the array that they
would form; `RaggedDataset` is for records whose first axis varies. Both only
read, and are safe to use from many threads, in forked children and, pickled as
their path, in spawned ones.
"""

from array import array as _array

import numpy as np

from . import _engine, dtypes
from ._checks import integer as _integer
from ._view import BLOCK_BYTES, BLOCK_RECORDS, StoreView
from .errors import ArgumentError, CorruptRecordError, DtypeError, RecordIndexError
from .indexing import INT64, Plan, outside, scalar, select

__all__ = ["DenseDataset", "RaggedDataset", "pad"]


class DenseDataset(StoreView):
    """A store of records of one shape, read as the array that they form.

    Parameters
    ----------
    path : path_like
        Directory written by `loaderx.converter.from_numpy`.
    bits : bool
        Whether to read the elements' bits, as unsigned integers of the same
        width: for bfloat16 and the like where ``ml_dtypes`` is not installed.

    Attributes
    ----------
    path : pathlib.Path
    dtype : numpy.dtype
        Of the arrays. Without ``ml_dtypes`` it is an error to ask for that of
        a bfloat16 or float8 store, or to read one, unless `bits` is set.
    dtype_name : str
        Name of the stored type: ``"<f4"``, ``"bfloat16"``.
    itemsize : int
        Bytes of an element.
    item_shape : tuple of int
        Shape of one record.
    codec : str
        Name of the compression.

    Raises
    ------
    StoreNotFoundError
        There is no store at `path`; nothing is created.
    StoreFormatError
        The store is ragged, damaged, or of a newer version.

    Notes
    -----
    ``ds[index]`` is what NumPy gives for the same index of the whole array:
    integers, slices, lists, integer arrays of any shape, masks, ``...``,
    ``None``, and tuples whose later elements index within the records. Only
    the records that the index selects along axis 0 are read. The result is
    always a new, writable, C-contiguous array.

    One difference: a tensor of one dimension is an array of indices, also
    when it has a single element.
    """

    _kind = "dense"

    @property
    def shape(self):
        """``(len(ds), *item_shape)``."""
        return (len(self), *self.item_shape)

    @property
    def ndim(self):
        """Number of dimensions of the whole array."""
        return 1 + len(self.item_shape)

    @property
    def nbytes(self):
        """Size of the whole array in bytes, uncompressed."""
        return len(self) * self._row_bytes

    def __getitem__(self, index):
        kind = type(index)
        if kind is np.ndarray and index.dtype is INT64 and index.ndim == 1:
            flags = index.flags
            if flags.c_contiguous and flags.aligned:
                # The batches of samplers: as few steps as there can be.
                n = len(index)
                out, address = self._buffer((n, *self.item_shape))
                self._store._gather_dense(_engine.address(index), n, True, address, out.nbytes, self._row_bytes)
                return out
        if kind is int:
            return self._one(index)
        if kind is list or kind is slice:
            return self._batch(*select(index, self))
        if isinstance(index, np.integer):
            return self._one(int(index))
        if kind is np.ndarray and index.ndim and (index.dtype.kind in "iu" or index.ndim == 1):
            return self._batch(*select(index, self))
        plan = Plan(index, self.shape)
        block = self._batch(plan.rows, plan.rows.shape)[plan.inner]
        if isinstance(block, np.ndarray) and not block.flags.c_contiguous:
            block = np.ascontiguousarray(block)
        return block

    def __getitems__(self, indices):
        """Return a batch; PyTorch's loader asks for its batches with this."""
        return self._batch(*select(indices, self))

    def gather(self, indices, out=None):
        """Copy records into one batch.

        Parameters
        ----------
        indices : slice, array_like of int or array_like of bool
            Integers in [-len, len), repeats allowed, or a mask.
        out : ndarray, shape (*indices.shape, *item_shape), optional
            C-contiguous, writable, of the store's dtype. Filling one batch
            again and again saves the time that new memory costs.

        Returns
        -------
        ndarray of dtype, shape (*indices.shape, *item_shape)
            `out`, if it was given.

        Raises
        ------
        RecordIndexError
            An index is outside the store.
        ArgumentError
            `out` is of another shape or dtype, not C-contiguous, or read-only.

        Notes
        -----
        Safe to call from many threads; the GIL is released.
        """
        rows, shape = select(indices, self)
        if out is None:
            return self._batch(rows, shape)
        shape += self.item_shape
        if not isinstance(out, np.ndarray):
            raise DtypeError(f"out must be a numpy array, got {type(out).__name__}")
        if out.shape != shape or out.dtype != self.dtype:
            raise ArgumentError(f"out is {out.dtype}{out.shape}, the batch is {self.dtype}{shape}")
        address, size, _owner = _engine.pin(out, writable=True)
        self._fill(rows, address, size)
        return out

    def _one(self, index):
        """Read a single record: the path that a plain torch DataLoader takes."""
        try:
            cell = _array("q", (index,))
        except OverflowError:
            raise outside(index) from None
        out, address = self._buffer(self.item_shape or (1,))
        size = self._row_bytes
        self._store._gather_dense(cell.buffer_info()[0], 1, True, address, size, size)
        return out if self.item_shape else out[0]

    def _batch(self, rows, shape):
        out, address = self._buffer(shape + self.item_shape)
        self._fill(rows, address, out.nbytes)
        return out

    def _fill(self, rows, address, size):
        signed = rows.dtype.kind == "i"
        self._store._gather_dense(_engine.address(rows), rows.size, signed, address, size, self._row_bytes)

    def __array__(self, dtype=None, copy=None):
        if copy is False:
            raise ArgumentError("the records are in files: an array of them is always a copy")
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __repr__(self):
        size = "closed" if self.closed else f"shape={self.shape}"
        return f"{type(self).__name__}({str(self.path)!r}, {size}, {self._typed()}, codec={self.codec!r})"


class RaggedDataset(StoreView):
    """A store of records whose first axis varies, read as a list of arrays.

    Parameters
    ----------
    path : path_like
        Directory written by `loaderx.converter.from_iterator`.
    bits : bool
        As for `DenseDataset`.

    Attributes
    ----------
    path : pathlib.Path
    dtype : numpy.dtype
    dtype_name : str
    itemsize : int
        As for `DenseDataset`.
    item_shape : tuple of int
        Shape of one row: a record has the shape ``(rows, *item_shape)``.
    codec : str
        Name of the compression.

    Notes
    -----
    ``ds[i]`` is an array, and a slice, list, integer array or mask of one
    dimension gives a list of arrays, which are views of one new buffer. `pad`
    makes one array of them.
    """

    _kind = "ragged"

    @property
    def shape(self):
        """``(len(ds),)``: the records have no common shape."""
        return (len(self),)

    def __getitem__(self, index):
        number = scalar(index)
        if number is not None:
            try:
                return self._batch(np.array([number], dtype=np.int64))[0]
            except OverflowError:
                raise outside(index) from None
        if isinstance(index, tuple):
            raise RecordIndexError("a ragged dataset has one axis; index within a record as ds[i][j]")
        return self.__getitems__(slice(None) if index is Ellipsis else index)

    def __getitems__(self, indices):
        """Return a list of records; PyTorch's loader asks for its batches with this."""
        return self._batch(self._rows(indices))

    def lengths(self, indices=slice(None)):
        """Return how many rows records have, without reading them.

        Parameters
        ----------
        indices : slice, array_like of int or array_like of bool, optional
            All records by default.

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        rows = self._rows(indices)
        return self._row_counts(rows, self._wrap(rows))

    def _rows(self, indices):
        rows, shape = select(indices, self)
        if len(shape) != 1:
            raise RecordIndexError(f"a ragged dataset takes indices of one dimension, got shape {shape}")
        return rows

    def _wrap(self, rows):
        """Return the length that negative row numbers count from: one for all calls about them."""
        return len(self) if rows.dtype.kind == "i" else 0

    def _row_counts(self, rows, wrap):
        sizes = self._store._lengths(rows, wrap).astype(np.int64)
        counts, rest = np.divmod(sizes, max(1, self._row_bytes))
        if rest.any():
            at = int(np.flatnonzero(rest)[0])
            raise CorruptRecordError(
                f"record {rows[at]} of {self.path} has {sizes[at]} bytes, which is not a multiple of its "
                f"row of {self._row_bytes} ({dtypes.shown(self.dtype_name)}{self.item_shape})"
            )
        return counts

    def _batch(self, rows):
        wrap = self._wrap(rows)
        counts = self._row_counts(rows, wrap)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if ends.size else 0
        starts = ends - counts
        values, address = self._buffer((total, *self.item_shape))
        offsets = starts * self._row_bytes
        self._store._gather(_engine.address(rows), rows.size, wrap, address, values.nbytes, _engine.address(offsets))
        return [values[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def __iter__(self):
        # Blocks are cut by what the records measure, not by their number alone.
        length, start = len(self), 0
        while start < length:
            sizes = self.lengths(slice(start, min(length, start + BLOCK_RECORDS))) * self._row_bytes
            step = max(1, int(np.searchsorted(np.cumsum(sizes), BLOCK_BYTES)))
            yield from self[start : min(length, start + step)]
            start += step

    def __array__(self, dtype=None, copy=None):
        raise DtypeError("ragged records don't form one array; use pad(ds[...]), or numpy.concatenate(ds[...])")

    def __repr__(self):
        size = "closed" if self.closed else f"len={len(self)}"
        return (
            f"{type(self).__name__}({str(self.path)!r}, {size}, item_shape={self.item_shape}, {self._typed()}, "
            f"codec={self.codec!r})"
        )


def pad(records, max_len=None, pad_value=0):
    """Stack records of different lengths, filling up the shorter ones.

    Parameters
    ----------
    records : iterable of ndarray, each of shape (rows, *item_shape)
        At least one; all of one dtype and item shape.
    max_len : int, optional
        Rows of the result; the longest record's by default.
    pad_value : scalar
        Fills the rows after a record's end. The records' dtype must be able
        to hold it: rounding to a floating-point type is fine, nothing else is.

    Returns
    -------
    padded : ndarray, shape (n, max_len, *item_shape)
    lengths : ndarray of int64, shape (n,)
        Rows of each record.

    Raises
    ------
    ArgumentError
        There is no record, one is longer than `max_len`, they don't match, or
        their dtype has no such `pad_value`.
    DtypeError
        `records` is not iterable, `max_len` no integer, or `pad_value` of a
        type that does not go with the records.

    Examples
    --------
    >>> import numpy as np
    >>> padded, lengths = pad([np.array([1, 2, 3]), np.array([4])], pad_value=-1)
    >>> padded
    array([[ 1,  2,  3],
           [ 4, -1, -1]])
    >>> lengths
    array([3, 1])
    """
    try:
        records = iter(records)
    except TypeError:
        raise DtypeError(f"records must be a sequence of arrays, got {type(records).__name__}") from None
    records = [np.asarray(record) for record in records]
    if not records:
        raise ArgumentError("pad needs at least one record")
    first = records[0]
    for number, record in enumerate(records):
        if record.ndim == 0 or record.shape[1:] != first.shape[1:] or record.dtype != first.dtype:
            raise ArgumentError(
                f"record {number} is {record.dtype}{record.shape}, which does not stack with the "
                f"{first.dtype}{first.shape} of record 0"
            )
    lengths = np.array([len(record) for record in records], dtype=np.int64)
    longest = int(lengths.max())
    rows = longest if max_len is None else _integer("max_len", max_len, 0, (1 << 40) - 1)
    if longest > rows:
        raise ArgumentError(f"record {int(lengths.argmax())} has {longest} rows, more than max_len={rows}")
    padded = np.full((len(records), rows, *first.shape[1:]), dtypes.filler(pad_value, first.dtype), dtype=first.dtype)
    for row, record in zip(padded, records, strict=True):
        row[: len(record)] = record
    return padded, lengths
