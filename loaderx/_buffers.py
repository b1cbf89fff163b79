"""Whose memory the engine can use as it is, and why it can't use others'."""

import sys

import numpy as np

from .errors import ArgumentError, DtypeError

__all__ = ["array_over", "check_tensor", "dense", "masked"]


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
