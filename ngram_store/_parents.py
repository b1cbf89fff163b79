"""Directories above what is written, made where they are missing."""

import contextlib
import os

from loaderx import _engine

__all__ = ["make_parents", "parents", "sync"]


@contextlib.contextmanager
def parents(folder):
    """Make a directory for what is written there: durable if that succeeds, removed again if it fails.

    Parameters
    ----------
    folder : str
        Absolute.
    """
    made, process = [], os.getpid()
    try:
        try:
            make_parents(folder, made)
        except OSError as error:
            raise _engine.system_error(error, f"make the directory {folder}") from None
        yield
        for directory in made:
            sync(os.path.dirname(directory))
    except BaseException:
        if os.getpid() == process:  # else a child of what made the rows
            for directory in made:
                with contextlib.suppress(OSError):  # someone else uses it by now
                    os.rmdir(directory)
        raise


def make_parents(folder, made):
    """Make a directory and those above it, and note them in a list, the lowest first."""
    missing = folder
    while not os.path.isdir(missing):
        made.append(missing)
        missing = os.path.dirname(missing)
    os.makedirs(folder, exist_ok=True)


def sync(folder):
    """Make the names in a directory durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
