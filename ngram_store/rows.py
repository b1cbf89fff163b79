"""Reading immutable tables of fixed-width rows."""

import json
from typing import NamedTuple

import numpy as np

from loaderx import _engine
from loaderx._watch import Watch
from loaderx.errors import (
    ArgumentError,
    BufferSizeError,
    CorruptRecordError,
)

from ._arguments import POLICIES, QUERY_CHUNK_ROWS, cache_args, digest_of, flag
from ._ids import apart, id_memory
from ._kinds import check_element, dtype_of, element
from ._numbers import NumberRows
from ._table import OpenTable

__all__ = ["BadBlock", "NativeRows"]

_UINT8 = np.dtype(np.uint8)

#: How many faults an exception spells out.
_SHOWN = 10


class BadBlock(NamedTuple):
    """What is wrong with a table: the block, or -1 for its map and index, and why."""

    block: int
    message: str


class NativeRows(NumberRows, OpenTable):
    """An immutable table of rows of one width in a MEFTNAT1 file, read where it lies.

    Parameters
    ----------
    path : path_like
        The file; `pack_native` writes it.
    cache_bytes : int
        Bound of the memory for decoded rows that are kept, with all
        bookkeeping. Raw rows are read from the file's mapping and need none.
    cache_policy : {"blocks", "rows"}
        Whether decoded blocks are kept, for ids that come in neighbourhoods, or
        single rows, for some rows that are asked for over and over. Those used
        longest ago make room.
    threads : int, optional
        Most threads of one query, the caller's included; by default as many as
        there are cores.
    query_chunk_rows : int or None
        How many ids of a query are handled at once, by default 65536. Within a
        chunk every block is decoded once, and cached rows are read before new
        ones can push them out; larger chunks take more memory (16 bytes an id).
        None handles all ids of a query at once.
    verify : bool
        Check the whole file first: every block, every row of the map.
    checksum : str, optional
        SHA-256 of the file in hexadecimal digits, as `checksum` returns it;
        the file is read and must have it.

    Raises
    ------
    StoreNotFoundError
        There is no file at `path`.
    StoreFormatError
        The file is of another kind or of a newer version.
    CorruptRecordError
        The file is damaged: its header, or anything that `verify` or
        `checksum` looks at.

    Notes
    -----
    Opening reads the header only, whatever the table's size; blocks and map
    entries are checked when they are used. A table holds no file descriptor,
    and goes on reading the bytes it was opened with when another file takes
    the place of its own. One that is shortened in place leads to
    `FileFaultError` where whole pages are gone; the rest of its new last page
    reads as zeros, which only checksums see.

    Safe to use from many threads at once, `close` included; the GIL is
    released. It works in a forked child, which opens the file anew (without
    verifying it again), and is pickled as path and options, and opened at its
    first use. Either must find the file that was opened, unchanged (device,
    inode, size and time of modification, which ``touch`` alone changes), and
    else raises `StoreFormatError`; a pickle also takes a copy of a file of
    version 3, whose header has the checksums of its content.

    The mapped part of the file that was read counts as resident memory of the
    process (``RssFile``), but is page cache, which the system takes back at
    need. The process's own memory (``RssAnon``) is bounded by the cache, and by
    16 bytes an id of a chunk and three decoded blocks a thread while a query
    runs; bags and numbers of a table that is not raw take 32 MiB more. A block
    has at most 256 MiB, unless it is a single row.
    """

    def __init__(
        self,
        path,
        cache_bytes=0,
        cache_policy="blocks",
        threads=None,
        query_chunk_rows=QUERY_CHUNK_ROWS,
        verify=False,
        checksum=None,
    ):
        verify = flag("verify", verify)
        self._configure(path, cache_bytes, cache_policy, threads, query_chunk_rows)
        digest = digest_of(checksum)
        self._open()
        try:
            if digest is not None and digest != (found := self.checksum()):
                raise CorruptRecordError(f"{self._where} has the SHA-256 {found}, not {digest}")
            if verify:
                self._check()
        except BaseException:
            self.close()
            raise

    def gather(self, ids, out=None, dtype=None):
        """Return rows by their ids.

        Parameters
        ----------
        ids : array_like of int, any shape
            Rows to read, in any order, repeats allowed; any integer dtype and
            strides. Negative ids are outside the table.
        out : buffer, optional
            Takes the rows, see `gather_into`. Filling the same memory again
            and again saves the time that new memory costs.
        dtype : dtype or str, optional
            What a row's bytes are, without `out`, by the name of NumPy, torch
            or the table (``"fp16"``): the last axis of the result then counts
            elements of it. ``"int8"`` is NumPy's here. Floating-point numbers
            must be of the kind that the table records, if it records one;
            bytes and integers are always possible.

        Returns
        -------
        ndarray of uint8, shape (*ids.shape, row_bytes)
            Or of `dtype`, shape (*ids.shape, row_bytes // itemsize); or `out`,
            if it was given.

        Raises
        ------
        RecordIndexError
            An id is outside the table; the message names its position in
            ``ids.flat``, its value and the range. Nothing was read.
        DtypeError
            `ids` are not integers, or `dtype` is not what rows consist of.
        CorruptRecordError
            A block that is needed is damaged; the message names it.
        FileFaultError
            The file was shortened while it was open.
        """
        number = self._id()
        if out is not None:
            if dtype is not None:
                raise ArgumentError("dtype is for results that gather makes; out has one already")
            self.gather_into(ids, out)
            return out
        where, n, unsigned, shape, ids = id_memory(ids)
        if dtype is None:
            result = np.empty((*shape, self._row_bytes), _UINT8)
        else:
            dtype = element(dtype, self._row_bytes, self._recorded)
            result = np.empty((*shape, self._row_bytes // dtype.itemsize), dtype)
        self._fill(number, where, n, unsigned, _engine.address(result), result.nbytes, (ids, result))
        return result

    def gather_into(self, ids, out):
        """Copy rows into memory of the caller's.

        Parameters
        ----------
        ids : array_like of int, any shape
            As for `gather`.
        out : ndarray, torch.Tensor on the CPU, memoryview or other buffer
            C-contiguous, writable, and of exactly ``ids.size * row_bytes``
            bytes, whatever its shape, and apart from `ids` in memory. Of any
            dtype, but that floating-point numbers must be of the kind that the
            table records, if it records one. After an error other than those
            about the arguments its content is undefined.

        Raises
        ------
        BufferSizeError
            `out` has another size.
        DtypeError
            `out` is of floating-point numbers that the table does not have;
            `gather_floats` converts.
        ArgumentError
            `out` is not C-contiguous, is read-only, or overlaps `ids`.

        Notes
        -----
        Otherwise as for `gather`. Ctrl-C ends a long call.
        """
        number = self._id()
        where, n, unsigned, _shape, ids = id_memory(ids)
        if getattr(out, "dtype", None) is not self._fits:
            self._check_out(out)
        address = _engine.plain(out) if type(out) is np.ndarray else None
        if address is not None:
            size = out.nbytes
        else:
            address, size, out = _engine.pin(out, writable=True)
        if size != n * self._row_bytes:
            raise BufferSizeError(
                f"{n} rows of {self._row_bytes} bytes are {n * self._row_bytes} bytes, and out has {size}"
            )
        apart(address, size, "ids", where, 8 * n)
        self._fill(number, where, n, unsigned, address, size, (ids, out))

    def _check_out(self, out):
        """Refuse memory for other numbers than the table records."""
        dtype = None if self._recorded is None else dtype_of(out)
        if dtype is not None:
            check_element(dtype, self._recorded, "out is of")
            self._fits = dtype

    def _fill(self, number, ids, n, unsigned, address, size, keep):
        if n <= self._short:
            done = _engine.lib.RowsGather(number, ids, n, unsigned, 0, address, size)
            while done < n:
                start = self._result(_engine.check, done)
                done = _engine.lib.RowsGather(number, ids, n, unsigned, start, address, size)
        else:
            self._result(_engine.run, _engine.lib.RowsGatherAll, number, ids, n, unsigned, address, size, keep=keep)

    def prefetch(self, ids):
        """Have the system read rows into its page cache, in the background.

        Parameters
        ----------
        ids : array_like of int, any shape
            Rows that will be gathered soon; as for `gather`.

        Notes
        -----
        Returns at once. It is a hint: while many prefetches are waiting, more
        do nothing; the rows are neither decoded nor put into the cache.
        """
        number = self._id()
        where, n, unsigned, _shape, ids = id_memory(ids)
        self._result(_engine.check, _engine.lib.RowsPrefetch(number, where, n, unsigned))

    def stats(self):
        """Return counts of what this object did in this process.

        Returns
        -------
        dict
            ``queries``, ``rows``, ``blocks_decoded``, ``compressed_bytes`` and
            ``decoded_bytes`` of those blocks, ``cache_hits`` and
            ``cache_misses``; with ``last_`` before them, all but the first two
            for the query alone that ended last in any thread; and of the
            present cache ``cache_entries``, ``cache_capacity`` (rows or blocks
            that fit) and ``cache_bytes`` (its memory when full).

        Notes
        -----
        Rows of raw blocks are neither hits nor misses.
        """
        return json.loads(self._result(_engine.text, _engine.lib.RowsStats, self._id()))

    @property
    def last_compressed_bytes(self):
        """Bytes as stored of the blocks that the query decoded that ended last."""
        return self.stats()["last_compressed_bytes"]

    @property
    def last_decoded_bytes(self):
        """Bytes of those blocks once decoded."""
        return self.stats()["last_decoded_bytes"]

    def set_cache(self, cache_bytes, cache_policy=None):
        """Replace the cache by an empty one, of another size or policy.

        Parameters
        ----------
        cache_bytes : int
        cache_policy : {"blocks", "rows"}, optional
            As it was, by default.

        Notes
        -----
        Waits for queries that are running in other threads.
        """
        cache = cache_args(cache_bytes, self._options["cache"][1] if cache_policy is None else cache_policy)
        self._result(_engine.check, _engine.lib.RowsSetCache(self._id(), cache[0], POLICIES[cache[1]]))
        self._options["cache"] = cache

    def verify(self):
        """Check the whole file and return what is wrong with it.

        Returns
        -------
        list of BadBlock
            By rising block; empty for a sound table. Each is a pair ``(block,
            message)``; block -1 stands for the map and the index.

        Notes
        -----
        Works on all cores, and beside other calls; Ctrl-C ends it. Raw blocks
        of tables before version 3 have no checksum, so damage in them is not
        seen.
        """
        with Watch("verifying", "B") as watch:
            self._result(watch.run, _engine.lib.RowsVerify, self._id())
            return sorted(BadBlock(found["index"], found["text"]) for found in watch.findings)

    def _check(self):
        bad = self.verify()
        if bad:
            shown = "; ".join(fault.message for fault in bad[:_SHOWN])
            more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
            raise CorruptRecordError(f"{self._where} is damaged: {shown}{more}")

    def checksum(self):
        """Return the SHA-256 of the whole file in hexadecimal digits, as ``sha256sum`` prints it."""
        out = np.zeros(32, np.uint8)
        with Watch("reading", "B") as watch:
            self._result(watch.run, _engine.lib.RowsChecksum, self._id(), _engine.address(out))
        return out.tobytes().hex()
