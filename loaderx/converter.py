"""Writing stores from arrays and from records of any kind.

A conversion is one unit: at its end all of its records are durable and
visible, and if it fails, is interrupted or is killed, none of them is. What a
killed one leaves beside a new store's place is a directory
``.NAME.loaderx-XXXX.tmp``, which may be deleted.

Memory stays bounded: a block of at most `chunk_bytes` is collected and
compressed at a time, whatever the size of the source, and a mapped ``.npy``
larger than the memory converts. Beside the block the engine holds at most
2 MiB for each processor and 4 MiB more; with a dictionary, its sample too.

What interrupts a conversion in its last moment, the final sync, may come after
the records were published: `len` of the store tells.
"""

import math
import operator
import os
import sys
from collections.abc import Mapping

import numpy as np

from . import dtypes
from ._checks import integer
from ._format import codec_tag, format_info
from ._progress import Progress
from ._publish import Publication
from ._records import BLOCK_RECORDS, Packer, RecordType, check_size, release_pages
from ._schema import complete_schema
from .errors import ArgumentError, DtypeError

__all__ = ["WRITE_CHUNK_BYTES", "from_iterator", "from_numpy"]

WRITE_CHUNK_BYTES = 64 << 20

_END = object()


def from_numpy(
    path,
    array,
    codec=None,
    chunk_bytes=WRITE_CHUNK_BYTES,
    dict_size=None,
    schema=None,
    *,
    level=None,
    exist_ok=True,
):
    """Write an array as a dense store, one record for each element of axis 0.

    Parameters
    ----------
    path : path_like
        Directory of the store. It is created, with its parents; if it holds a
        store of the same dtype and shape, the records are appended.
    array : ndarray or torch.Tensor, shape (n, *item_shape)
        In any memory order, also mapped. A one-dimensional array gives
        records of one number. A tensor of bfloat16 or float8 keeps its dtype,
        with or without ``ml_dtypes``.
    codec : {None, "zstd", "raw", "zstd_dict"}
        Compression. None is that of the existing store, ``"zstd"`` for a new
        one. Naming another one changes it for these records and, when it is
        left out, for later ones; those that are there stay as they are.
        ``"zstd_dict"`` trains a dictionary on the first block; where the
        records are too few for one, a `RuntimeWarning` says so and plain zstd
        is used.
    chunk_bytes : int
        Bytes that are compressed at a time.
    dict_size : int, optional
        Largest size of the dictionary in bytes; by default 1 % of the sample,
        between 8 KiB and 1 MiB. Only with ``"zstd_dict"``.
    schema : dict, optional
        Further keys for the store's schema; the dict is not changed. A
        ``dtype`` or ``item_shape`` in it must be the array's.
    level : int, optional
        Compression level; not with ``"raw"``, which has none.
    exist_ok : bool
        Whether to append to a store that exists already. With False,
        `StoreExistsError` is raised instead.

    Returns
    -------
    int
        Number of records written.

    Raises
    ------
    DtypeError
        `array` is no array, or its dtype can't be stored (objects, structures).
    ArgumentError
        An argument has a wrong value, or the store holds other records.
    RecordSizeError
        A record is empty, or larger than the format allows.
    """
    chunk_bytes = _checked_options(codec, chunk_bytes, dict_size, level, schema)
    if not isinstance(array, np.ndarray) and not dtypes.is_tensor(array):
        hint = "the path comes first" if isinstance(array, (str, os.PathLike)) else "use numpy.asarray(x)"
        raise DtypeError(f"from_numpy takes a numpy array or a torch tensor, got {type(array).__name__}; {hint}")
    if np.ma.isMaskedArray(array):
        raise DtypeError("a store has no place for the mask of a masked array; use .filled()")
    if array.ndim == 0:
        raise ArgumentError("array has no axis of records: its shape is ()")
    array, name = dtypes.as_record_array(array)
    row_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
    check_size(row_bytes, f"a record of {dtypes.shown(name)}{array.shape[1:]}")
    schema = complete_schema(schema, "dense", name, array.shape[1:])

    step = max(1, min(len(array), chunk_bytes // row_bytes, BLOCK_RECORDS))
    offsets = np.arange(step, dtype=np.uint64) * np.uint64(row_bytes)
    plain = array.view(np.ndarray)
    progress = Progress("converting", len(array) * row_bytes, "B")
    try:
        with Publication(path, schema, codec, level, dict_size, exist_ok, len(array)) as store:
            for start in range(0, len(array), step):
                block = np.ascontiguousarray(plain[start : start + step])
                store.append(block, offsets[: len(block)])
                release_pages(array, block)
                progress.add(block.nbytes)
    finally:
        progress.close()
    return len(array)


def from_iterator(
    path,
    source,
    codec=None,
    chunk_bytes=WRITE_CHUNK_BYTES,
    dict_size=None,
    schema=None,
    *,
    level=None,
    exist_ok=True,
):
    """Write records of different lengths as a ragged store.

    Parameters
    ----------
    path : path_like
        Directory of the store, as for `from_numpy`.
    source : iterable
        Records: arrays of shape ``(rows, *item_shape)`` with one dtype and
        item shape and any number of rows from 1 on, CPU tensors, lists of
        numbers, or bytes. Bytes read back as arrays of uint8, or as what
        `schema` says. A single bytes object is one record.
    codec, chunk_bytes, dict_size, level, exist_ok
        As for `from_numpy`.
    schema : dict, optional
        Further keys for the store's schema; the dict is not changed. Needed,
        with ``dtype`` and ``item_shape``, when there are no records.

    Returns
    -------
    int
        Number of records written.

    Raises
    ------
    DtypeError
        The source or a record is a str, or a dtype can't be stored.
    ArgumentError
        A record differs from the ones before it, is a scalar, or the store
        holds other records.
    RecordSizeError
        A record is empty, or larger than the format allows.

    Notes
    -----
    A message about a record gives its number in this call, from 0. What the
    source itself raises comes through unchanged.
    """
    chunk_bytes = _checked_options(codec, chunk_bytes, dict_size, level, schema)
    if isinstance(source, str):
        raise DtypeError("source is a str; from_iterator takes an iterable of arrays or bytes")
    if isinstance(source, (bytes, bytearray)):
        source = [source]
    try:
        records = iter(source)
    except TypeError:
        raise DtypeError(f"source must be an iterable of records, got {type(source).__name__}") from None
    record = next(records, _END)
    if record is _END:
        if schema is None or "dtype" not in schema:
            raise ArgumentError("source has no records to take the dtype from; give schema={'dtype': ...}")
        record_type = RecordType(b"", schema)
    else:
        record_type = RecordType(record, schema)
        record_type.flat(record, 0)
    schema = complete_schema(schema, "ragged", record_type.name, record_type.item_shape)

    count = 0
    progress = Progress("converting", operator.length_hint(source, 0) or None, "records")
    try:
        with Publication(path, schema, codec, level, dict_size, exist_ok) as store:

            def emit(block, offsets):
                store.append(block, offsets)
                progress.add(len(offsets))

            packer = Packer(emit, chunk_bytes)
            while record is not _END:
                packer.add(record_type.flat(record, count))
                count += 1
                record = next(records, _END)
            packer.flush()
    finally:
        progress.close()
    return count


def _checked_options(codec, chunk_bytes, dict_size, level, schema):
    """Check what both converters take, before anything is written."""
    if codec is not None:
        codec_tag(codec)
    info = format_info()
    if dict_size is not None:
        integer("dict_size", dict_size, info["min_dict_bytes"], info["max_dict_bytes"])
        if codec is not None and codec != "zstd_dict":
            raise ArgumentError(f"dict_size has no meaning with codec {codec!r}, which has no dictionary")
    if level is not None:
        integer("level", level, info["min_level"], info["max_level"])
        if codec == "raw":
            raise ArgumentError("level has no meaning with codec 'raw', which does not compress")
    if schema is not None and not isinstance(schema, Mapping):
        raise DtypeError(f"schema must be a dict, got {type(schema).__name__}")
    return integer("chunk_bytes", chunk_bytes, 1, sys.maxsize)
