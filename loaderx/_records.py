"""Records of any kind as flat bytes of one dtype and row shape."""

import math
import mmap
from array import array

import numpy as np

from . import _engine, dtypes
from ._format import format_info
from ._schema import item_shape_arg, name_arg
from .errors import ArgumentError, DtypeError, RecordSizeError

__all__ = ["BLOCK_RECORDS", "Packer", "RecordType", "check_size", "release_pages"]

_FIRST_CAPACITY = 1 << 20

#: Most records of one block: what is noted about each must not outweigh small records.
BLOCK_RECORDS = 1 << 18


class RecordType:
    """The type that all records of a ragged store share.

    Parameters
    ----------
    first : object
        The first record.
    schema : dict or None
        The caller's; its ``dtype`` and ``item_shape`` say what records that
        are given as bytes consist of.
    """

    def __init__(self, first, schema):
        schema = schema or {}
        self._limit = format_info()["max_record_len"]
        if isinstance(first, (bytes, bytearray)):
            self.name, self._dtype = name_arg(schema.get("dtype", "|u1"))
            self.item_shape = item_shape_arg(schema.get("item_shape", ()))
            self._check_rows()
        else:
            rows, self.name = _as_rows(first, 0)
            self._dtype, self.item_shape = rows.dtype, rows.shape[1:]
        self._plain = dtypes.to_name(self._dtype) == self.name  # or the bits of it
        self._row_bytes = self._dtype.itemsize * math.prod(self.item_shape)

    def _check_rows(self):
        """Refuse rows that no record, or no array of NumPy's, can consist of."""
        size = self._dtype.itemsize * math.prod(self.item_shape)
        if size > self._limit:
            raise ArgumentError(
                f"a row of {_described(self.name, self.item_shape)} has {size} bytes; "
                f"the format holds records of 1 to {self._limit} bytes"
            )
        try:
            np.empty((0, *self.item_shape), self._dtype)
        except ValueError as error:
            raise ArgumentError(f"records of {len(self.item_shape) + 1} dimensions: {error}") from None

    def flat(self, record, number):
        """Return the bytes of a record as an array of uint8.

        Raises
        ------
        ArgumentError, DtypeError, RecordSizeError
            The record does not fit; the message gives its number.
        """
        if isinstance(record, (bytes, bytearray)):
            if not 0 < len(record) <= self._limit:
                check_size(len(record), f"record {number}")
            if len(record) % self._row_bytes:
                raise ArgumentError(
                    f"record {number} has {len(record)} bytes, which is not a multiple of the row of "
                    f"{self._row_bytes} ({self.name}{self.item_shape})"
                )
            return np.frombuffer(record, np.uint8)
        # What an array of the right dtype is, need not be found out again for each.
        if self._plain and type(record) is np.ndarray and record.dtype == self._dtype and record.ndim:
            rows, name = record, self.name
        else:
            rows, name = _as_rows(record, number)
        if name != self.name or rows.shape[1:] != self.item_shape:
            raise ArgumentError(
                f"record {number} is {_described(name, rows.shape[1:])}, the records before it are "
                f"{_described(self.name, self.item_shape)}"
            )
        if not 0 < rows.nbytes <= self._limit:
            check_size(rows.nbytes, f"record {number}")
        return np.ascontiguousarray(rows).reshape(-1).view(np.uint8)


class Packer:
    """Collects records in one buffer and hands them on in blocks.

    Parameters
    ----------
    emit : callable
        Called with a block (ndarray of uint8, valid during the call) and the
        offsets of its records.
    limit : int
        Most bytes of a block, unless one record alone has more.
    """

    def __init__(self, emit, limit):
        self._emit = emit
        self._limit = limit
        self._buffer = np.empty(min(limit, _FIRST_CAPACITY), np.uint8)
        self._offsets = array("Q")
        self._used = 0

    def add(self, flat):
        """Take a record's bytes."""
        end = self._used + flat.size
        if (end > self._limit and self._offsets) or len(self._offsets) == BLOCK_RECORDS:
            self.flush()
            end = flat.size
        if end > self._buffer.size:
            grown = np.empty(max(end, min(self._limit, 2 * self._buffer.size)), np.uint8)
            grown[: self._used] = self._buffer[: self._used]
            self._buffer = grown
        self._buffer[self._used : end] = flat
        self._offsets.append(self._used)
        self._used = end

    def flush(self):
        """Hand on what was collected."""
        if self._offsets:
            self._emit(self._buffer[: self._used], np.array(self._offsets, dtype=np.uint64))
            self._offsets = array("Q")
            self._used = 0


def check_size(size, what):
    """Raise `RecordSizeError` if the format can't hold a record of that many bytes."""
    limit = format_info()["max_record_len"]
    if size == 0:
        raise RecordSizeError(f"{what} is empty; the format holds records of 1 to {limit} bytes")
    if size > limit:
        raise RecordSizeError(f"{what} has {size} bytes; the format holds records of 1 to {limit} bytes")


def release_pages(array, block):
    """Drop the pages of a mapped file that were read, so that they don't count as this process's memory.

    They stay in the system's cache. Reading a mapped file from end to end
    would otherwise drive the resident size to the size of the file.
    """
    mapping = getattr(array, "_mmap", None)
    # In a private mapping this would undo the caller's changes.
    if mapping is None or array.mode == "c" or not hasattr(mmap, "MADV_DONTNEED"):
        return
    begin = _engine.address(block) - _engine.address(np.frombuffer(mapping, np.uint8))
    end = begin + block.nbytes
    begin -= begin % mmap.PAGESIZE
    if 0 <= begin < end <= len(mapping):
        mapping.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def _described(name, item_shape):
    dtype = dtypes.shown(name)
    return f"{dtype} with rows of shape {item_shape}" if item_shape else f"{dtype}"


def _as_rows(record, number):
    """Return a record as an array of at least one dimension, and its dtype's name."""
    if isinstance(record, str):
        raise DtypeError(f"record {number} is a str; encode it to bytes")
    try:
        rows, name = dtypes.as_record_array(record)
    except DtypeError as error:
        raise DtypeError(f"record {number}: {error}") from None
    except ValueError as error:
        raise ArgumentError(f"record {number} is not an array: {error}") from None
    if np.ma.isMaskedArray(rows):
        raise DtypeError(f"record {number} is a masked array, and a store has no place for the mask; use .filled()")
    if rows.ndim == 0:
        raise ArgumentError(f"record {number} is a scalar; a record has rows: give it a first axis")
    return rows, name
