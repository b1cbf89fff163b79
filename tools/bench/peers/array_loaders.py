"""Loaders of other packages over the rows of a .npy file, each used as its documentation says.

One case per package; a child process runs the one whose package it can import.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path

import numpy as np

from ..loops import Run, repeated

__all__ = ["CASES"]

_WORKERS = 2


class _Rows:
    """A map-style data set: what torch and Grain both take."""

    def __init__(self, npy: str) -> None:
        self._npy = npy
        self._rows: np.ndarray | None = None

    @property
    def rows(self) -> np.ndarray:
        if self._rows is None:
            self._rows = np.load(self._npy, mmap_mode="r")
        return self._rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array(self.rows[index])

    def __getstate__(self) -> dict:
        return {"_npy": self._npy, "_rows": None}


def _endless(loader) -> Iterator[object]:
    for _ in repeat(None):
        yield from loader


@contextmanager
def _torch(npy: str, batch: int, lead_in: int) -> Iterator[Run]:
    from torch.utils.data import DataLoader

    loader = DataLoader(_Rows(npy), batch, shuffle=True, num_workers=_WORKERS, drop_last=True)
    yield repeated(_endless(loader).__next__, lead_in)


@contextmanager
def _grain(npy: str, batch: int, lead_in: int) -> Iterator[Run]:
    import grain.python as grain
    from absl import flags

    flags.FLAGS(["bench"])
    data = grain.MapDataset.source(_Rows(npy)).shuffle(seed=1).repeat().batch(batch, drop_remainder=True)
    threads = grain.ReadOptions(num_threads=_WORKERS, prefetch_buffer_size=4)
    yield repeated(iter(data.to_iter_dataset(threads)).__next__, lead_in)


@contextmanager
def _webdataset(npy: str, batch: int, lead_in: int) -> Iterator[Run]:
    import webdataset

    folder = Path(tempfile.mkdtemp(dir=Path(npy).parent))
    try:
        rows = np.load(npy, mmap_mode="r")
        for shard in range(_WORKERS):
            with webdataset.TarWriter(str(folder / f"{shard}.tar")) as tar:
                for k in range(shard, len(rows), _WORKERS):
                    tar.write({"__key__": f"{k:06}", "bin": rows[k].tobytes()})
        urls = [str(folder / f"{shard}.tar") for shard in range(_WORKERS)]
        data = webdataset.WebDataset(urls, shardshuffle=False).shuffle(1000)
        # A tuple of one field, which is what its collation stacks.
        data = data.map(lambda sample: (np.frombuffer(sample["bin"], np.uint8),)).batched(batch, partial=False)
        loader = webdataset.WebLoader(data, batch_size=None, num_workers=_WORKERS)
        yield repeated(_endless(loader).__next__, lead_in)
    finally:
        shutil.rmtree(folder)


def _one(npy: str, index: int) -> dict:
    return {"x": np.array(np.load(npy, mmap_mode="r")[index])}


@contextmanager
def _litdata(npy: str, batch: int, lead_in: int) -> Iterator[Run]:
    from functools import partial

    import litdata

    folder = tempfile.mkdtemp(dir=Path(npy).parent)
    try:
        records = list(range(len(_Rows(npy))))
        litdata.optimize(partial(_one, npy), records, folder, num_workers=1, chunk_bytes="64MB")
        data = litdata.StreamingDataset(folder, shuffle=True, drop_last=True)
        loader = litdata.StreamingDataLoader(data, batch_size=batch, num_workers=_WORKERS)
        yield repeated(_endless(loader).__next__, lead_in)
    finally:
        shutil.rmtree(folder)


CASES = {"torch": _torch, "grain": _grain, "webdataset": _webdataset, "litdata": _litdata}
