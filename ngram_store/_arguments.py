"""Arguments of tables, checked before the engine sees them."""

import operator

import numpy as np

from loaderx.errors import ArgumentError, DtypeError

__all__ = ["POLICIES", "cache_args", "count", "digest_of"]

#: What a cache keeps, and the engine's numbers of that.
POLICIES = {"blocks": 0, "rows": 1}


def cache_args(cache_bytes, cache_policy):
    """Return a cache's bytes and policy."""
    if cache_policy not in POLICIES:
        raise ArgumentError(f"unknown cache_policy {cache_policy!r}, expected one of {sorted(POLICIES)}")
    return count(cache_bytes, "cache_bytes", 0), cache_policy


def count(value, name, least):
    """Return an integer of at least `least`; `name` stands in messages."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise DtypeError(f"{name} must be an int, got {type(value).__name__}") from None
    if not least <= number < 1 << 62:
        raise ArgumentError(f"{name} must be at least {least} (and no more than memory can hold), got {number}")
    return number


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
