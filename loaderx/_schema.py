"""The schema of a store: what its bytes mean."""

import json
import operator
import os

import numpy as np

from . import _engine, dtypes
from ._format import format_info
from .errors import ArgumentError, DtypeError, StoreFormatError, ZrecordError

__all__ = ["complete_schema", "item_shape_arg", "merge_schema", "name_arg", "read_schema", "write_schema"]


def read_schema(path):
    """Return the schema of the store at `path`.

    Parameters
    ----------
    path : path_like

    Returns
    -------
    dict
        ``kind``, ``dtype``, ``item_shape``, ``format``, ``version``, ``codec``
        and whatever the writer added.

    Raises
    ------
    StoreNotFoundError
        There is no schema at `path`; nothing is created.
    StoreFormatError
        There is one, but not of this format.
    """
    raw, address, size = _engine.path_arg(path)
    text = _engine.text(_engine.lib.SchemaRead, address, size)
    info, where = format_info(), f"the schema of {os.fsdecode(raw.raw)}"
    try:
        schema = json.loads(text)
    except ValueError:
        raise StoreFormatError(f"{where} is damaged") from None
    if not isinstance(schema, dict) or schema.get("format") != info["format"]:
        raise StoreFormatError(f"{where} is not of the format {info['format']!r}")
    if schema.get("version") != info["version"]:
        raise StoreFormatError(f"{where} has version {schema.get('version')!r}; this release reads {info['version']}")
    shape = schema.get("item_shape")
    if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise StoreFormatError(f"{where} has the item_shape {shape!r}, which is not a list of sizes")
    if not isinstance(schema.get("codec"), str) or schema["codec"] not in info["codecs"]:
        raise StoreFormatError(f"{where} names the codec {schema.get('codec')!r}, of {sorted(info['codecs'])}")
    return schema


def write_schema(path, schema):
    """Write the schema of the store at `path`, replacing the old one in one step."""
    try:
        raw = json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DtypeError(f"the schema's own values must be plain text, numbers, lists and dicts: {error}") from None
    _name, name_at, name_len = _engine.path_arg(path)
    at, size, _owner = _engine.pin(raw)
    _engine.check(_engine.lib.SchemaWrite(name_at, name_len, at, size))


def complete_schema(given, kind, dtype, item_shape, codec):
    """Return the schema of new records, with what the caller's dict adds.

    Parameters
    ----------
    given : dict or None
        The caller's; not changed. Its ``dtype`` and ``item_shape`` must be
        those of the records; kind and codec are set to what is written.
    kind : {"dense", "ragged"}
    dtype : str
    item_shape : tuple of int
    codec : str
    """
    info = format_info()
    schema = {"kind": kind, "dtype": dtype, "item_shape": list(item_shape)}
    if given is not None:
        _check_given(given, schema)
        schema = {**given, **schema}
    schema.setdefault("format", info["format"])
    schema.setdefault("version", info["version"])
    schema["codec"] = codec
    if schema["format"] != info["format"] or schema["version"] != info["version"]:
        raise ArgumentError(
            f"schema has format {schema['format']!r} version {schema['version']!r}; "
            f"this release writes {info['format']!r} version {info['version']}"
        )
    return schema


def merge_schema(path, old, new):
    """Return the schema of an existing store after an append.

    Raises
    ------
    ArgumentError
        The records are of another kind, dtype or shape than the store's.
    """
    if _key(old) != _key(new):
        raise ArgumentError(f"{path} holds {_text(old)} records, can't append {_text(new)} ones")
    return {**old, **new}


def name_arg(given):
    """Return the name of the dtype in a caller's schema, and the dtype that its bytes have.

    The latter is the unsigned integer of the same width where the dtype itself needs ``ml_dtypes``.

    Raises
    ------
    DtypeError
        It is no dtype, or one that can't be stored.
    """
    try:
        # A dtype or a scalar type is as clear as its name.
        if isinstance(given, str) and dtypes.torch_name(given):
            return given, dtypes.bits_of(given)
        dtype = np.dtype(given) if isinstance(given, (np.dtype, type)) else dtypes.from_name(given)
        return dtypes.to_name(dtype), dtype
    except (StoreFormatError, TypeError) as error:
        raise DtypeError(str(error)) from None


def item_shape_arg(given):
    """Return the item_shape of a caller's schema as a tuple of int.

    Raises
    ------
    DtypeError
        It is no list of integers.
    ArgumentError
        A size is less than 1, or more than a record has bytes.
    """
    limit = format_info()["max_record_len"]
    try:
        # A text or a dict would go through as the list of its characters or keys.
        if not isinstance(given, (list, tuple, np.ndarray)):
            raise TypeError
        shape = tuple(operator.index(n) for n in given)
    except TypeError:
        raise DtypeError(f"the schema's item_shape must be a list of sizes, got {given!r}") from None
    if not all(1 <= n <= limit for n in shape):
        raise ArgumentError(f"the schema's item_shape has a size outside 1 to {limit}")
    return shape


def _check_given(given, actual):
    for key, plain in (("dtype", lambda d: name_arg(d)[0]), ("item_shape", _shape_list)):
        if key in given and plain(given[key]) != actual[key]:
            raise ArgumentError(f"the schema's {key} is {given[key]!r}, but the records have {actual[key]!r}")


def _shape_list(given):
    return list(item_shape_arg(given))


def _canonical(name):
    """Return the name that this package gives to a dtype; others may be as good: float32 for <f4."""
    try:
        return dtypes.to_name(dtypes.from_name(name))
    except ZrecordError:
        return name


def _key(schema):
    return schema.get("kind"), _canonical(schema.get("dtype")), list(schema.get("item_shape", ()))


def _text(schema):
    kind, dtype, shape = _key(schema)
    return f"{kind} {dtype}{tuple(shape)}"
