"""Writing row tables: rows of one width, compressed in blocks, in one file."""

import json
import os
from dataclasses import dataclass

import numpy as np

from loaderx import _engine
from loaderx._progress import Progress
from loaderx._watch import Watch
from loaderx.errors import ArgumentError, DtypeError

from ._arguments import BLOCK_ROWS, array_of, count, flag
from ._formats import check_replaceable
from ._kinds import kind_name
from ._parents import parents
from ._source import source_of

__all__ = ["BlockEncoding", "PackReport", "pack_native"]

_GATHER_BYTES = 1 << 20


@dataclass(frozen=True)
class BlockEncoding:
    """What the blocks of a table have in common that are encoded in one way.

    Attributes
    ----------
    codec : str
        ``"raw"``, ``"zlib"`` or ``"zstd"``.
    predictor : str
        ``"none"``, ``"xor"``, ``"shuffle"`` or ``"xor+shuffle"``.
    blocks : int
        How many blocks there are.
    bytes, raw_bytes : int
        Of all of them, as they are stored and decoded.
    """

    codec: str
    predictor: str
    blocks: int
    bytes: int
    raw_bytes: int


@dataclass(frozen=True)
class PackReport:
    """What `pack_native` wrote.

    Attributes
    ----------
    rows, stored_rows, shared_rows : int
        How many rows were given, how many are in the file, and how many are
        found at an equal one's place.
    row_bytes : int
    blocks, block_rows : int
        How many blocks there are, and how many rows each but the last has.
    raw_bytes, block_bytes, file_bytes : int
        Of the rows as they were given, of the blocks as they are stored, and
        of the file.
    version : int
        Of the format, 1 to 3.
    identity : bool
        Whether the file does without a map.
    element_bytes : int
        Of shuffled blocks; 0 if none is.
    dtype : str or None
        Of the rows, ``"fp32"`` for one, as the file records it.
    encodings : tuple of BlockEncoding
    sha256 : str or None
        Of the file, in hexadecimal, if it was asked for.
    """

    rows: int
    stored_rows: int
    shared_rows: int
    row_bytes: int
    blocks: int
    block_rows: int
    raw_bytes: int
    block_bytes: int
    file_bytes: int
    version: int
    identity: bool
    element_bytes: int
    dtype: str | None
    encodings: tuple[BlockEncoding, ...]
    sha256: str | None = None

    @property
    def ratio(self):
        """Size of the file divided by that of the rows; 0 without rows."""
        return self.file_bytes / self.raw_bytes if self.raw_bytes else 0.0


