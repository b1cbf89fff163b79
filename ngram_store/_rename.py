"""Putting a directory in the place of another, in one step where the system can."""

import ctypes
import errno
import os

__all__ = ["exchange"]

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(new, old):
    """Put a directory where another one is, which comes to lie where the first was.

    Where the system has no such operation, there is nothing at the place for a moment.
    """
    if not _exchanged(new, old):
        aside = f"{new}.old"
        try:
            os.rename(old, aside)
            os.rename(new, old)
            os.rename(aside, new)
        except BaseException:  # a signal handler may raise after any of them
            if os.path.lexists(aside):
                if os.path.lexists(old):
                    os.rename(old, new)
                os.rename(aside, old)
            raise


def _exchanged(new, old):
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    paths = [os.fsencode(path) for path in (new, old)]
    if rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), old)
