"""Rows of embedding tables: gathered, and reduced in bags.

The table has 1,000,000 rows of 128 float32 columns; batches are 65536 single look-ups, or 4096 bags of
20. The peer is torch on a resident tensor, with as many threads as processors. Ids are uniform, or
Zipf's: few rows are asked for over and over.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ngram_store import NativeRows, pack_native

from ..bench import Bench
from ..case import OURS, Case
from ..loops import over

_DIM, _BAGS, _EACH, _LOOKUPS, _POOL = 128, 4096, 20, 65536, 16
_TORCH = "torch"

#: What a cache keeps of a row beside its bytes.
_BESIDE = 35

#: Expected of a bag's mode, as a ratio to torch.
_MODES = {"sum": 1.0, "mean": 1.0, "weighted": 1.0, "max": 5.0}
#: Quantised rows, the name of torch's operator for them, and what is expected.
_QUANTISED = {
    "int8": ("byte_rowwise", 1.0),
    "uint8_rowwise": ("byte_rowwise", 1.0),
    "int4_rowwise": ("4bit_rowwise", 1.3),
}


def cases(bench: Bench) -> Iterator[Case]:
    """Yield gathers, bags of every mode and kind of row, a cached table, and decoding."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = 100_000 if bench.quick else 1_000_000
    rng = np.random.default_rng(1)
    # A trained table's numbers have mantissas without a pattern and exponents with one.
    weight = torch.from_numpy(rng.standard_normal((rows, _DIM), np.float32) * np.float32(0.05))
    folder = bench.work / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        raw = folder / "raw.men"
        pack_native(weight, raw, codec="raw")
        uniform = [rng.integers(0, rows, (_BAGS, _EACH)) for _ in range(_POOL)]
        zipf = _zipf(rng, rows)
        singles = [rng.integers(0, rows, _LOOKUPS) for _ in range(_POOL)]
        yield _gather(torch, weight, raw, singles)
        yield _fresh(torch, weight, raw, singles)
        for mode, least in _MODES.items():
            yield _bag(torch, weight, raw, uniform, mode, "uniform", least)
        yield _bag(torch, weight, raw, zipf, "sum", "Zipf", 1.0)
        for kind, (operator, least) in _QUANTISED.items():
            yield _quantised(torch, weight, folder, uniform, kind, operator, least)
        for exponent in (1.0, 1.3):
            # More than the cache has room for: going round among few batches would be another pattern.
            yield _cached(weight, folder, raw, _zipf(rng, rows, exponent, 4 * _POOL), exponent)
        yield _cold(weight, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _zipf(rng: np.random.Generator, rows: int, exponent: float = 1.0, batches: int = _POOL) -> list[np.ndarray]:
    """Return batches of ids whose n-th most frequent one comes with a probability like n ** -exponent."""
    ends = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    spread = rng.permutation(rows)  # the frequent ones lie anywhere
    draws = (rng.random((_BAGS, _EACH)) * ends[-1] for _ in range(batches))
    return [spread[np.minimum(np.searchsorted(ends, draw), rows - 1)] for draw in draws]


def _open(case: Case, path: Path, **options: object) -> NativeRows:
    table = NativeRows(path, **options)
    case.on_close(table.close)
    return table


def _gather(torch, weight, raw: Path, pool: list[np.ndarray]) -> Case:
    case = Case(f"gather, {_LOOKUPS} rows, out=", baseline=_TORCH, unit="B", amount=_LOOKUPS * _DIM * 4)
    table = _open(case, raw)
    out = np.empty((_LOOKUPS, _DIM), np.float32)
    case.add(OURS, over(lambda ids: table.gather_into(ids, out), pool))
    given = torch.empty(_LOOKUPS, _DIM)
    tensors = [torch.from_numpy(ids) for ids in pool]
    case.add(_TORCH, over(lambda ids: torch.index_select(weight, 0, ids, out=given), tensors))
    case.add("numpy", over(lambda ids: np.take(weight.numpy(), ids, 0, out, "clip"), pool))
    case.expect(_TORCH, 1.0)
    return case


def _fresh(torch, weight, raw: Path, pool: list[np.ndarray]) -> Case:
    case = Case(f"gather, {_LOOKUPS} rows, new", baseline=_TORCH, unit="B", amount=_LOOKUPS * _DIM * 4)
    table = _open(case, raw)
    case.add(OURS, over(lambda ids: table.gather(ids, dtype=np.float32), pool))
    tensors = [torch.from_numpy(ids) for ids in pool]
    case.add(_TORCH, over(lambda ids: torch.nn.functional.embedding(ids, weight), tensors))
    return case


def _lookups(pool: list[np.ndarray], *more: object) -> list[tuple]:
    offsets = np.arange(0, _BAGS * _EACH, _EACH)
    return [(ids.reshape(-1), offsets, *more) for ids in pool]


def _bag(torch, weight, raw: Path, pool: list[np.ndarray], mode: str, what: str, least: float) -> Case:
    case = Case(f"bags, {mode}, {_BAGS} x {_EACH} {what}", baseline=_TORCH, unit="ids", amount=_BAGS * _EACH)
    table = _open(case, raw)
    out = np.empty((_BAGS, _DIM), np.float32)
    name, factors = (
        ("sum", np.linspace(0.5, 1.5, _BAGS * _EACH, dtype=np.float32)) if mode == "weighted" else (mode, None)
    )
    case.add(OURS, over(lambda args: table.embedding_bag(*args, name, factors, out=out), _lookups(pool)))
    bag = torch.nn.EmbeddingBag.from_pretrained(weight, mode=name)
    tensors = [tuple(map(torch.from_numpy, args)) for args in _lookups(pool)]
    given = None if factors is None else torch.from_numpy(factors)
    with torch.inference_mode():
        want = bag(*tensors[0], given).numpy()
    np.testing.assert_array_equal(table.embedding_bag(*_lookups(pool)[0], name, factors, out=out), want)
    case.add(_TORCH, _inference(torch, over(lambda args: bag(*args, given), tensors)))
    case.expect(_TORCH, least)
    return case


def _inference(torch, run: Callable[[int], float]) -> Callable[[int], float]:
    def inside(n: int) -> float:
        with torch.inference_mode():
            return run(n)

    return inside


def _quantised(torch, weight, folder: Path, pool: list[np.ndarray], kind: str, operator: str, least: float) -> Case:
    case = Case(f"bags, sum of {kind}, {_BAGS} x {_EACH} uniform", baseline=_TORCH, unit="ids", amount=_BAGS * _EACH)
    prepack = {"byte_rowwise": "embedding_bag_byte_prepack", "4bit_rowwise": "embedding_bag_4bit_prepack"}[operator]
    packed = getattr(torch.ops.quantized, prepack)(weight)
    path = folder / f"{kind}.men"
    pack_native(_int8(weight.numpy()) if kind == "int8" else packed, path, codec="raw")
    case.on_close(path.unlink)
    table = _open(case, path)
    out = np.empty((_BAGS, _DIM), np.float32)
    case.add(OURS, over(lambda args: table.embedding_bag(*args, out=out, dtype=kind), _lookups(pool)))
    run = getattr(torch.ops.quantized, f"embedding_bag_{operator}_offsets")
    tensors = [tuple(map(torch.from_numpy, args)) for args in _lookups(pool)]
    case.add(_TORCH, over(lambda args: run(packed, *args, False, 0), tensors))
    case.expect(_TORCH, least)
    return case


def _int8(weight: np.ndarray) -> np.ndarray:
    """Return rows of signed codes and then one float32 scale."""
    scale = np.abs(weight).max(1, keepdims=True) / np.float32(127)
    codes = np.rint(weight / np.where(scale == 0, 1, scale)).astype(np.int8)
    return np.concatenate([codes.view(np.uint8), scale.astype("<f4").view(np.uint8)], axis=1)


def _cached(weight, folder: Path, raw: Path, pool: list[np.ndarray], exponent: float) -> Case:
    """A compressed table whose cache has room for a twentieth of the rows, against the resident one."""
    case = Case(f"gather, {_BAGS * _EACH} Zipf {exponent} rows, zstd, 5 % cached", baseline="resident", unit="rows")
    case.amount = _BAGS * _EACH
    path = folder / "zstd.men"
    pack_native(weight, path, codec="zstd", predictor="shuffle", block_rows=4)
    case.on_close(path.unlink)
    size = len(weight) // 20 * (_DIM * 4 + _BESIDE)
    table, resident = _open(case, path, cache_bytes=size, cache_policy="rows"), _open(case, raw)
    room = table.stats()["cache_capacity"] / len(weight)
    assert 0.045 < room <= 0.05, f"the cache has room for {room:.1%} of the rows"
    out = np.empty((_BAGS * _EACH, _DIM), np.float32)
    flat = [ids.reshape(-1) for ids in pool]
    for ids in flat:
        table.gather_into(ids, out)
        np.testing.assert_array_equal(out, weight.numpy()[ids])
    case.add(OURS, over(lambda ids: table.gather_into(ids, out), flat))
    case.add("resident", over(lambda ids: resident.gather_into(ids, out), flat))
    case.expect("resident", 0.5)
    return case


def _cold(weight, folder: Path) -> Case:
    """Blocks that are in no cache, in order, against zlib on one thread."""
    path = folder / "zlib.men"
    some = weight[: 1 << 16]
    report = pack_native(some, path, codec="zlib", predictor="shuffle")
    case = Case("decode, cold zlib blocks", baseline="zlib", unit="B", amount=report.raw_bytes)
    case.on_close(path.unlink)
    table = _open(case, path)
    out = np.empty(tuple(some.shape), np.float32)
    ids = np.arange(len(some))
    case.add(OURS, over(lambda ids: table.gather_into(ids, out), [ids]))
    raw = some.numpy().view(np.uint8).reshape(-1, 256 * _DIM, 4).transpose(0, 2, 1)
    blocks = [zlib.compress(np.ascontiguousarray(block)) for block in raw]
    case.add("zlib", over(lambda blocks: [zlib.decompress(block) for block in blocks], [blocks]))
    case.expect("zlib", 1.5)
    return case
