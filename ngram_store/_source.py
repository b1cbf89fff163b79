"""What rows of a table come from: a raw file, memory, or chunks one after another."""

import io
import itertools
import math
import os
import sys
from collections.abc import Mapping

import numpy as np

from loaderx import _engine
from loaderx._buffers import bytes_of, dense, masked
from loaderx._records import release_pages
from loaderx.dtypes import is_tensor
from loaderx.errors import ArgumentError, DtypeError, ZrecordError

from ._arguments import instead
from ._formats import refuse_formats
from ._kinds import KINDS, dtype_of_kind, kind_of_dtype, recorded_kind
from ._spool import Spool

__all__ = ["Chunks", "File", "Memory", "source_of"]

_SLICE_BYTES = 16 << 20


def source_of(source):
    """Return the source of rows that an argument stands for.

    Raises
    ------
    DtypeError
        It is none.
    """
    if isinstance(source, (str, os.PathLike)):
        return File(source)
    if isinstance(source, io.IOBase):
        raise DtypeError(f"source is an open file ({source!r}); pass its path, or its bytes")
    if np.ma.isMaskedArray(source):
        raise masked("source")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(source, torch.Tensor):
        return _of_tensor(source)
    if isinstance(source, np.ndarray) or hasattr(source, "__array_interface__"):
        return _of_array(np.asanyarray(source))
    try:
        view = memoryview(source)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is not None:
        return _of_array(np.asarray(view)) if view.format != "B" or view.ndim > 1 else Memory(source)
    if hasattr(source, "__dlpack__"):  # JAX
        return _of_array(np.asarray(source))
    if hasattr(source, "shape") and hasattr(source, "dtype") and len(source.shape):
        return Chunks(_slices(source), _Layout.of(source))  # a data set, zarr, h5py
    try:
        if isinstance(source, Mapping) or (isinstance(source, (list, tuple)) and not _has_chunks(source)):
            raise TypeError  # it can be iterated over, but not by chunks
        return Chunks(iter(source), _Layout())
    except TypeError:
        kind = f"{type(source).__module__}.{type(source).__qualname__}"
        if isinstance(source, (list, tuple)) and source:
            kind = f"a {type(source).__name__} that begins with a {type(source[0]).__name__}"
        raise DtypeError(
            f"source must be a path, a buffer, an array, a tensor on the CPU or an iterable of row chunks, got {kind}"
            f"{instead(source)}"
        ) from None


def _has_chunks(source):
    """Whether a list begins with something that has bytes, or with nothing."""
    if not source:
        return True
    first = source[0]
    try:
        memoryview(first)
    except (TypeError, ValueError, BufferError):
        return hasattr(first, "dtype")
    return True


def _of_array(array):
    if array.dtype.hasobject:
        raise DtypeError(f"dtype {array.dtype} holds references to Python objects, which have no bytes to store")
    layout = _Layout.of(array)
    if array.ndim and (isinstance(array, np.memmap) or not array.flags.c_contiguous):
        return Chunks(_slices(array), layout, Memory(array, layout) if array.flags.c_contiguous else None)
    return Memory(array, layout)


def _of_tensor(tensor):
    tensor = dense(tensor, "source").detach().resolve_conj().resolve_neg()
    layout = _Layout(tensor.element_size(), tuple(tensor.shape), tensor.dtype)
    if tensor.ndim and not tensor.is_contiguous():
        step = _slice_rows(layout)
        return Chunks((tensor[i : i + step] for i in range(0, len(tensor), step)), layout)
    return Memory(tensor, layout)


