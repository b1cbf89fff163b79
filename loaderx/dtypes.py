"""The names that element types have in a store's schema.

A type is written as NumPy's own string (``<f4``, ``>i2``, ``|b1``, ``<U8``,
``<M8[ns]``), which keeps its byte order. Types that NumPy only knows through
``ml_dtypes`` (bfloat16, the float8 and the 4-bit family) share the string of a
plain void, so they are written by name instead. Without ``ml_dtypes`` there is
no array of them, but their bits are known: unsigned integers of the same width.
"""

import sys

import numpy as np

from .errors import ArgumentError, DtypeError, StoreFormatError

__all__ = [
    "as_record_array",
    "bits_of",
    "element_bytes",
    "filler",
    "from_name",
    "is_tensor",
    "shown",
    "to_name",
    "torch_name",
]

# The types of ml_dtypes and their bytes, for where it is not installed.
_WIDTHS = {"bfloat16": 2, "float4_e2m1fn": 1, "float6_e2m3fn": 1, "float6_e3m2fn": 1} | dict.fromkeys(
    (
        *(f"float8_{form}" for form in ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz")),
        *(f"float8_{form}" for form in ("e5m2", "e5m2fnuz", "e8m0fnu")),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 4)),
    ),
    1,
)


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


def bits_of(name):
    """Return the unsigned integer dtype as wide as the dtype that a schema names, in its byte order.

    Raises
    ------
    DtypeError
        No integer has that width, or nothing is known of the name.
    StoreFormatError
        The name is no dtype that a store can have.
    """
    width = _WIDTHS.get(name) if isinstance(name, str) else None
    if width:
        return np.dtype(f"u{width}")
    dtype = from_name(name)
    if dtype.itemsize not in (1, 2, 4, 8):
        raise DtypeError(f"no unsigned integer is as wide as {dtype}: it has {dtype.itemsize} bytes")
    return np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)


def torch_name(name):
    """Return what torch calls a dtype that NumPy does not have itself; None for NumPy's own."""
    return name if isinstance(name, str) and _plain(name) is None else None


def shown(name):
    """Return a schema's dtype as messages show it: ``float32``, not ``<f4``."""
    return name if torch_name(name) else str(from_name(name))


def element_bytes(value, name):
    """Return the bytes of a number as an element of the dtype that a schema names.

    Without ``ml_dtypes`` torch rounds it, where it is installed.
    """
    try:
        dtype = from_name(name)
    except DtypeError:
        if not any(np.asarray(value).tobytes()):
            return bytes(bits_of(name).itemsize)
        try:
            import torch

            return _from_tensor(torch.tensor(value).to(getattr(torch, name)))[0].tobytes()
        except (ImportError, AttributeError):
            pass
        raise
    return np.asarray(value).astype(dtype).tobytes()


def is_tensor(record):
    """Whether something is a torch tensor; asks for torch only if somebody has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(record, torch.Tensor)


def as_record_array(record):
    """Return a record as an array, without copying where that is possible, and its dtype's name.

    Arrays and anything NumPy converts are taken as they are; a torch tensor is
    detached and brought to the host. One of bfloat16 or the like comes as
    unsigned integers of the same bits, whether or not ``ml_dtypes`` is there.

    Raises
    ------
    DtypeError
        The type can't be stored.
    """
    if is_tensor(record):
        return _from_tensor(record)
    array = record if isinstance(record, np.ndarray) else np.asarray(record)
    return array, to_name(array.dtype)


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
    import torch

    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in _WIDTHS:
        bits = bits_of(name)
        plain = tensor.contiguous().view({1: torch.uint8, 2: torch.int16}[bits.itemsize])
        return plain.numpy().view(bits), name
    try:
        array = tensor.numpy()
    except (TypeError, RuntimeError) as error:
        raise DtypeError(f"a torch.{name} tensor has no NumPy equivalent ({error}); convert it first") from None
    return array, to_name(array.dtype)


def filler(value, dtype):
    """Return a scalar as an array of a dtype, or say why the dtype can't hold it."""
    given = np.asarray(value)
    if given.ndim:
        raise ArgumentError(f"pad_value must be a scalar, got shape {given.shape}")
    kind = given.dtype.kind
    number = isinstance(value, int) or kind in "biufV" or (kind == "c" and dtype.kind == "c")
    if dtype.kind in "biufcV" and not number:
        raise DtypeError(f"pad_value is a {type(value).__name__}, which does not go with records of {dtype}")
    try:
        with np.errstate(all="ignore"):
            cast = given.astype(dtype)
            kept = _holds(cast, given)
    except (ArithmeticError, RuntimeError, TypeError, ValueError):
        kept = False
    if not kept:
        raise ArgumentError(f"records of {dtype} can't hold pad_value={value!r}")
    return cast


def _holds(cast, given):
    """Whether a value that was cast is still the same, but for the rounding of floating-point types."""
    dtype = cast.dtype
    if cast == given or (cast != cast and given != given):  # the latter are NaN and NaT
        return True
    if dtype.kind in "fc" or "float" in dtype.name:
        exact = complex(given)
        return abs(complex(cast) - exact) <= max(1.0, abs(exact)) / 2
    # Of times and strings, what NumPy makes of another type (0 is the epoch) is as good as any.
    return dtype.kind in "mMSU" and given.dtype.kind != dtype.kind