def pack_native(
    source,
    path,
    *,
    row_bytes=None,
    block_rows=BLOCK_ROWS,
    deduplicate=False,
    predictor=None,
    codec="zlib",
    row_order=None,
    max_block_bytes=None,
    level=None,
    element_bytes=None,
    dtype=None,
    version=None,
    sha256=False,
    threads=None,
):
    """Write rows of one width as an immutable table, a MEFTNAT1 file.

    The file appears at its path as a whole, durably, once all of it is
    written: until then, and if the call fails, is interrupted or is killed,
    what was there stays. Who has the old file open keeps its bytes. A file
    that is replaced keeps its permissions; a new one is its owner's alone.

    Parameters
    ----------
    source : path_like, buffer, array, tensor or iterable of row chunks
        The rows, back to back: a raw file; any C-contiguous buffer; a NumPy
        array; a torch tensor on the CPU, of any dtype; or an iterable of
        chunks, each of them bytes, an array or a tensor of whole rows. A str
        is a path. Arrays that are not contiguous, are mapped, or are data
        sets with a ``shape`` are read piece by piece.
    path : path_like
        Of the table. Missing directories above it are made.
    row_bytes : int, optional
        Width of a row, 1 to 2**30. Arrays of two dimensions or more tell it.
    block_rows : int
        Rows of a block, which is compressed, read and checked as a whole; by
        default 256.
    deduplicate : bool
        Store equal rows once. Only rows whose bytes are all equal are shared.
    predictor : {None, "xor", "shuffle", "auto"}
        What is tried beside the plain codec: ``"xor"``, each row but a block's
        first as its difference from the one before; ``"shuffle"``, the first
        bytes of all elements together, then the second ones, and so on;
        ``"auto"``, all of them. The smallest form of each block is kept, and
        raw if none is smaller. The codec ``"raw"`` goes with none of them, nor
        does ``"auto"`` change anything then.
    codec : {"zlib", "zstd", "raw"}
        Compression of blocks. Raw rows are read where they lie, at the speed
        of memory. Of a compressed table a row that no cache holds takes its
        whole block to be decoded: tens of times as long with blocks of 256
        rows, and zstd a third of zlib's time. Small blocks (`block_rows` 4),
        with ``predictor="shuffle"``, and a cache of rows shorten that.
    row_order : array_like of int, shape (rows,), optional
        The row that is kept at each place of the file, each row once: rows
        that are read together may lie together. They are still addressed by
        their number in the source.
    max_block_bytes : int, optional
        Lowers `block_rows` until a block has no more bytes than this, but not
        below one row.
    level : int, optional
        Of the codec: 1 to 9 for zlib, by default 6; 1 to 22 for zstd, by
        default 3.
    element_bytes : int, optional
        Width of the elements that are shuffled, 1 to 16 and a divisor of
        `row_bytes`. By default that of an array's dtype; where there is none,
        or it has one byte, the largest of 4, 2 and 1 that divides `row_bytes`.
    dtype : str or dtype, optional
        What rows consist of, which the table records: ``"fp32"``, ``"fp64"``,
        ``"fp16"``, ``"bf16"``, ``"int8"``, ``"uint8_rowwise"``,
        ``"int4_rowwise"`` (``gopkg/quant/FORMAT.md`` lays the last three out),
        or NumPy's or torch's dtype of the first four. By default that of
        an array, a tensor or the first chunk, if it is one of the first four.
        Rows of the last three are encoded, so elements are of uint8, or bytes;
        `pack_quantized` makes such rows of numbers. Other numbers, such as
        integers, are recorded as ``"other"``, and never read as floating-point
        ones. Of bytes (also arrays of them) nothing is recorded, and who reads
        numbers says what they are, or they are taken for fp32.
    version : {None, 1, 2, 3}
        The newest version of the format that the file may have. Version 3,
        the default, has checksums of blocks, zstd, shuffled blocks, the rows'
        dtype, and no map for rows that are all in their own order. With 1 (raw
        and zlib) or 2 (also XOR) the file has the lowest version that its
        blocks need.
    sha256 : bool
        Have the report tell the hash of the file.
    threads : int, optional
        How many threads compress; by default as many as Go uses processors.

    Returns
    -------
    PackReport

    Raises
    ------
    ArgumentError
        An argument has a wrong value, the source is not a multiple of
        `row_bytes`, a chunk is no whole number of rows, or `row_order` is no
        permutation; the message names the place.
    DtypeError
        An argument has a wrong type, or an array or a chunk has another dtype
        than `dtype` says, or than the first chunk.
    StoreExistsError
        There is a file at `path` that is no table. One that is a table, or
        empty, is replaced.
    StoreNotFoundError, StoreIOError
        A file can't be read or written; ``errno`` tells why.

    Notes
    -----
    Memory is bounded, whatever the source's size. Beside the source itself,
    or one chunk of it, there are for each thread and two more two buffers of
    512 KiB or of a block, whichever is larger; for each thread the codec's
    memory and three blocks more; and 32 bytes for each block. With
    `row_order` or `deduplicate` there are 8 bytes for each row (three times
    that while the rows of an iterator are counted), and with `deduplicate` up
    to 64 bytes for each distinct row. To look back at rows of an iterator they
    are kept meanwhile in a file without a name beside the table.

    Ctrl-C ends it. What interrupts it in its last moment may come after the
    table was put in its place. On file systems without nameless files (and
    for an instant on others) a killed call leaves ``.NAME.XXXXXXXX.tmp``,
    which the next one for the same path removes.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> rows = np.arange(1000 * 16, dtype=np.float32).reshape(1000, 16)
    >>> report = pack_native(rows, tempfile.mkdtemp() + "/rows.men", predictor="auto", codec="zstd")
    >>> report.rows, report.row_bytes, report.blocks
    (1000, 64, 4)
    """
    target = _target(path)
    check_replaceable(target)
    folder = os.path.dirname(target)
    order = None if row_order is None else _order(row_order)
    options = {
        "block_rows": _int("block_rows", block_rows),
        "max_block_bytes": _int("max_block_bytes", max_block_bytes, 0),
        "codec": _name("codec", codec),
        "level": _int("level", level, 0),
        "predictor": "none" if predictor is None else _name("predictor", predictor),
        "version": _int("version", version, 0),
        "deduplicate": flag("deduplicate", deduplicate),
        "threads": min(_int("threads", threads, 0), 1 << 20),
        "sha256": flag("sha256", sha256),
    }
    if row_bytes is not None:
        row_bytes = _int("row_bytes", row_bytes)
    element_bytes = _int("element_bytes", element_bytes, 0)
    kind = None if dtype is None else kind_name(dtype)
    rows = source_of(source)
    row_bytes = rows.row_bytes(row_bytes)
    options["row_bytes"] = _int("row_bytes", row_bytes)
    options["dtype"] = rows.layout.kind(kind, row_bytes, options["version"]) or ""
    options["rows"] = 0 if order is not None else rows.rows
    options["element_bytes"] = element_bytes or rows.layout.element_bytes(row_bytes)
    with parents(folder), _Packing(target, folder, options) as packing:
        rows.write(packing, order)
        return packing.finish()


