"""A reader of bundles in a few lines of Python, which says what the engine must do.

Bundles that were exported with ``backend="python"`` are read by it. Their table is nothing but
the rows, back to back.
"""

import hashlib
import os
import weakref

import numpy as np

from loaderx import _engine
from loaderx._buffers import bytes_of
from loaderx.errors import BufferSizeError, ClosedError, CorruptRecordError, FileFaultError, RecordIndexError

from ._identity import open_regular
from ._ids import row_ids
from ._spool import write_whole

__all__ = ["PythonRows", "write_rows"]


class PythonRows:
    """Rows of one width in a raw file; what tests compare `NativeRows` with.

    Parameters
    ----------
    path : path_like
    rows, row_bytes : int

    Notes
    -----
    Safe to use from many threads, one of which reads at a time. It knows no cache and no
    checksums. A file that is shortened meanwhile leads to `FileFaultError`.
    """

    def __init__(self, path, rows, row_bytes):
        self._path = os.fsdecode(path)
        self.shape = rows, row_bytes
        self.closed = False
        self._lock = _engine.Lock()
        try:
            self._fd = open_regular(path)
        except OSError as error:
            raise _engine.system_error(error, f"read the table {self._path}") from None
        # Not a file of Python's, which would warn when it is closed because nobody refers to it.
        self._release = weakref.finalize(self, os.close, self._fd)
        self._release.atexit = False
        size = os.fstat(self._fd).st_size
        if size != rows * row_bytes:
            self.close()
            raise CorruptRecordError(
                f"{self._path} has {size} bytes, and {rows} rows of {row_bytes} have {rows * row_bytes}"
            )

    def gather(self, ids):
        """Return rows as an array of uint8, shape (*ids.shape, row_bytes)."""
        array, shape = row_ids(ids)
        numbers = array.reshape(-1).tolist()
        with self._lock():
            if self.closed:
                raise ClosedError(f"the table {self._path} was closed")
            for position, row in enumerate(numbers):
                if not 0 <= row < len(self):
                    raise RecordIndexError(
                        f"id {row} at position {position}: want 0 to {len(self) - 1}: table {self._path}"
                    )
            out = np.empty((len(numbers), self.row_bytes), np.uint8)
            self._read(numbers, out)
        return out.reshape(*shape, self.row_bytes)

    def _read(self, numbers, out):
        rows, width = self.shape
        try:
            size = os.fstat(self._fd).st_size
            whole = size >= rows * width and all(
                os.preadv(self._fd, [place], row * width) == width for row, place in zip(numbers, out, strict=True)
            )
        except OSError as error:
            raise _engine.system_error(error, f"read the table {self._path}") from None
        if not whole:
            raise FileFaultError(f"{self._path} was shortened since it was opened, when it had {rows * width} bytes")

    def gather_into(self, ids, out):
        """Copy rows into memory of the caller's."""
        rows = self.gather(ids)
        _address, size, owner = _engine.pin(out, writable=True)
        if size != rows.nbytes:
            raise BufferSizeError(f"the rows are {rows.nbytes} bytes, and out has {size}")
        bytes_of(owner)[:] = rows.reshape(-1)

    def prefetch(self, ids):
        """Do nothing, but for the errors of ids that are no integers."""
        row_ids(ids)

    def stats(self):
        """Return no counts."""
        return {}

    def __len__(self):
        return self.shape[0]

    @property
    def row_bytes(self):
        """Width of a row in bytes."""
        return self.shape[1]

    def close(self):
        """Close the table. Idempotent."""
        with self._lock():
            self.closed = True
            self._release()


def write_rows(path, chunks):
    """Write chunks of rows, arrays of uint8, to a file, durably, and return its size and its SHA-256."""
    state, size = hashlib.sha256(), 0
    with open(path, "xb", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        for chunk in chunks:
            state.update(chunk)
            write_whole(file.fileno(), chunk)
            size += memoryview(chunk).nbytes
        os.fsync(file.fileno())
    return size, state.hexdigest()
