"""Row tables made byte by byte as FORMAT.md says, for tests of the reader."""

import struct
import zlib

import numpy as np

__all__ = ["crc32c", "forge", "header", "some_rows", "sparse"]

RAW, ZLIB = 0, 1
NONE, XOR, SHUFFLE, XOR_SHUFFLE = range(4)


def _table():
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        entries.append(value)
    return entries


_TABLE = _table()


def crc32c(data):
    """Return the CRC-32C of bytes."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def header(version, flags, element, *numbers, index_sum=0):
    """Return a header; `numbers` are the fields from the rows to the blocks' bytes."""
    fixed = b"MEFTNAT1" + struct.pack("<4I9Q", version, 128, flags, element, *numbers)
    fixed += bytes(120 - len(fixed)) + struct.pack("<I", index_sum)
    return fixed + struct.pack("<I", crc32c(fixed))


def forge(
    path, rows, block_rows=7, codec=ZLIB, predictor=NONE, element=1, order=None, share=False, mapped=True, checked=True
):
    """Write a table and return its path.

    Parameters
    ----------
    rows : ndarray, shape (n, ...)
    codec, predictor : int
        Of blocks that gain by it; the others are raw.
    order : sequence of int, optional
        Rows in the order of their storing.
    share : bool
        Whether equal rows are stored once.
    mapped : bool
        Whether there is a map.
    checked : bool
        Whether blocks get their checksums, which take a second for each megabyte.
    """
    rows = np.ascontiguousarray(rows)
    flat = rows.reshape(len(rows), -1).view(np.uint8)
    stored, forward, known = [], [0] * len(flat), {}
    for row in range(len(flat)) if order is None else order:
        content = flat[row].tobytes()
        if not share or content not in known:
            known[content] = len(stored)
            stored.append(content)
        forward[row] = known[content]
    width = flat.shape[1]
    version = 3 if predictor >= SHUFFLE or not mapped else 2 if predictor == XOR else 1
    blocks = [b"".join(stored[at : at + block_rows]) for at in range(0, len(stored), block_rows)]
    index = struct.pack(f"<{len(forward)}Q", *forward) if mapped else b""
    first = 128 + len(index) + 32 * len(blocks)
    payload = bytearray()
    for plain in blocks:
        content, how = plain, (RAW, NONE)
        if codec == ZLIB:
            packed = zlib.compress(_predicted(plain, width, predictor, element))
            if len(packed) < len(plain):
                content, how = packed, (ZLIB, predictor)
        total = crc32c(content) if version == 3 and checked else 0
        where = first + len(payload), len(content), len(plain) // width
        index += struct.pack("<QQIBBHII", *where, *how, 0, total, 0)
        payload += content
    flags = (not mapped) | (codec == RAW) << 1
    map_at = 128 if mapped else 0
    numbers = len(flat), len(stored), width, len(blocks), block_rows, map_at, first - 32 * len(blocks), first
    with open(path, "wb") as file:
        file.write(header(version, flags, element, *numbers, len(payload), index_sum=crc32c(index)))
        file.write(index + payload)
    return path


def _predicted(plain, width, predictor, element):
    block = np.frombuffer(plain, np.uint8).reshape(-1, width).copy()
    if predictor in (XOR, XOR_SHUFFLE):
        block[1:] ^= block[:-1].copy()
    if predictor >= SHUFFLE:
        block = np.ascontiguousarray(block.reshape(-1, element).T)
    return block.tobytes()


def some_rows(rng, n, width):
    """Return rows of bytes that compress, some of them equal."""
    rows = rng.integers(0, rng.integers(2, 256), (n, width)).astype(np.uint8)
    rows &= rng.integers(0, 256, (n, width)).astype(np.uint8)
    rows[rng.integers(0, n, n // 3)] = rows[rng.integers(0, n, n // 3)]
    return rows


def sparse(path, rows, width, block_rows=1 << 16):
    """Write a raw table of zeros that takes no space, however large, and return its first byte's place."""
    blocks = -(-rows // block_rows)
    first = 128 + 32 * blocks
    block = np.arange(blocks)
    index = np.zeros(blocks, [("at", "<u8"), ("bytes", "<u8"), ("rows", "<u4"), ("rest", "V12")])
    index["at"], index["rows"] = first + block * (block_rows * width), np.minimum(block_rows, rows - block * block_rows)
    index["bytes"] = index["rows"].astype(np.uint64) * width
    with open(path, "wb") as file:
        numbers = rows, rows, width, blocks, block_rows, 0, 128, first, rows * width
        file.write(header(3, 3, 0, *numbers, index_sum=crc32c(index.tobytes())) + index.tobytes())
        file.truncate(first + rows * width)
    return first
