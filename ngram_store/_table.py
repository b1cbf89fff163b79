"""Opening and closing a row table: options, forks, pickles."""

import json
import os

import numpy as np

from loaderx import _engine
from loaderx.errors import ClosedError, StoreFormatError

from ._arguments import POLICIES, reader_options
from ._formats import not_a_table

__all__ = ["OpenTable", "same_table"]

#: From so many bytes to decode on, at worst, a query runs as a job that Ctrl-C can end.
_LONG = 16 << 20


class OpenTable:
    """Base of `ngram_store.NativeRows`: the life of its handle, and what the header says."""

    #: Width of a row if the file has no header and is nothing but rows, else 0.
    _plain = 0

    def _configure(self, path, cache_bytes, cache_policy, threads, query_chunk_rows, opened=None):
        _engine.path_arg(path)  # refuses what is no path
        self._path = os.fsdecode(path)
        # A relative path would name another file after chdir, in a child or at a reopening.
        self._where = os.path.abspath(self._path)
        # Shared with the handle's opener, which must not refer to this object: the two would keep
        # each other alive.
        given = reader_options(cache_bytes, cache_policy, threads, query_chunk_rows)
        self._options = {
            "cache": (given["cache_bytes"], given["cache_policy"]),
            "threads": given["threads"],
            "chunk": given["query_chunk_rows"],
        }
        self._lock = _engine.Lock()
        self._closed = False
        self._handle = self._info = None
        #: The header and the identity of the file, once it is known which one it is.
        self._opened = opened
        self._row_bytes = self._short = 0
        self._recorded = None
        #: A dtype of memory that takes rows; the last one that was checked.
        self._fits = None

    def _open(self):
        raw, address, size = _engine.path_arg(self._where)
        where, options, plain, pickled, seen = self._where, self._options, self._plain, self._opened, []

        def open_(number, _raw=raw):  # which owns the memory at `address`
            cache_bytes, policy = options["cache"]
            threads, chunk = options["threads"] or 0, options["chunk"] or -1
            status = _engine.lib.RowsOpen(number, address, size, cache_bytes, POLICIES[policy], threads, chunk, plain)
            if status >= 0:
                info = json.loads(_engine.text(_engine.lib.RowsInfo, number))
                found = info, info.pop("file")
                if found != seen[0] if seen else not same_table(pickled, found):
                    raise StoreFormatError(
                        f"{where} was changed or replaced by another table since it was opened; open it again to read "
                        "that"
                    )
                seen[:] = [found]
            return status

        try:
            handle = _engine.Handle(open_, what=f"the table {where}")
        except StoreFormatError as error:
            raise StoreFormatError(not_a_table(where) or str(error)) from None
        self._opened = seen[0]
        self._info = info = seen[0][0]
        self._row_bytes, self._recorded = info["row_bytes"], info["dtype"]
        self._fits = np.dtype(np.uint8)
        block = min(info["block_rows"], max(info["stored_rows"], 1)) * info["row_bytes"]
        # Most ids of a query that is short whatever they are.
        self._short = 1 << 62 if info["raw"] else max(_LONG // block, 1)
        self._handle = handle
        if self._closed:  # by another thread, meanwhile
            handle.close()

    def _result(self, call, *args, **options):
        """Return what a call of the engine returns; if the table was closed meanwhile, say that."""
        try:
            return call(*args, **options)
        except ClosedError:
            self._check_open()
            raise

    def _check_open(self):
        if self._closed:
            raise ClosedError(f"the table {self._where} was closed") from None

    def _id(self):
        """Return the engine's number of the table."""
        handle = self._handle
        if handle is None:  # it was unpickled
            with self._lock():
                self._check_open()
                if self._handle is None:
                    self._open()
                handle = self._handle
        return handle.id()

    def __len__(self):
        return self._described()["rows"]

    @property
    def row_bytes(self):
        """Width of a row in bytes."""
        return self._described()["row_bytes"]

    @property
    def shape(self):
        """Number of rows and width of a row in bytes."""
        info = self._described()
        return info["rows"], info["row_bytes"]

    @property
    def dtype(self):
        """What the table records of its rows: ``"fp32"`` for one, ``"other"``, or None (see `pack_native`)."""
        return self._described()["dtype"]

    @property
    def path(self):
        """The file, as it was given."""
        return self._path

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._closed

    def _described(self):
        if self._info is None:
            self._id()
        return self._info

    def info(self):
        """Return what the table consists of.

        Returns
        -------
        dict
            ``version``, ``rows``, ``stored_rows`` (fewer when equal ones are
            shared), ``row_bytes``, ``blocks``, ``block_rows``,
            ``element_bytes`` (of shuffled blocks), ``identity`` (there is no
            map), ``raw`` (all blocks are), ``dtype`` (of the rows, None if it
            is not recorded, as in versions 1 and 2), ``file_bytes``,
            ``payload_bytes`` (of all blocks as stored), and
            ``index_checksum`` (CRC-32C of map and descriptors).
        """
        return dict(self._described())

    def stamp(self):
        """Return header and identity of the file, which tell it from others; JSON can hold them."""
        self._described()
        return self._opened

    def close(self):
        """Close the table. Idempotent.

        Calls that other threads have begun are waited for; later ones raise
        `ClosedError`.
        """
        self._closed = True
        if self._handle is not None:
            self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def __repr__(self):
        state = " (closed)" if self._closed else ""
        return f"{type(self).__name__}({self._path!r}){state}"

    def __getstate__(self):
        if self._closed:
            raise ClosedError(f"{self!r} can't be pickled or copied")
        cache_bytes, policy = self._options["cache"]
        return {
            "path": self._where,
            "cache_bytes": cache_bytes,
            "cache_policy": policy,
            "threads": self._options["threads"],
            "query_chunk_rows": self._options["chunk"],
            "opened": self._opened,
        }

    def __setstate__(self, state):
        # Opened at its first use: a worker process installs its signal handlers before that,
        # and the engine's, which turn faults on mapped files into errors, must come after.
        self._configure(**state)


def same_table(pickled, found):
    """Whether a file is the one that a pickled table was opened with; both are of `OpenTable.stamp`.

    A copy of it, as another machine may have, is told by its header if that has the checksums of
    the content, which is so since version 3.
    """
    if pickled is None or list(pickled) == list(found):  # JSON knows no tuples
        return True
    return pickled[0] == found[0] and found[0]["version"] >= 3
