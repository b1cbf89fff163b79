"""Records to read and write: the same bytes for every contestant."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loaderx.converter import from_numpy

__all__ = ["Kind", "Source", "content", "make", "save"]


@dataclass(frozen=True)
class Kind:
    """A record size with a number of records well beyond the processor's caches."""

    name: str
    nbytes: int
    records: int
    batch: int
    pattern: str = "noise"

    @property
    def batch_bytes(self) -> int:
        return self.nbytes * self.batch


@dataclass(frozen=True)
class Source:
    """A kind's records on disk."""

    kind: Kind
    npy: Path
    indices: Path
    stores: dict[str, Path]

    def pool(self) -> list[np.ndarray]:
        """Return the batches of record numbers that everyone reads, one int64 array each."""
        return list(np.load(self.indices))

    def mapped(self) -> np.ndarray:
        return np.load(self.npy, mmap_mode="r")


def content(kind: Kind) -> np.ndarray:
    """Return a kind's records as uint8, shape (records, nbytes).

    ``"noise"`` is like noisy images: zstd takes a fifth off by coding frequent bytes shortly, and
    decodes fast. ``"walks"`` changes slowly, like smooth images and sensor readings: zstd thirds it by
    very many short matches, and decodes slowly. ``"photos"`` are 64 x 64 crops of real colour
    photographs. Repeated blocks or zeros would flatter every decoder.
    """
    rng = np.random.default_rng(7)
    if kind.pattern == "photos":
        return _crops(rng, kind)
    out = np.empty((kind.records, kind.nbytes), np.uint8)
    rows = max(1, (16 << 20) // kind.nbytes)
    for start in range(0, kind.records, rows):
        block = out[start : start + rows]
        if kind.pattern == "noise":
            block[:] = np.clip(rng.normal(128, 20, block.shape), 0, 255)
            continue
        steps = rng.integers(0, 16, block.shape, dtype=np.uint8)
        walk = (steps == 0).view(np.uint8) - (steps == 1).view(np.uint8)
        walk[:, 0] = rng.integers(0, 256, len(block), dtype=np.uint8)
        np.cumsum(walk, axis=1, dtype=np.uint8, out=block)
        block += (steps >= 13).view(np.uint8)
    return out


def _crops(rng: np.random.Generator, kind: Kind) -> np.ndarray:
    """Cut squares of 64 x 64 pixels out of the photographs that come with scikit-learn."""
    from sklearn.datasets import load_sample_images

    images = load_sample_images().images
    out = np.empty((kind.records, 64, 64, 3), np.uint8)
    for crop in out:
        image = images[rng.integers(len(images))]
        top, left = (rng.integers(n - 64) for n in image.shape[:2])
        crop[:] = image[top : top + 64, left : left + 64]
    return out.reshape(kind.records, kind.nbytes)


def save(path: Path, data: np.ndarray) -> None:
    """Write a .npy as durably as the converters write a store.

    Also so that the kernel does not write it back while something is measured.
    """
    with path.open("wb") as file:
        np.save(file, data)
        file.flush()
        os.fsync(file.fileno())


def make(folder: Path, kind: Kind, codecs: tuple[str, ...], batches: int = 64) -> Source:
    """Write a kind's records as .npy and as one store per codec, and draw the batches."""
    folder.mkdir()
    data = content(kind)
    source = Source(kind, folder / "x.npy", folder / "indices.npy", {codec: folder / codec for codec in codecs})
    save(source.npy, data)
    # Batches that cover the records several times, so that what a batch reads is in memory but
    # as a rule not in a processor's cache.
    rng = np.random.default_rng(11)
    np.save(source.indices, rng.integers(0, kind.records, (batches, kind.batch)))
    for codec, path in source.stores.items():
        from_numpy(path, data, codec=codec)
    return source
