"""A file without a name, for rows that are to be looked at again."""

import contextlib
import mmap
import os
import tempfile

import numpy as np

from loaderx import _engine
from loaderx.errors import ForkError

__all__ = ["Spool", "write_whole"]

#: Pieces of fewer bytes are collected to so many.
_COLLECTED = 1 << 20


class Spool:
    """Bytes that are written one after another and then mapped; a context, which ends the file.

    Parameters
    ----------
    folder : str
        The directory whose file system takes them.

    Notes
    -----
    It is of the process that made it. A forked child closes its descriptor at once and holds no
    bytes that its exit could write, so it neither changes the file nor keeps its space.
    """

    def __init__(self, folder):
        self._folder, self._process = folder, os.getpid()
        self._few = bytearray()
        with self._told():
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                self._fd = os.dup(file.fileno())
            _engine.close_in_child(self, self._fd)

    @contextlib.contextmanager
    def _told(self):
        if os.getpid() != self._process:
            raise ForkError(
                f"rows are collected in {self._folder} by the parent process, and a child can't add to them"
            )
        try:
            yield
        except OSError as error:
            raise _engine.system_error(
                error, f"keep rows that are to be reordered in a file without a name in {self._folder}"
            ) from None

    def write(self, flat):
        """Append the bytes of an array of uint8."""
        with self._told():
            if flat.nbytes < _COLLECTED:
                self._few += flat.data
            if len(self._few) >= _COLLECTED or flat.nbytes >= _COLLECTED:
                self._flush()
            if flat.nbytes >= _COLLECTED:
                write_whole(self._fd, flat)

    def _flush(self):
        write_whole(self._fd, self._few)
        self._few.clear()

    def mapped(self):
        """Return all bytes as an array of uint8, which is valid after the end of the context, too."""
        with self._told():
            self._flush()
            size = os.fstat(self._fd).st_size
            return np.frombuffer(mmap.mmap(self._fd, size, access=mmap.ACCESS_READ) if size else b"", np.uint8)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        if os.getpid() == self._process:
            os.close(self._fd)


def write_whole(fd, data):
    """Write all of a buffer to a file, past any buffer that a forked child would write once more."""
    with memoryview(data) as view, view.cast("B") as rest:
        done = 0
        while done < len(rest):
            done += os.write(fd, rest[done:])
