"""What ``bundle.json`` may say; `ngram_store.bundle` tells what it means."""

import math
import os
import re

from loaderx.errors import CorruptRecordError, StoreFormatError

from ._kinds import KINDS, MODES, width_of
from ._quant_report import MEASURED

__all__ = [
    "DTYPES",
    "FORMAT",
    "META_FILE",
    "TABLE_FILES",
    "VERSION",
    "check_description",
    "check_format",
    "check_shape",
    "is_digest",
    "is_name",
]

META_FILE = "bundle.json"
TABLE_FILES = {"native": "table.men", "python": "rows.bin"}

#: Bytes of an element of each dtype.
DTYPES = {dtype: size for _number, size, tail, dtype in KINDS.values() if not tail}

FORMAT, VERSION = "ngram_store-bundle", 1
_KINDS = ("embedding", "multihead", "embedding_bag", "quantized")
_DIGEST = re.compile("[0-9a-f]{64}")


def check_description(file, meta):
    """Raise unless every member that a reader knows has a type and a value that it may have.

    Parameters
    ----------
    file : str
        For messages.
    meta : object
        The content of ``bundle.json``.

    Raises
    ------
    StoreFormatError
        It is of another format or a newer version, or of a kind or backend that is unknown.
    CorruptRecordError
        A member is missing, or is nothing that a writer writes.
    """
    check_format(file, meta)
    if not _whole(meta.get("version"), 1, VERSION):
        raise StoreFormatError(f"{file} is of version {meta.get('version')!r}, this program reads up to {VERSION}")
    check = _Checker(file)
    check.member(meta, "kind", lambda kind: isinstance(kind, str))
    if meta["kind"] not in _KINDS:
        raise StoreFormatError(
            f"{file} is of kind {meta['kind'][:80]!r}, which is unknown: this program reads {', '.join(_KINDS)}"
        )
    check.member(meta, "producer", lambda name: isinstance(name, str), absent=True)
    check.rows(meta)
    check.padding(meta)
    check.table(meta)
    kind = meta["kind"]
    if kind == "multihead" or "head_sizes" in meta:
        check.heads(meta)
    if kind == "embedding_bag":
        check.member(
            meta, "mode", lambda mode: isinstance(mode, str) and mode in MODES, f", not one of {', '.join(MODES)}"
        )
        check.member(meta, "include_last_offset", lambda value: type(value) is bool, ", not true or false")
    if kind == "quantized":
        check.measured(meta)


def check_shape(file, meta):
    """Raise `CorruptRecordError` unless rows, padding and heads are what they can be, perhaps of no bundle."""
    check, meta = _Checker(file), {"kind": None, **meta}
    check.rows(meta)
    check.padding(meta)
    if "head_sizes" in meta:
        check.heads(meta)


def check_format(file, meta):
    """Raise `StoreFormatError` unless something says that it describes a bundle."""
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise StoreFormatError(f'{file} does not say "format": "{FORMAT}"')


def is_digest(value):
    """Return whether a value is a SHA-256 as a bundle records it."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _whole(value, least=0, most=(1 << 62) - 1):
    return type(value) is int and least <= value <= most


class _Checker:
    def __init__(self, file):
        self._file = file

    def _damaged(self, what):
        return CorruptRecordError(f"{self._file} is damaged: {what}")

    def member(self, found, name, allowed, note="", where="", absent=False):
        """Raise unless a member is one of those that are allowed."""
        value = found.get(name)
        if (name in found or not absent) and not allowed(value):
            raise self._damaged(f"{where}{name} is {repr(value)[:200]}{note}")

    def rows(self, meta):
        """Check shape, dtype and width."""
        self.member(meta, "num_embeddings", _whole)
        self.member(meta, "embedding_dim", lambda dim: _whole(dim, 1), ", not 1 or more")
        self.member(meta, "dtype", lambda dtype: isinstance(dtype, str))
        self.member(meta, "row_bytes", lambda width: _whole(width, 1))
        dim, dtype = meta["embedding_dim"], meta["dtype"]
        width = width_of(dtype, dim) if meta["kind"] == "quantized" else dim * DTYPES.get(dtype, 0)
        if meta["row_bytes"] != width:
            raise self._damaged(f"rows of {dim} {dtype[:80]!r} do not have {meta['row_bytes']} bytes")

    def padding(self, meta):
        """Check the row that bags skip."""
        rows = meta["num_embeddings"]
        self.member(
            meta, "padding_idx", lambda row: row is None or _whole(row, 0, rows - 1), f" of {rows} rows", absent=True
        )

    def table(self, meta):
        """Check what is said of the other file."""
        self.member(meta, "table", lambda table: isinstance(table, dict))
        table, where = meta["table"], "table."
        self.member(table, "file", is_name, ", which is no name of a file beside it", where)
        self.member(table, "backend", lambda backend: isinstance(backend, str), "", where)
        if table["backend"] not in TABLE_FILES:
            raise StoreFormatError(
                f"{self._file} has a table for the backend {table['backend'][:80]!r}, which is unknown"
            )
        self.member(table, "bytes", _whole, "", where)
        self.member(table, "sha256", is_digest, ", not 64 hexadecimal digits", where)
        rows, width = meta["num_embeddings"], meta["row_bytes"]
        if table["backend"] == "python" and table["bytes"] != rows * width:
            raise self._damaged(
                f"table.bytes is {table['bytes']}, and {rows} rows of {width} bytes have {rows * width}"
            )

    def heads(self, meta):
        """Check that heads cover the rows, one behind the other."""
        rows = meta["num_embeddings"]

        def allowed(sizes):
            return isinstance(sizes, list) and sizes and all(_whole(n, 1) for n in sizes) and sum(sizes) == rows

        self.member(meta, "head_sizes", allowed, f" of {rows} rows")
        starts, first = [], 0
        for size in meta["head_sizes"]:
            starts.append(first)
            first += size
        # Equal as JSON: true and 1.0 are equal to 1 for Python.
        self.member(
            meta,
            "offsets",
            lambda offsets: isinstance(offsets, list) and all(map(_whole, offsets)) and offsets == starts,
            ", not where the heads begin",
            absent=True,
        )

    def measured(self, meta):
        """Check what was learnt when numbers were encoded."""
        self.member(meta, "quantized", lambda told: isinstance(told, dict))
        told, where, table = meta["quantized"], "quantized.", meta["table"]
        for name in MEASURED:
            self.member(told, name, _DIGITS_OR_NUMBER[name.endswith("_sha256")], "", where)
            if name not in told:
                raise self._damaged(f"{where}{name} is missing")
        sizes = {"python": "plain_bytes", "native": "native_bytes"}
        for name in sizes.values():
            self.member(told, name, lambda size: size is None or _whole(size), "", where)
        mine = sizes[table["backend"]]
        if told.get(mine) != table["bytes"]:
            raise self._damaged(f"{where}{mine} is {told.get(mine)}, and table.bytes is {table['bytes']}")


def _is_number(value):
    return value is None or (type(value) in (int, float) and math.isfinite(value))


_DIGITS_OR_NUMBER = {True: is_digest, False: _is_number}


def is_name(name):
    """Return whether a file beside ``bundle.json`` can have a name."""
    if not isinstance(name, str) or name in ("", ".", "..", META_FILE) or "/" in name or "\0" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
