"""Tables of numbers and bags of their rows, for tests against torch."""

import ml_dtypes
import numpy as np
import torch

from ngram_store import NativeRows, pack_native

__all__ = [
    "ENCODINGS",
    "FLOATS",
    "as_tensor",
    "embedding_bag",
    "nans",
    "same_bits",
    "some_bags",
    "table_of",
    "weight_of",
]

FLOATS = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16, torch.bfloat16: torch.int16}
ENCODINGS = {
    "raw": {"codec": "raw"},
    "raw mapped": {"codec": "raw", "row_order": True},
    "zlib": {"codec": "zlib"},
    "zstd": {"codec": "zstd", "row_order": True},
    "xor": {"codec": "zlib", "predictor": "xor"},
    "shuffled": {"codec": "zstd", "predictor": "shuffle"},
    "shared": {"codec": "zstd", "deduplicate": True},
    "raw shared": {"codec": "raw", "deduplicate": True},
}
embedding_bag = torch.nn.functional.embedding_bag


def weight_of(rng, n, dim, dtype):
    """Rows of few distinct values, so that they compress, and some equal ones."""
    numbers = torch.from_numpy(rng.standard_normal(64) * 4)
    weight = numbers[torch.from_numpy(rng.integers(0, 64, (n, dim)))]
    weight[rng.integers(0, n, n // 3)] = weight[rng.integers(0, n, n // 3)]
    return weight.to(dtype)


def table_of(path, weight, encoding="raw", **options):
    """Write a tensor as a table and open it."""
    arguments = dict(ENCODINGS[encoding])
    if arguments.pop("row_order", False):
        arguments["row_order"] = np.random.default_rng(1).permutation(len(weight))
    pack_native(weight, path, block_rows=7, **arguments)
    return NativeRows(path, **options)


def some_bags(rng, n, bags):
    """Return offsets of bags, some of them empty."""
    sizes = rng.choice([0, 0, 1, 2, 3, 5, 20, 300], bags)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return torch.from_numpy(rng.integers(0, n, offsets[-1])), torch.from_numpy(offsets)


def same_bits(got, expected):
    """Assert equality of bits; NaNs may differ in theirs."""
    assert got.shape == expected.shape and got.dtype == expected.dtype
    kind = BITS[got.dtype]
    different = (got.view(kind) != expected.view(kind)) & ~(got.isnan() & expected.isnan())
    assert not different.any(), f"{int(different.sum())} of {got.numel()} differ"


def nans(*shape, dtype):
    return torch.full(shape, float("nan"), dtype=dtype)


def as_tensor(array):
    """A NumPy result as a tensor, bfloat16 included."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def matrix_of(rng, rows, dim):
    """Return numbers of rows of different sizes, some of them constant."""
    matrix = (rng.standard_normal((rows, dim)) * rng.choice([1e-3, 1, 50], (rows, 1))).astype(np.float32)
    matrix[:3] = [[0], [1.5], [-7]]
    return matrix
