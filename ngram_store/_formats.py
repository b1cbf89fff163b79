"""What a file is, by how it begins: neither rows alone, nor always a table."""

import os
import stat

from loaderx import _engine
from loaderx._terminal import NPY
from loaderx.errors import ArgumentError, StoreExistsError, ZrecordError

from .bundle import read_bundle

__all__ = ["check_replaceable", "not_a_table", "refuse_formats"]

_TABLE = b"MEFTNAT1"

#: How files begin that hold more than rows, what they are, and what to do with one.
_FORMATS = {
    NPY: ("a .npy file", "pass numpy.load(path, mmap_mode='r')"),
    b"PK\x03\x04": ("a zip archive (.npz, .pt)", "load it and pass the array"),
    _TABLE: ("a table already", None),
}
_SAFETENSORS = ("a .safetensors file", "load it and pass the tensor")


def _known(path):
    """Return what a file is that is more than rows, and what to do with it, perhaps None.

    Returns
    -------
    tuple or None
        None also if it can't be read: who opens it in earnest says why.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            first = file.read(10)
            for sign, what in _FORMATS.items():
                if first.startswith(sign):
                    return what
            return _SAFETENSORS if _is_safetensors(first, file, status.st_size) else None
    except OSError:
        return None


def _is_safetensors(first, file, size):
    """Whether a file begins with the length of a header that fits into it, and an object of JSON of that length."""
    length = int.from_bytes(first[:8], "little")
    if first[8:9] != b"{" or first[9:10] not in (b'"', b"}", b" ") or not 2 <= length <= size - 8:
        return False
    file.seek(8 + length - 1)
    return file.read(1) in (b"}", b" ")


def refuse_formats(path, to=""):
    """Refuse a file that holds more than rows.

    Parameters
    ----------
    path : str
    to : str
        What messages say about where to pass its content instead.
    """
    found = _known(path)
    if found is not None:
        what, remedy = found
        raise ArgumentError(f"{path} is no file of rows alone, but {what}{f': {remedy}{to}' if remedy else ''}")


def not_a_table(path):
    """Return what is at a path where a table was looked for, and what opens or packs it; None if that is not known."""
    if os.path.isdir(path):
        try:
            bundle = read_bundle(path)
        except ZrecordError:
            return f"{path} is a directory, and neither a table nor a bundle"
        return bundle.described + (f"; its table alone is {bundle.table_path}" if bundle.backend == "native" else "")
    what, remedy = _known(path) or (None, None)
    return remedy and f"{path} is {what} and no table: {remedy} to pack_native, which makes one"


def check_replaceable(path):
    """Refuse to write a table where there is a file that is none.

    Raises
    ------
    StoreExistsError
        There is one, and it is not empty.
    """
    if not os.path.isfile(path):
        return
    try:
        with open(path, "rb") as file:
            first = file.read(len(_TABLE))
    except OSError as error:
        raise _engine.system_error(error, f"read {path}, to see whether it is a table") from None
    if first and first != _TABLE:
        raise StoreExistsError(
            f"{path} is a file and no table, so it is left alone: choose another path, or move it away"
        )
