"""Whose memory the engine can use as it is, and why it can't use others'."""

import sys
from itertools import chain

import numpy as np

from .errors import ArgumentError, DtypeError

__all__ = ["array_over", "as_array", "bytes_of", "check_tensor", "dense", "masked"]

_INT, _LISTS = frozenset({int}), frozenset({list, tuple})

#: How deep lists may be that become an array.
_DEPTH = 64

#: Up to so many elements a loop over their types is faster than a set of them.
_FEW = 16

#: From so many integers on an array is made faster if NumPy need not look for their dtype.
_MANY = 48


def as_array(given):
    """Return what NumPy makes of something, the same array of an array; None if that would drop a mask.

    Masked arrays are found in lists and tuples however deep they lie.
    """
    kind = type(given)
    if kind is np.ndarray:
        return given
    if kind is list or isinstance(given, (list, tuple)):
        if len(given) >= _FEW:
            return _of_ints(given, given, (len(given),)) if set(map(type, given)) == _INT else _of_nested(given)
        for one in given:
            if type(one) is not int:
                return _of_nested(given)
    elif issubclass(kind, np.ma.MaskedArray):
        return None
    return np.asarray(given)


def _of_nested(given):
    """Return lists of anything as an array, None if there is a mask in them."""
    level, shape = given, (len(given),)
    for _ in range(_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _INT:
            return _of_ints(given, level, shape)
        if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
            return None
        if kinds <= _LISTS:
            lengths = set(map(len, level))
            shape = (*shape, *lengths) if len(lengths) == 1 and shape else ()
            level = list(chain.from_iterable(level))
        elif any(issubclass(kind, (list, tuple)) for kind in kinds):
            shape = ()
            level = list(chain.from_iterable(inner for inner in level if isinstance(inner, (list, tuple))))
        else:
            break
    return np.asarray(given)


def _of_ints(given, flat, shape):
    """Return lists of ints, which are `flat` without nesting, as an array; `shape` is empty if they are ragged."""
    if shape and len(flat) >= _MANY:
        try:
            return np.fromiter(flat, np.int64, len(flat)).reshape(shape)
        except (OverflowError, ValueError):  # beyond 64 bits, or another thread took some away
            pass
    return np.asarray(given)


def array_over(obj):
    """View any buffer but a tensor as an array without copying it.

    Raises
    ------
    DtypeError
        `obj` is no buffer, or has a mask.
    ArgumentError
        It is not C-contiguous.
    """
    if isinstance(obj, np.ndarray):
        if np.ma.isMaskedArray(obj):
            raise masked("an array")
        return obj
    try:
        view = memoryview(obj)
    except TypeError:
        kind = f"{type(obj).__module__}.{type(obj).__qualname__}"
        raise DtypeError(f"expected an array or a buffer, got {kind}") from None
    if not view.c_contiguous:
        raise ArgumentError("buffer is not C-contiguous; pass numpy.ascontiguousarray(x)")
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    return np.frombuffer(view, np.uint8)


def bytes_of(memory):
    """View a C-contiguous array or dense tensor as a flat array of uint8."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(memory, torch.Tensor):
        # Not every dtype of torch's is one of NumPy's.
        memory = memory.detach().flatten().view(torch.uint8).numpy()
    return memory.reshape(-1).view(np.uint8)


def dense(tensor, what):
    """Return a tensor that has memory of the CPU's; refuse others, `what` standing in messages."""
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else tensor.layout
        raise DtypeError(f"{what} must be a dense tensor on the CPU, got {kind} on {tensor.device}")
    if type(tensor) is not torch.Tensor and tensor.untyped_storage().device.type != "cpu":
        raise DtypeError(f"{what} must be a tensor with memory, got a {type(tensor).__name__}, which has none")
    return tensor


def check_tensor(tensor):
    """Raise the exception that says why a tensor's memory can't be used as it is."""
    dense(tensor, "what shares its memory")
    if not tensor.is_contiguous():
        raise ArgumentError("tensor is not contiguous; pass tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise ArgumentError("tensor is not yet computed; pass tensor.resolve_conj().resolve_neg()")


def masked(what):
    """Return the error for a masked array, whose mask would go unseen."""
    return DtypeError(f"{what} must have no mask, got a masked array; pass .filled(value) or .compressed()")