class _Packing:
    """A table on its way, which is given up unless it is finished.

    Parameters
    ----------
    path, folder : str
    options : dict
        What the engine takes.
    """

    def __init__(self, path, folder, options):
        raw, address, size = _engine.path_arg(path)
        text = np.frombuffer(json.dumps(options).encode(), np.uint8)
        where, length = _engine.address(text), text.nbytes

        def open_(number, _raw=raw):  # which owns the memory at `address`
            return _engine.lib.RowsPackNew(number, address, size, where, length)

        self.folder = folder
        self.row_bytes = options["row_bytes"]
        self.deduplicates = options["deduplicate"]
        self.kind = options["dtype"]
        self._handle = _engine.Handle(open_, reopen=False, what=f"the table {path}")
        self._buffer = np.empty(_GATHER_BYTES, np.uint8)
        self._used = 0
        self._progress = None
        _engine.close_in_child(self._handle, _engine.check(_engine.lib.RowsPackFd(self._handle.id())))

    def write_all(self, start, place, order, owner):
        """Write the rows of a file or a buffer, whose owner is kept alive meanwhile."""
        where = (0, 0) if order is None else (_engine.address(order), len(order))
        with Watch("packing", "B") as watch:
            watch.run(start, self._handle.id(), *place, *where)
        del owner

    def write(self, flat):
        """Write rows; few of them are collected first."""
        if self._progress is None:
            self._progress = Progress("packing", None, "B")
        self._progress.add(flat.nbytes)
        if self._used + flat.nbytes > self._buffer.nbytes:
            self.flush()
        if flat.nbytes > self._buffer.nbytes // 4:
            self.flush()
            self._send(flat)
        else:
            self._buffer[self._used : self._used + flat.nbytes] = flat
            self._used += flat.nbytes

    def flush(self):
        """Write what was collected."""
        if self._used:
            self._send(self._buffer[: self._used])
            self._used = 0

    def _send(self, flat):
        _engine.run(
            _engine.lib.RowsPackWrite, self._handle.id(), _engine.address(flat), flat.nbytes, keep=(flat, self._buffer)
        )

    def finish(self):
        """Publish the table and return the report."""
        _engine.run(_engine.lib.RowsPackFinish, self._handle.id())
        report = json.loads(_engine.text(_engine.lib.RowsPackReport, self._handle.id()))
        report["encodings"] = tuple(BlockEncoding(**encoding) for encoding in report["encodings"])
        return PackReport(**report)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        if self._progress is not None:
            self._progress.close()
        self._handle.close()


def _target(path):
    _engine.path_arg(path)  # refuses what is no path
    return os.path.realpath(os.fsdecode(path))


def _int(name, value, none=None):
    """Return a positive integer; None is allowed if it stands for a number."""
    return none if value is None and none is not None else count(value, name, 1)


def _name(name, value):
    if not isinstance(value, str):
        raise DtypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def _order(row_order):
    """Return an order of rows as a C-contiguous array of int64."""
    order = array_of(row_order, "row_order", "integers")
    if order.ndim != 1:
        raise ArgumentError(f"row_order must have one dimension, got shape {order.shape}")
    if order.dtype.kind not in "iu" and order.size:
        raise DtypeError(f"row_order must be integers, got {order.dtype}")
    if order.dtype.kind == "u" and order.size and order.max() > np.iinfo(np.int64).max:
        place = int(order.argmax())
        raise ArgumentError(f"row_order has row {order[place]} at place {place}, which no table has")
    return np.ascontiguousarray(order, dtype=np.int64)
