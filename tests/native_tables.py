"""Tables and queries for the C programs in tests/native."""

import numpy as np

from ngram_store import pack_native
from tests.tables import crc32c, forge, some_rows

__all__ = ["Queries", "mutations"]

# As in meft_rows.h.
FP32, FP64, FP16, BF16, INT8, UINT8, INT4 = range(1, 8)
_NAMES = None, "fp32", "fp64", "fp16", "bf16", "int8", "uint8_rowwise", "int4_rowwise"
SUM, MEAN, MAX = range(3)


def _rows_of(rng, kind, n, dim):
    """Return rows of a kind as bytes, and their numbers: small multiples of 1/2, so that every sum is exact."""
    values = rng.integers(-8, 8, (n, dim)).astype(np.float32)
    if kind in (FP32, FP64, FP16):
        stored = values.astype({FP32: "<f4", FP64: "<f8", FP16: "<f2"}[kind])
        return stored.view(np.uint8), values
    if kind == BF16:
        return np.ascontiguousarray((values.view(np.uint32) >> 16).astype("<u2")).view(np.uint8), values
    codes = rng.integers(0, 16, (n, dim)).astype(np.uint8)
    if kind == INT8:
        tail = np.tile(np.array([0.5], "<f4").view(np.uint8), (n, 1))
        signed = codes.view(np.int8) - np.int8(8)
        return np.hstack([signed.view(np.uint8), tail]), signed * np.float32(0.5)
    tail = np.tile(np.array([0.5, -2], "<f4" if kind == UINT8 else "<f2").view(np.uint8), (n, 1))
    packed = codes if kind == UINT8 else codes[:, ::2] | np.pad(codes, ((0, 0), (0, dim % 2)))[:, 1::2] << 4
    return np.hstack([packed, tail]), codes * np.float32(0.5) - np.float32(2)


def _reduced(kind, mode, bags, dim):
    """Return the reductions of bags of numbers as bytes."""
    out = np.zeros((len(bags), dim), np.float64)
    for i, bag in enumerate(bags):
        if len(bag):
            out[i] = bag.max(0) if mode == MAX else bag.sum(0, np.float64)
            if mode == MEAN:
                out[i] /= len(bag)
    if kind == BF16:
        return (out.astype("<f4").view(np.uint32) >> 16).astype("<u2")
    return out.astype({FP64: "<f8", FP16: "<f2"}.get(kind, "<f4"))


class Queries:
    """A file of tables and queries with their results for the program queries."""

    def __init__(self, folder, rng):
        self._folder, self._rng, self._lines = folder, rng, []

    @property
    def count(self):
        """How many lines the file has."""
        return len(self._lines)

    def write(self):
        """Write the file and return its path."""
        path = self._folder / "queries"
        path.write_text("".join(f"{line}\n" for line in self._lines))
        return path

    def _keep(self, array):
        path = self._folder / f"{len(list(self._folder.iterdir()))}.bin"
        np.ascontiguousarray(array).tofile(path)
        return path

    def table(self):
        """Add a table with random settings, gathers and bags."""
        rng = self._rng
        kind, n, dim = int(rng.integers(1, 8)), int(rng.integers(1, 300)), int(rng.integers(1, 40))
        rows, values = _rows_of(rng, kind, n, dim)
        rows[rng.integers(0, n, n // 3)] = rows[0]
        values = values.copy()
        path = self._folder / f"t{len(self._lines)}.men"
        # Equal rows have equal numbers.
        values[(rows == rows[0]).all(1)] = values[0]
        pack_native(
            rows,
            path,
            dtype=_NAMES[kind] if rng.integers(2) else None,
            block_rows=int(rng.integers(1, 50)),
            deduplicate=bool(rng.integers(2)),
            predictor=[None, "xor", "shuffle", "auto"][rng.integers(4)],
            codec=["zlib", "zstd"][rng.integers(2)],
            row_order=rng.permutation(n) if rng.integers(2) else None,
        )
        cache, chunk = [0, 2000, 1 << 20][rng.integers(3)], [0, -1, 1, 37][rng.integers(4)]
        self._lines.append(f"open {path} {cache} {rng.integers(2)} {rng.integers(4)} {chunk} {rng.integers(2)}")
        for _ in range(4):
            ids = rng.integers(0, n, rng.integers(0, 500))
            self._lines.append(f"gather {self._keep(ids)} {[0, -1, 1, 50][rng.integers(4)]} {self._keep(rows[ids])}")
            self._bag(kind, dim, values, ids)
        self._lines.append("close")

    def _bag(self, kind, dim, values, ids):
        rng = self._rng
        mode, padded, ended = int(rng.integers(3)), bool(rng.integers(2)), bool(rng.integers(2))
        padding = int(rng.integers(len(values)))
        offsets = np.sort(rng.integers(0, len(ids) + 1, rng.integers(1, 20)))
        offsets[0] = 0
        ends = np.append(offsets[1:], len(ids))
        weights = None
        numbers = values[ids]
        if mode == SUM and rng.integers(2):
            weights = rng.integers(-3, 4, len(ids)).astype(np.float32)
            numbers = numbers * weights[:, None]
        keep = (ids != padding) | (not padded)
        # Of 16 bits only sums and maxima are exact, and sums only while they are small.
        if mode == MEAN and kind in (FP16, BF16):
            mode = SUM
        bags = [numbers[a:b][keep[a:b]] for a, b in zip(offsets, ends, strict=True)]
        if ended:
            offsets = np.append(offsets, len(ids))
        if kind in (FP16, BF16):
            bags = [bag if np.abs(bag).sum() < 256 else None for bag in bags]
            if any(bag is None for bag in bags):
                return
        out = _reduced(kind, mode, bags, dim)
        columns = dim if kind == INT4 and dim % 2 else int(rng.integers(2)) * dim
        files = self._keep(ids), self._keep(offsets), "-" if weights is None else self._keep(weights)
        numbers = kind, mode, rng.integers(2), int(ended), int(padded), padding, columns
        self._lines.append(" ".join(map(str, ["bag", *files, *numbers, self._keep(out)])))


def mutations(folder, rng, n):
    """Write n damaged tables and return their paths; the header's checksum of most is right again."""
    paths = []
    for i in range(n):
        path = folder / f"{i}.men"
        width = int(rng.integers(1, 60)) * 4
        plain = some_rows(rng, int(rng.integers(1, 80)), width)
        if i % 2:
            pack_native(
                plain, path, block_rows=int(rng.integers(1, 20)), codec=["zlib", "zstd"][i // 2 % 2], predictor="auto"
            )
        else:
            forge(path, plain, codec=i // 2 % 2, mapped=bool(rng.integers(2)), share=bool(rng.integers(2)))
        content = bytearray(path.read_bytes())
        for _ in range(rng.integers(1, 5)):
            end = len(content) if rng.integers(2) else min(len(content), 128 + 8 * len(plain) + 200)
            content[rng.integers(12, end)] ^= 1 << rng.integers(8)
        if i % 8 == 0:
            del content[rng.integers(len(content)) :]
        if len(content) >= 128 and i % 4:
            content[124:128] = crc32c(content[:124]).to_bytes(4, "little")
        path.write_bytes(content)
        paths.append(path)
    return paths
