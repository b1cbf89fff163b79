"""Shuffled batches for ever: 256 records of 12 KiB from a DataLoader.

The baseline is the line that people write by hand over a mapped, uncompressed .npy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import numpy as np

from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset

from ..bench import Bench
from ..case import OURS, Case
from ..loops import repeated
from ._records import Kind, Source, make

_CODECS = ("raw", "zstd")
_LEAD_IN = 16


def cases(bench: Bench) -> Iterator[Case]:
    """Yield one case per codec."""
    kind = Kind("12 KiB", 12 << 10, 4_000 if bench.quick else 12_000, 256)
    folder = bench.work / "loader"
    source = make(folder, kind, _CODECS)
    for codec in _CODECS:
        yield _case(bench, source, codec)
    shutil.rmtree(folder)


def _case(bench: Bench, source: Source, codec: str) -> Case:
    kind, store = source.kind, source.stores[codec]
    case = Case(f"{codec}, {kind.batch} x {kind.name}", baseline="numpy", unit="batches")
    dataset = DenseDataset(store)
    case.on_close(dataset.close)
    loader = DataLoader({"x": dataset}, batch_size=kind.batch)
    case.on_close(loader.close)
    case.add(OURS, repeated(loader.__next__, _LEAD_IN))
    mapped, rng = source.mapped(), np.random.default_rng(42)
    case.add("numpy", repeated(lambda: mapped[rng.integers(0, len(mapped), kind.batch)], _LEAD_IN))
    bench.enter_loaderx(case, "loader", store=str(store), batch=kind.batch, lead_in=_LEAD_IN)
    return case
