"""What the command lines of the packages have in common."""

import json
import os
import sys

import numpy as np

from .errors import DtypeError, StoreFormatError, ZrecordError

__all__ = ["BAD", "NPY", "OK", "execute", "is_npy", "line", "map_npy", "plain", "prepare", "size"]

#: How a .npy file begins.
NPY = b"\x93NUMPY"

#: Exit statuses; argparse ends with 2 when a command was called wrongly.
OK, BAD, _INTERRUPTED = 0, 1, 130


def prepare():
    """Make the process's streams take any text."""
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a name of any bytes can be shown
            stream.reconfigure(errors="backslashreplace")


def execute(program, args, show):
    """Run a command and return its exit status.

    Parameters
    ----------
    program : str
        Its name, for messages.
    args : argparse.Namespace
        With ``run``, which takes it and returns a result, perhaps None, and a
        status; and with ``json``.
    show : callable
        Prints a result, as JSON or not.
    """
    status = OK
    try:
        result, status = args.run(args)
        if result is not None:
            show(result, args.json)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _silence()
        return status  # whoever read the output has seen enough; what was found stays found
    except (ZrecordError, OSError, ValueError) as error:
        _report(program, error, args.json)
        return BAD


def _report(program, error, as_json):
    """Say why the command failed, if anybody can still be told."""
    try:
        if as_json:
            print(json.dumps({"error": str(error), "kind": type(error).__name__}), flush=True)
        else:
            print(f"{program}: {line(error)}", file=sys.stderr, flush=True)
    except OSError:
        _silence()


def line(value):
    """Return a value's text as one line: a path in it may hold anything."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(value))


def _silence():
    """Send what is left of standard output nowhere: Python would complain when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_npy(path):
    """Whether a file begins as a .npy file does."""
    with open(path, "rb") as file:
        return file.read(len(NPY)) == NPY


def map_npy(path):
    """Map the array of a .npy file."""
    with open(path, "rb") as file:
        begin = file.read(len(NPY))
    if begin.startswith(b"PK"):
        raise StoreFormatError(f"{path} is an archive, perhaps of several arrays: save the one to convert as .npy")
    if begin != NPY:
        raise StoreFormatError(f"{path} is not a .npy file")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        if "objects" in str(error):
            raise DtypeError(f"{path} holds references to Python objects, which can't be stored") from None
        raise StoreFormatError(f"{path} is a damaged .npy file: {error}") from None
    return array


def plain(values):
    """Return an array as nested lists of what JSON has."""
    if values.dtype.kind in "mMSU":
        return values.astype(str).tolist()
    if values.dtype.kind == "c":
        values = np.stack([values.real, values.imag], axis=-1)
    if values.dtype.kind in "biu":
        return values.tolist()
    numbers = values.astype(np.float64)
    return np.where(np.isfinite(numbers), numbers.astype(object), None).tolist()


def size(n):
    """Return a number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} TiB"
