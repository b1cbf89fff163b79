"""Checks of arguments that several modules take."""

import operator

import numpy as np

from .errors import ArgumentError, DtypeError

__all__ = ["integer"]


def integer(name, value, low, high, what=""):
    """Return an argument as an int in low..high, or say what is allowed."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise DtypeError(f"{name} must be an integer{what}, got {value!r} ({type(value).__name__})") from None
    if not low <= number <= high:
        raise ArgumentError(f"{name} must be in {low}..{high}{what}, got {number}")
    return number
