"""A reader of bundles in a few lines of Python, which says what the engine must do.

Bundles that were exported with ``backend="python"`` are read by it. Their table is nothing but
the rows, back to back.
"""

import hashlib
import os

import numpy as np

from loaderx import _engine
from loaderx._buffers import bytes_of
from loaderx.errors import BufferSizeError, ClosedError, CorruptRecordError, RecordIndexError

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
    Safe to use from many threads. It knows no cache, no checksums and no faults: a file that
    is shortened while it is mapped ends the process.
    """

    def __init__(self, path, rows, row_bytes):
        size = os.path.getsize(path)
        if size != rows * row_bytes:
            raise CorruptRecordError(
                f"{os.fspath(path)} has {size} bytes, and {rows} rows of {row_bytes} have {rows * row_bytes}"
            )
        shape = rows, row_bytes
        self._rows = np.memmap(path, np.uint8, "r", shape=shape) if size else np.empty(shape, np.uint8)
        self._path = os.fsdecode(path)
        self.closed = False

    def gather(self, ids):
        """Return rows as an array of uint8, shape (*ids.shape, row_bytes)."""
        if self.closed:
            raise ClosedError(f"the table {self._path} was closed")
        array, shape = row_ids(ids)
        for position, row in enumerate(array.reshape(-1).tolist()):
            if not 0 <= row < len(self._rows):
                raise RecordIndexError(
                    f"id {row} at position {position}: want 0 to {len(self._rows) - 1}: table {self._path}"
                )
        return np.asarray(self._rows[array]).reshape(*shape, self._rows.shape[1])

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
        return self._rows.shape[0]

    @property
    def row_bytes(self):
        """Width of a row in bytes."""
        return self._rows.shape[1]

    def close(self):
        """Close the table."""
        self.closed = True


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
