"""Row ids of a query, in the form that the engine takes."""

import numbers
import sys

import numpy as np

from loaderx import _engine
from loaderx.dtypes import is_tensor
from loaderx.errors import ArgumentError, DtypeError, RecordIndexError

from ._arguments import array_of

__all__ = ["apart", "id_memory", "row_ids"]

_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)


def id_memory(ids, name="ids"):
    """Return where row ids lie, as the engine takes them.

    Parameters
    ----------
    ids : array_like of int, any shape
        As for `row_ids`, which says what it raises.
    name : str
        What messages call them.

    Returns
    -------
    address, count, unsigned : int
        Of 64-bit integers, which are unsigned if the last is 1.
    shape : tuple of int
        Shape of `ids`.
    owner : object
        Keep it as long as the memory is used.
    """
    kind = type(ids)
    if kind is np.ndarray:
        if ids.dtype is _INT64 and (address := _engine.plain(ids)) and not address & 7:
            return address, ids.size, 0, ids.shape, ids
    elif _is_plain_tensor(ids, kind):
        return _engine.tensor_address(ids), ids.numel(), 0, tuple(ids.shape), ids
    array, shape = row_ids(ids, name)
    return _engine.address(array), array.size, int(array.dtype is _UINT64), shape, array


def _is_plain_tensor(ids, kind):
    """Whether `ids`, of type `kind`, is a tensor whose memory is int64 numbers one behind the other."""
    torch = sys.modules.get("torch")
    if torch is None or kind is not torch.Tensor:
        return False
    if not (ids.dtype is torch.int64 and ids.is_cpu and ids.layout is torch.strided) or ids.is_nested:
        return False
    return ids.is_contiguous() and not ids.is_neg()


def row_ids(ids, name="ids"):
    """Return row ids as a C-contiguous array of int64 or uint64.

    Parameters
    ----------
    ids : array_like of int, any shape
        An array or CPU tensor of any integer dtype and strides, nested lists of
        integers, or one integer.
    name : str
        What messages call them.

    Returns
    -------
    array : ndarray of int64, or of uint64 for unsigned ids of 64 bits
        As large numbers must not turn into negative ones. The caller's own
        memory where it has this form already.
    shape : tuple of int
        Shape of `ids`.

    Raises
    ------
    DtypeError
        `ids` are no integers, or have a mask.
    RecordIndexError
        An integer needs more than 64 bits.
    """
    if type(ids) is np.ndarray and ids.dtype is _INT64 and ids.flags.c_contiguous and ids.flags.aligned:
        return ids, ids.shape
    array = array_of(ids, name, "integers")
    kind = array.dtype.kind
    if kind == "i" or kind == "u":
        target = np.uint64 if kind == "u" and array.dtype.itemsize == 8 else np.int64
        return np.require(array, target, ("C", "A")), array.shape
    if isinstance(ids, (list, tuple, numbers.Integral)) and not isinstance(ids, bool):
        if array.size == 0:
            # An empty list has no element to tell its type; NumPy takes it for floats.
            return np.empty(array.shape, np.int64), array.shape
        _check_large(ids)
    hint = "; a mask is no list of rows: pass numpy.flatnonzero(mask)" if kind == "b" else ""
    if kind == "f":
        hint = f": pass {name}.long()" if is_tensor(ids) else f": pass numpy.asarray({name}).astype(numpy.int64)"
    raise DtypeError(f"{name} must be of an integer dtype, not {array.dtype}{hint}")


def apart(out, size, name, where, used, what="out"):
    """Refuse memory for results of which a part is read meanwhile.

    Parameters
    ----------
    out, size : int
        Address and bytes of the results.
    name : str
        What is read.
    where, used : int
        Its address and bytes.
    what : str
        What messages call the results.
    """
    if size and used and where < out + size and out < where + used:
        shared = min(where + used, out + size) - max(where, out)
        raise ArgumentError(
            f"{what} must lie apart from {name} in memory, and they share {shared} bytes; pass a copy of {name}"
        )


def _check_large(ids):
    """Raise `RecordIndexError` if `ids` are integers, but not of one type of 64 bits."""
    items = np.asarray(ids, object).reshape(-1)
    if not all(isinstance(item, numbers.Integral) and not isinstance(item, (bool, np.bool_)) for item in items):
        return
    for position, item in enumerate(items):
        if not 0 <= item < 1 << 63:
            raise RecordIndexError(f"id {item} at position {position} is outside every table")
