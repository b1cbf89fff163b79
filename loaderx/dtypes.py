"""The names that element types have in a store's schema.

A type is written as NumPy's own string (``<f4``, ``>i2``, ``|b1``, ``<U8``,
``<M8[ns]``), which keeps its byte order. Types that NumPy only knows through
``ml_dtypes`` (bfloat16, the float8 and the 4-bit family) share the string of a
plain void, so they are written by name instead.
"""

import numpy as np

from .errors import DtypeError, StoreFormatError

__all__ = ["as_record_array", "from_name", "to_name"]


def to_name(dtype):
    """Return the schema's name of a dtype.

    Parameters
    ----------
    dtype : dtype_like

    Returns
    -------
    str

    Raises
    ------
    DtypeError
        The type can't be stored: Python objects, variable-length strings,
        structured and void types.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise DtypeError(
            f"dtype {dtype} holds references to Python objects, which can't be stored; convert to a numeric "
            "or a fixed-width string dtype first"
        )
    if dtype.names is not None or dtype.subdtype is not None:
        raise DtypeError(f"structured dtype {dtype} can't be stored; write one store per field")
    if dtype.type is np.void:
        raise DtypeError(f"dtype {dtype} has no element type; view the data as uint8 first")
    if _plain(dtype.str) == dtype:
        return dtype.str
    if dtype.isnative and _extension(dtype.name) == dtype:
        return dtype.name
    raise DtypeError(f"dtype {dtype} is known neither to NumPy nor to ml_dtypes and can't be stored")


def from_name(name):
    """Return the dtype that a schema names; the reverse of `to_name`.

    Raises
    ------
    DtypeError
        The name belongs to ``ml_dtypes``, which is not installed.
    StoreFormatError
        The name is no dtype that a store can have.
    """
    dtype = None
    if isinstance(name, str):
        dtype = _plain(name)
        if dtype is None:
            dtype = _extension(name)
        if dtype is None and name.lower().startswith(("bfloat", "float", "int", "uint")):
            raise DtypeError(
                f"the store's dtype {name!r} needs ml_dtypes, which is missing or too old: pip install ml_dtypes"
            )
    # A damaged or hostile schema must not make NumPy read bytes as pointers, nor rows of no bytes ("S0").
    if dtype is None or dtype.hasobject or dtype.names is not None or dtype.subdtype is not None or not dtype.itemsize:
        raise StoreFormatError(f"the schema's dtype {name!r} is not the name of a storable dtype")
    return dtype


def as_record_array(record):
    """Return a record as an array without copying where that is possible.

    Arrays and anything NumPy converts are taken as they are; a torch tensor is
    detached and brought to the host, a bfloat16 one through ``ml_dtypes``.
    """
    if isinstance(record, np.ndarray):
        return record
    if hasattr(record, "detach") and hasattr(record, "numpy"):
        return _from_tensor(record)
    return np.asarray(record)


def _plain(name):
    """NumPy's own dtype of that name, or None."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        return None
    # Once ml_dtypes is imported NumPy also answers to its names, as an alias.
    return dtype if dtype.type.__module__ != "ml_dtypes" else None


def _extension(name):
    """The ml_dtypes dtype of that name, or None."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    scalar = getattr(ml_dtypes, name, None)
    return np.dtype(scalar) if isinstance(scalar, type) and issubclass(scalar, np.generic) else None


def _from_tensor(tensor):
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    try:
        return tensor.numpy()
    except TypeError:
        # NumPy has no such type itself: hand the bits over as integers.
        dtype = _extension(name)
        if dtype is None:
            raise DtypeError(
                f"a torch.{name} tensor has no NumPy equivalent; pip install ml_dtypes, or convert it first"
            ) from None
        import torch

        bits = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        return tensor.contiguous().view(bits).numpy().view(dtype)
