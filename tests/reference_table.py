"""A second reader of row tables, after gopkg/rowtable/FORMAT.md and with nothing of the engine's."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np

__all__ = ["as_bytes", "assert_holds", "read_table"]

_HEADER = struct.Struct("<8sIIII9QI20sII")
_BLOCK = struct.Struct("<QQIBBHII")


def read_table(path):
    """Return the header of a table as a dict, and its rows by original number, shape (rows, row bytes).

    Blocks of zstd are beyond it.
    """
    file = Path(path).read_bytes()
    fields = _HEADER.unpack_from(file)
    magic, version, header_bytes, flags, element = fields[:5]
    rows, stored, row_bytes, blocks, block_rows, map_at, descriptors_at, payload_at, payload_bytes = fields[5:14]
    assert magic == b"MEFTNAT1" and header_bytes == _HEADER.size == 128 and fields[15] == bytes(20)
    assert len(file) == payload_at + payload_bytes
    places = np.arange(rows) if flags & 1 else np.frombuffer(file, "<u8", rows, map_at).astype(np.int64)
    kept = np.empty((stored, row_bytes), np.uint8)
    encodings = set()
    for number in range(blocks):
        at, size, count, codec, predictor, zero, _, last = _BLOCK.unpack_from(file, descriptors_at + 32 * number)
        assert zero == last == 0 and count == min(block_rows, stored - number * block_rows)
        raw = {0: bytes, 1: zlib.decompress}[codec](file[at : at + size])
        block = np.frombuffer(raw, np.uint8)
        if predictor & 2:
            block = block.reshape(element, -1).T
        block = block.reshape(count, row_bytes)
        if predictor & 1:
            block = np.bitwise_xor.accumulate(block, axis=0)
        kept[number * block_rows :][:count] = block
        encodings.add((codec, predictor))
    header = {
        "version": version, "flags": flags, "element": element, "rows": rows, "stored": stored,
        "row_bytes": row_bytes, "blocks": blocks, "block_rows": block_rows, "encodings": encodings, "kind": fields[14],
    }  # fmt: skip
    return header, kept[places]


def as_bytes(array):
    """Return rows as bytes."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)


def assert_holds(path, array):
    """Fail unless a table holds the rows of an array and nothing lies beside it; return its header."""
    header, rows = read_table(path)
    np.testing.assert_array_equal(rows, as_bytes(array))
    assert os.listdir(path.parent) == [path.name]
    return header
