"""What tests of stores share."""

import os

import numpy as np

from loaderx.dataset import DenseDataset
from loaderx.zrecord import Zrecord

RECORDS = [b"first", b"x" * 5000, bytes(range(256)) * 4, b"\0"]


def packed(records):
    """Return records back to back, and where each begins."""
    offsets = np.cumsum([0] + [len(r) for r in records[:-1]])
    return b"".join(records), offsets


def read(store, idxs):
    """Return records of a store as bytes."""
    sizes = store.lengths(idxs).astype(int)
    starts = np.cumsum(sizes) - sizes
    dst = store.gather(idxs, np.empty(sizes.sum(), np.uint8), starts)
    return [dst[a : a + n].tobytes() for a, n in zip(starts, sizes, strict=True)]


def small_store(path):
    """Make a store of `RECORDS` and return its path."""
    with Zrecord(path) as store:
        store.append(*packed(RECORDS))
    return path


def left_in(folder):
    """Names of everything in a folder, temporary directories included."""
    return sorted(os.listdir(folder))


def back(path, cls=DenseDataset):
    """Return all records of a dataset."""
    with cls(path) as ds:
        return ds[:]
