"""Arguments of tables, checked before the engine sees them."""

import operator
from collections.abc import Mapping

import numpy as np

from loaderx._buffers import as_array, masked
from loaderx.dtypes import is_tensor
from loaderx.errors import ArgumentError, DtypeError, PaddingIndexError

__all__ = [
    "BLOCK_ROWS",
    "CHUNK_ROWS",
    "POLICIES",
    "QUERY_CHUNK_ROWS",
    "array_of",
    "cache_args",
    "count",
    "digest_of",
    "flag",
    "instead",
    "one_of",
    "padding_row",
    "reader_options",
]

#: What a cache keeps, and the engine's numbers of that.
POLICIES = {"blocks": 0, "rows": 1}

#: Defaults: rows of a block, ids of a query that are handled at once, rows that are quantised at once.
BLOCK_ROWS, QUERY_CHUNK_ROWS, CHUNK_ROWS = 256, 65536, 4096

_BITS = 62


def array_of(given, name, what):
    """Return numbers as an array, the caller's own memory where that can be.

    Parameters
    ----------
    given : array_like
        A tensor's values are what counts: negative and conjugate ones are computed.
    name, what : str
        For messages: what it is called, and what it must consist of.

    Raises
    ------
    DtypeError
        NumPy can't see it, or it has a mask.
    ArgumentError
        It is ragged, or too deep.
    """
    try:
        array = as_array(given.detach().resolve_conj().resolve_neg() if is_tensor(given) else given)
    except ValueError as error:
        raise ArgumentError(f"{name} must be {what} in a shape without gaps: {error}") from None
    except (TypeError, RuntimeError) as error:  # a tensor on another device, sparse, or of a dtype NumPy lacks
        raise DtypeError(f"{name} must be {what} that NumPy can see: {error}") from None
    if array is None:
        raise masked(name)
    return array


def one_of(name, value, known):
    """Return an argument that is one of some names."""
    if not isinstance(value, str) or value not in known:
        raise ArgumentError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
    return value


def flag(name, value):
    """Return an argument that is true or false."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise DtypeError(f"{name} must be True or False, got {type(value).__name__}")


def instead(given, module=None):
    """Return what a message says about something that has rows, but is none of the things that are taken.

    Parameters
    ----------
    given : object
    module : type, optional
        Of a module, if that is what is taken.
    """
    if module is not None:
        if isinstance(given, Mapping):
            return f"; load a state_dict into a module, or pass one of its tensors to {module.__name__}.from_pretrained"
        rows = isinstance(given, (list, tuple)) or hasattr(given, "__array__")
        return f"; rows alone become one by {module.__name__}.from_pretrained(tensor)" if rows else ""
    if isinstance(given, Mapping):
        return f"; pass one of its tensors, such as that of the key {next(iter(given), 'weight')!r}"
    if isinstance(given, (list, tuple)):
        return "; pass numpy.asarray(it, dtype)"
    return "; pass its weight" if hasattr(given, "weight") else ""


def cache_args(cache_bytes, cache_policy):
    """Return a cache's bytes and policy."""
    return count(cache_bytes, "cache_bytes", 0), one_of("cache_policy", cache_policy, POLICIES)


def reader_options(cache_bytes, cache_policy, threads, query_chunk_rows):
    """Return the options of a reader of rows, by their names."""
    cache_bytes, cache_policy = cache_args(cache_bytes, cache_policy)
    return {
        "cache_bytes": cache_bytes,
        "cache_policy": cache_policy,
        "threads": None if threads is None else count(threads, "threads", 1),
        "query_chunk_rows": None if query_chunk_rows is None else count(query_chunk_rows, "query_chunk_rows", 1),
    }


def count(value, name, least):
    """Return an integer of at least `least` that the engine's arithmetic has room for; `name` stands in messages."""
    number = _index(value, name)
    if not least <= number < 1 << _BITS:
        most = "" if number < least else f" and fit into {_BITS} bits"
        raise ArgumentError(f"{name} must be at least {least}{most}, got {number}")
    return number


def padding_row(index, rows):
    """Return the row of a padding index, which may count from the end."""
    number = _index(index, "padding_idx")
    if not -rows <= number < rows:
        raise PaddingIndexError(f"padding_idx must be in {-rows}..{rows - 1}, got {number}")
    return number % rows


def _index(value, name):
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise DtypeError(f"{name} must be an int, got {type(value).__name__}") from None


def digest_of(checksum):
    """Return the digits of a SHA-256, in lower case."""
    if checksum is None:
        return None
    if not isinstance(checksum, str):
        raise DtypeError(f"checksum must be a str, got {type(checksum).__name__}")
    digest = checksum.lower().removeprefix("sha256:")
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise ArgumentError(f"checksum must be the 64 hexadecimal digits of a SHA-256, got {checksum!r}")
    return digest
