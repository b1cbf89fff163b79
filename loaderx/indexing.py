"""NumPy's indexing rules, for arrays whose rows must be fetched first.

Only the part of an index that selects along axis 0 decides which records are
read. `Plan` finds that part, `select` turns it into record numbers, and the
rest of the index is left to NumPy, applied to the block that was read. So the
rules (and the errors) are NumPy's own.
"""

import operator

import numpy as np

from ._buffers import as_array
from .errors import RecordIndexError

__all__ = ["INT64", "Plan", "outside", "scalar", "select"]

INT64 = np.dtype(np.int64)
_KINDS = (
    "only integers, slices (`:`), ellipsis (`...`), numpy.newaxis (`None`) and integer or boolean arrays are valid "
    "indices"
)


def select(index, records):
    """Turn a slice, mask or array of integers into record numbers.

    Parameters
    ----------
    index : slice, array_like of int or array_like of bool
        Integers may be negative; a mask has one element per record.
    records : sized
        What is indexed; asked for its length only where that matters.

    Returns
    -------
    rows : ndarray of int64 (uint64 for a uint64 index), shape (n,)
        C-contiguous; negative numbers are left to the engine, which also
        checks the range.
    shape : tuple of int
        Shape that the index gives to axis 0 of the result.

    Raises
    ------
    RecordIndexError
        The index is of another kind, a masked array, or a mask of another length.
    """
    if type(index) is slice:
        rows = np.arange(*index.indices(len(records)), dtype=np.int64)
        return rows, rows.shape
    array = _unmasked(index)
    dtype = array.dtype
    if dtype is INT64 and array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned:
        return array, array.shape
    kind = dtype.kind
    if kind == "i" or kind == "u":
        # uint64 keeps its type: its upper half would turn into negative numbers.
        target = np.uint64 if dtype.itemsize == 8 and kind == "u" else np.int64
        return np.require(array, target, ("C", "A")).reshape(-1), array.shape
    if kind == "b":
        if array.ndim != 1 or array.size != len(records):
            raise RecordIndexError(
                f"boolean index of shape {array.shape} did not match the {len(records)} records along axis 0"
            )
        rows = np.flatnonzero(array).astype(np.int64, copy=False)
        return rows, rows.shape
    if array.size == 0 and not isinstance(index, (np.ndarray, np.generic, str, bytes)):
        # An empty list has no element to tell its type; NumPy takes it for integers.
        return np.empty(0, dtype=np.int64), array.shape
    if isinstance(index, (np.ndarray, np.generic)):
        raise RecordIndexError(f"arrays used as indices must be of integer (or boolean) type, not {array.dtype}")
    raise RecordIndexError(f"{_KINDS}; got {_short(index)}")


class Plan:
    """How to answer ``a[index]`` by reading some rows of ``a``.

    Parameters
    ----------
    index : object
        Anything, as given to ``__getitem__``.
    shape : tuple of int
        Shape of the whole array.

    Attributes
    ----------
    rows : ndarray of int64 or uint64, shape (n,)
        The records to read.
    inner : tuple
        The index to apply to the block of those records.
    """

    def __init__(self, index, shape):
        parts = list(index) if isinstance(index, tuple) else [index]
        parts = _expand_masks([_classify(part) for part in parts], shape)
        needed = sum(1 for part in parts if _consumes(part))
        if needed > len(shape):
            raise RecordIndexError(
                f"too many indices: the dataset is {len(shape)}-dimensional, but {needed} were indexed"
            )
        if sum(1 for part in parts if part is Ellipsis) > 1:
            raise RecordIndexError("an index can only have a single ellipsis ('...')")
        at = 0
        while at < len(parts) and not _consumes(parts[at]):
            if parts[at] is Ellipsis and needed < len(shape):
                break
            at += 1
        first = parts[at] if at < len(parts) else Ellipsis
        if first is Ellipsis:
            self.rows = np.arange(shape[0], dtype=np.int64)
        elif isinstance(first, int):
            try:
                self.rows = np.array([first], dtype=np.int64)
            except OverflowError:
                raise outside(first) from None
            parts[at] = 0
        else:
            self.rows, axis_shape = select(first, range(shape[0]))
            if type(first) is slice:
                parts[at] = slice(None)
            else:
                parts[at] = np.arange(self.rows.size).reshape(axis_shape)
        self.inner = tuple(parts)


def _classify(part):
    """Reduce one element of an index to int, slice, None, Ellipsis, bool or ndarray."""
    if part is None or part is Ellipsis or type(part) is slice:
        return part
    if isinstance(part, (bool, np.bool_)):
        return np.bool_(part)
    number = scalar(part)
    if number is not None:
        return number
    array = _unmasked(part)
    if array.dtype.kind == "b":
        return array if array.ndim else array[()]
    if array.ndim == 0:
        raise RecordIndexError(f"{_KINDS}; got {_short(part)}")
    rows, shape = select(part, ())
    return rows.reshape(shape)


def _unmasked(index):
    array = as_array(index)
    if array is None:
        raise RecordIndexError(
            "an index must have no mask of its own, got a masked array; pass .filled(value) or .compressed()"
        )
    return array


def scalar(index):
    """Return an index of one record as an int, or None if it is something else."""
    if isinstance(index, (bool, np.bool_)) or getattr(index, "ndim", 0) != 0:
        return None
    try:
        return operator.index(index)
    except TypeError:
        return None


def _expand_masks(parts, shape):
    """Replace masks of several dimensions by the integer arrays they stand for."""
    result, axis = [], 0
    for number, part in enumerate(parts):
        if isinstance(part, np.ndarray) and part.dtype.kind == "b" and (part.ndim > 1 or axis > 0):
            _check_mask(part, shape[axis : axis + part.ndim])
            result.extend(part.nonzero())
            axis += part.ndim
            continue
        if part is Ellipsis:
            rest = parts[number + 1 :]
            axis = len(shape) - sum(_width(other) for other in rest)
        elif _consumes(part):
            axis += 1
        result.append(part)
    return result


def _check_mask(mask, expected):
    if mask.shape != tuple(expected):
        raise RecordIndexError(f"boolean index of shape {mask.shape} did not match the indexed shape {expected}")


def _width(part):
    """Number of axes that a classified part indexes."""
    if isinstance(part, np.ndarray) and part.dtype.kind == "b":
        return part.ndim
    return 1 if _consumes(part) else 0


def _consumes(part):
    return part is not None and part is not Ellipsis and not isinstance(part, np.bool_)


def outside(index):
    """Return the error for an integer that no 64 bits hold."""
    return RecordIndexError(f"index {index} is outside every store")


def _short(value):
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