def _slice_rows(layout):
    return max(1, _SLICE_BYTES // max(1, layout.item_bytes))


def _slices(array):
    """Yield the rows of an array in contiguous pieces, and have mapped ones not count as memory afterwards."""
    step = _slice_rows(_Layout.of(array))
    plain = array.view(np.ndarray) if isinstance(array, np.ndarray) else array
    for start in range(0, len(array), step):
        piece = np.ascontiguousarray(plain[start : start + step])
        yield piece
        if isinstance(array, np.memmap) and np.may_share_memory(piece, plain):
            release_pages(array, piece)


class _Layout:
    """What an array tells of its rows.

    Parameters
    ----------
    element : int, optional
        Bytes of an element; 1 says nothing about what it stands for.
    shape : tuple, optional
    dtype : numpy.dtype or torch.dtype, optional
        An element of a complex one is two numbers.
    """

    def __init__(self, element=1, shape=None, dtype=None):
        self.element = element // 2 if "complex" in str(dtype) else element
        self.shape = shape
        self._dtype = dtype
        if shape is not None:
            #: Bytes of what one index of the first axis names.
            self.item_bytes = element * math.prod(shape[1:])
            self._suffixes = [element * math.prod(shape[i:]) for i in range(1, len(shape))]

    @classmethod
    def of(cls, array):
        """Return the layout of what has a shape and a dtype."""
        dtype = np.dtype(array.dtype)
        return cls(dtype.itemsize, tuple(array.shape), dtype)

    def row_bytes(self, given, what):
        """Return the width of a row: as given, or what the shape says if it is None."""
        if given is None:
            if self.shape is None or len(self.shape) < 2:
                raise ArgumentError(f"row_bytes is needed: {what} does not tell how wide a row is")
            return self.item_bytes
        if self.shape is not None and len(self.shape) > 1 and given not in self._suffixes:
            raise ArgumentError(
                f"row_bytes is {given}, but {what} of shape {self.shape} has rows of {self.item_bytes} bytes; "
                "reshape it if they are meant to be taken apart or together"
            )
        return given

    def element_bytes(self, row_bytes):
        """Return the bytes of an element, 0 if the array does not tell them."""
        fits = 1 < self.element <= 16 and row_bytes % self.element == 0
        return self.element if fits else 0

    def kind(self, stated, row_bytes, version):
        """Return the kind of rows that a table records: as stated, or what the dtype says; None if nobody knows it."""
        if stated is not None:
            _agree(self._dtype, stated, "the source")
            return stated
        records = version not in (1, 2) and row_bytes % self.element == 0
        return recorded_kind(self._dtype) if records else None


def _agree(dtype, kind, what):
    """Refuse numbers of another dtype than a table records, and what can't be rows that were encoded."""
    numbers = dtype_of_kind(kind)
    if dtype is not None and kind in KINDS and numbers is None and not _is_bytes(dtype):
        raise DtypeError(
            f"{what} is of {_name_of(dtype)}, and {kind} rows are encoded: elements of uint8, or bytes, which hold "
            "codes and a scale; pack_quantized makes them of numbers"
        )
    bits = numbers is not None and _name_of(dtype) == f"uint{8 * KINDS[kind][1]}"  # as bfloat16 is kept in NumPy
    if not bits and recorded_kind(dtype) not in (None, kind):
        raise DtypeError(
            f"{what} is of {kind_of_dtype(dtype) or _spelled(dtype)}, and the table's rows are to be {kind}"
        )


def _is_bytes(dtype):
    """Whether elements may be bytes of anything."""
    if isinstance(dtype, np.dtype):
        return dtype == np.uint8 or dtype.kind == "S" or issubclass(dtype.type, np.void)
    return _name_of(dtype) == "uint8"


def _name_of(dtype):
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def _spelled(dtype):
    """Return a dtype's name, from which its byte order can be told."""
    return dtype.str if isinstance(dtype, np.dtype) and not dtype.isnative else _name_of(dtype)


class File:
    """A file that holds rows back to back.

    Parameters
    ----------
    path : path_like
    """

    layout = _Layout()
    rows = 0

    def __init__(self, path):
        _engine.path_arg(path)  # refuses what is no path
        self._path = os.path.abspath(os.fsdecode(path))
        refuse_formats(self._path)

    def row_bytes(self, given):
        """Return the width of a row."""
        return self.layout.row_bytes(given, "a file")

    def write(self, packing, order):
        """Give all rows to a packing."""
        raw, address, size = _engine.path_arg(self._path)
        packing.write_all(_engine.lib.RowsPackFile, (address, size), order, raw)


class Memory:
    """A C-contiguous array, tensor or other buffer.

    Parameters
    ----------
    obj : object
    layout : _Layout, optional
    """

    rows = 0

    def __init__(self, obj, layout=None):
        if getattr(obj, "is_quantized", False):
            _flat(obj)
        self._pinned = _engine.pin(obj)
        self.layout = layout or _Layout()

    def row_bytes(self, given):
        """Return the width of a row."""
        return self.layout.row_bytes(given, "the source")

    def write(self, packing, order):
        """Give all rows to a packing."""
        address, size, owner = self._pinned
        packing.write_all(_engine.lib.RowsPackBuffer, (address, size), order, owner)


class Chunks:
    """Arrays or bytes, one after another, of whole rows each.

    Parameters
    ----------
    chunks : iterator
    layout : _Layout
    whole : Memory, optional
        The same rows in one piece, for what needs to look back.
    """

    def __init__(self, chunks, layout, whole=None):
        self._chunks = chunks
        self._first = []
        self._whole = whole
        self.layout = layout
        self._counted = layout.shape is not None
        self.rows = layout.shape[0] if self._counted else 0

    def row_bytes(self, given):
        """Return the width of a row; it may be that of the first chunk."""
        if not self._counted:
            self._first = list(itertools.islice(self._chunks, 1))
            first = self._first[0] if self._first else b""
            if is_tensor(first):
                dense(first, "chunk 0")
            if hasattr(first, "shape") and hasattr(first, "dtype"):
                size = first.element_size() if hasattr(first, "element_size") else np.dtype(first.dtype).itemsize
                self.layout = _Layout(size, tuple(first.shape), first.dtype)
        width = self.layout.row_bytes(given, "the source" if self._counted else "chunk 0")
        if self._counted and width:
            self.rows = self.rows * self.layout.item_bytes // width
        return width

    def write(self, packing, order):
        """Give all rows to a packing; those that are to be reordered by way of a file without a name."""
        if self._whole is not None and (order is not None or packing.deduplicates):
            self._whole.write(packing, order)
        elif order is None:
            self._write(packing, packing.write)
            packing.flush()
        else:
            with Spool(packing.folder) as spool:
                self._write(packing, spool.write)
                Memory(spool.mapped()).write(packing, order)

    def _write(self, packing, write):
        numbers = None  # of which dtype the chunks are that are no plain bytes
        for number, chunk in enumerate(_chain(self._first, self._chunks)):
            try:
                flat = _flat(chunk)
            except ZrecordError as error:
                raise type(error)(f"chunk {number}: {error}") from None
            shape = tuple(getattr(chunk, "shape", ()))
            if len(shape) > 1 and shape[0] and flat.nbytes != shape[0] * packing.row_bytes:
                raise ArgumentError(
                    f"chunk {number} has the shape {shape} and rows of {flat.nbytes // shape[0]} bytes, not of "
                    f"{packing.row_bytes}"
                )
            if flat.nbytes % packing.row_bytes:
                raise ArgumentError(
                    f"chunk {number} has {flat.nbytes} bytes, which are not whole rows of {packing.row_bytes}"
                )
            dtype = getattr(chunk, "dtype", None)
            if packing.kind:
                _agree(dtype, packing.kind, f"chunk {number}")
            if dtype is not None and not _is_bytes(dtype):
                if numbers not in (None, _spelled(dtype)):
                    raise DtypeError(f"chunk {number} is of {_spelled(dtype)}, and those before it of {numbers}")
                numbers = _spelled(dtype)
            write(flat)


def _chain(first, rest):
    while first:
        yield first.pop()
    yield from rest


def _flat(chunk):
    """Return the bytes of a chunk as an array of uint8."""
    if np.ma.isMaskedArray(chunk):
        raise masked("a chunk")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(chunk, torch.Tensor):
        if chunk.is_quantized:
            raise DtypeError("a quantized tensor's scale has no place in a table; pass its dequantize() or int_repr()")
        return bytes_of(dense(chunk, "a chunk").detach().resolve_conj().resolve_neg().contiguous())
    if isinstance(chunk, np.ndarray) or hasattr(chunk, "__dlpack__"):
        chunk = np.ascontiguousarray(chunk)
    elif isinstance(chunk, (list, tuple, Mapping)):
        kind = f"{type(chunk).__module__}.{type(chunk).__qualname__}"
        raise DtypeError(f"expected an array or a buffer of whole rows, got {kind}{instead(chunk)}")
    return bytes_of(_engine.pin(chunk)[2])
