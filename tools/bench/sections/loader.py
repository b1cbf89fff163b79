"""Shuffled batches for ever: 256 records of 12 KiB from a DataLoader.

The baseline is the line that people write by hand over a mapped, uncompressed .npy. What the first
batch takes, and what loading adds to a consumer that computes, are cases of their own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from time import perf_counter

import numpy as np

from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset

from ..bench import ARRAY_LOADERS, LOADERX, Bench
from ..case import OURS, Case
from ..loops import repeated
from ._records import Kind, Source, make

_CODECS = ("raw", "zstd")
_LEAD_IN = 16
_COMPUTE_SECONDS = 0.001


def cases(bench: Bench) -> Iterator[Case]:
    """Yield one case per codec, small batches, the first batch, and a consumer that computes."""
    kind = Kind("12 KiB", 12 << 10, 4_000 if bench.quick else 12_000, 256)
    folder = bench.work / "loader"
    source = make(folder, kind, _CODECS)
    for codec in _CODECS:
        yield _throughput(bench, source, codec)
    yield _small(bench, source)
    yield _first(source)
    yield _computing(source)
    shutil.rmtree(folder)


def _throughput(bench: Bench, source: Source, codec: str) -> Case:
    kind, store = source.kind, source.stores[codec]
    case = Case(f"{codec}, {kind.batch} x {kind.name}", baseline="numpy", unit="batches")
    _enter_ours(case, OURS, store, kind.batch)
    _enter_numpy(case, source, kind.batch)
    bench.enter_loaderx(case, "loader", store=str(store), batch=kind.batch, lead_in=_LEAD_IN)
    case.expect(LOADERX, 2.4 if codec == "raw" else 1.5)
    if codec == "raw":
        case.expect("numpy", 1.2)
        bench.enter_array_loaders(case, npy=str(source.npy), batch=kind.batch, lead_in=_LEAD_IN)
        for name in ARRAY_LOADERS:
            if name in case.contestants:
                case.expect(name, 10.0)
    return case


def _small(bench: Bench, source: Source) -> Case:
    """Batches that cost less than waking a worker does."""
    case = Case("raw, 2 x 12 KiB", baseline="numpy", unit="batches")
    _enter_ours(case, OURS, source.stores["raw"], 2)
    _enter_numpy(case, source, 2)
    bench.enter_loaderx(case, "loader", store=str(source.stores["raw"]), batch=2, lead_in=_LEAD_IN)
    return case


def _first(source: Source) -> Case:
    """From the constructor to the first batch, and the loader's end."""
    case = Case("first batch", baseline="numpy", unit="loaders")
    dataset = DenseDataset(source.stores["raw"])
    case.on_close(dataset.close)

    def first() -> None:
        with DataLoader({"x": dataset}, batch_size=source.kind.batch) as loader:
            next(loader)

    case.add(OURS, repeated(first))
    _enter_numpy(case, source, source.kind.batch)
    return case


def _computing(source: Source) -> Case:
    """A consumer that works for a millisecond a step; the baseline is that work alone."""
    case = Case("raw, 1 ms of work a step", baseline="work alone", unit="batches")
    dataset = DenseDataset(source.stores["raw"])
    case.on_close(dataset.close)
    loader = DataLoader({"x": dataset}, batch_size=source.kind.batch)
    case.on_close(loader.close)

    def work() -> None:
        end = perf_counter() + _COMPUTE_SECONDS
        while perf_counter() < end:
            pass

    def step() -> None:
        batch = next(loader)  # in hand while the work is done
        work()
        del batch

    case.add(OURS, repeated(step, _LEAD_IN))
    case.add("work alone", repeated(work))
    case.expect("work alone", 0.95)
    return case


def _enter_ours(case: Case, name: str, store: object, batch: int) -> None:
    dataset = DenseDataset(store)
    case.on_close(dataset.close)
    loader = DataLoader({"x": dataset}, batch_size=batch)
    case.on_close(loader.close)
    case.add(name, repeated(loader.__next__, _LEAD_IN))


def _enter_numpy(case: Case, source: Source, batch: int) -> None:
    mapped, rng = source.mapped(), np.random.default_rng(42)
    case.add("numpy", repeated(lambda: mapped[rng.integers(0, len(mapped), batch)], _LEAD_IN))
