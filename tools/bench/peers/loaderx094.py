"""Cases of PyPI's loaderx 0.9.4, run in a child process."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version

import numpy as np

from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.sampler import Sampler

from ..loops import Run, each, over, repeated

__all__ = ["CASES"]

if version("loaderx") != "0.9.4":
    raise ImportError(f"loaderx {version('loaderx')} is no substitute for 0.9.4")


@contextmanager
def _sampler(length: int, batch: int, mode: int) -> Iterator[Run]:
    yield repeated(Sampler(length, batch, mode).next)


@contextmanager
def _gather(store: str, indices: str) -> Iterator[Run]:
    with DenseDataset(store) as dataset:
        yield over(dataset.__getitems__, list(np.load(indices)))


@contextmanager
def _gather_out(store: str, indices: str) -> Iterator[Run]:
    # DenseDataset has no out=; the store beneath it gathers into given memory.
    with DenseDataset(store) as dataset:
        pool = list(np.load(indices).astype(np.uint64))
        out = np.empty((pool[0].size, *dataset.item_shape), dataset.dtype)
        offsets = np.arange(len(out), dtype=np.uint64) * np.uint64(out[0].nbytes)
        yield over(lambda idx: dataset._store.gather(idx, out, offsets), pool)


@contextmanager
def _write(array: str, store: str, codec: str) -> Iterator[Run]:
    data = np.load(array)
    try:
        yield each(
            lambda: from_numpy(store, data, codec=codec),
            before=lambda: shutil.rmtree(store, ignore_errors=True),
        )
    finally:
        shutil.rmtree(store, ignore_errors=True)


@contextmanager
def _loader(store: str, batch: int, lead_in: int) -> Iterator[Run]:
    with DenseDataset(store) as dataset, closing(DataLoader({"x": dataset}, batch_size=batch)) as loader:
        yield repeated(loader.__next__, lead_in)


CASES = {
    "sampler": _sampler,
    "gather": _gather,
    "gather_out": _gather_out,
    "write": _write,
    "loader": _loader,
}
