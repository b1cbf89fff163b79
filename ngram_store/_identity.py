"""Whether a table is the one that it was."""

import errno
import hashlib
import os
import stat
import time

from loaderx import _engine
from loaderx.errors import CorruptRecordError, StoreFormatError

__all__ = ["check_sha256", "identity", "open_regular"]

#: A change within so many nanoseconds of the last one may not change a file's times.
_RACY_NS = 2_000_000_000

_hashed = {}  # what file (name and state) has been read to its end -> its hash


def identity(file):
    """Return what changes when a file is changed or replaced: device, inode, size, time of the last change.

    Raises
    ------
    StoreNotFoundError
        There is no such file.

    Notes
    -----
    A new name, owner or mode changes nothing.
    """
    return _state(file)[:-1]


def _state(file):
    """Return the identity of a file, and when anything of it changed, so that nobody can set it back."""
    try:
        status = os.stat(file)
    except OSError as error:
        raise _engine.system_error(error, f"read the table {file}") from None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def open_regular(file):
    """Return a descriptor of a file to read; of a pipe or device, which could keep a reader waiting, there is none.

    Raises
    ------
    StoreFormatError
        It is no regular file.
    OSError
        As `os.open` raises it.
    """
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        if not stat.S_ISREG(mode):
            raise StoreFormatError(f"{os.fspath(file)} is no regular file, but a pipe or a device")
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_sha256(file, digest):
    """Raise `CorruptRecordError` unless a table has a hash, and return its `identity`.

    Notes
    -----
    The file is read by Python, not by the engine: a worker process restores its modules before
    it installs signal handlers, and the engine's must come after those. A file is read once in
    a process, as long as it is not touched.
    """
    before = _state(file)
    found = _hashed.get((file, before))
    if found is None:
        state = hashlib.sha256()
        buffer = bytearray(1 << 20)
        try:
            with open(open_regular(file), "rb", buffering=0) as stream:
                while n := stream.readinto(buffer):
                    state.update(memoryview(buffer)[:n])
        except OSError as error:
            raise _engine.system_error(error, f"read the table {file}") from None
        found = state.hexdigest()
        # Times have a grain: a file that was just written may yet change within it.
        if _state(file) == before and time.time_ns() - before[-1] > _RACY_NS:
            _hashed[file, before] = found
    if found != digest:
        raise CorruptRecordError(
            f"{file} has the SHA-256 {found}, not {digest}: it was changed or replaced, or is damaged"
        )
    return before[:-1]
