"""What a loader's streams must be, and how many of their records it uses."""

import os
from collections.abc import Mapping

import numpy as np

from ._checks import integer as _integer
from .collate import Flat, Pad
from .errors import ArgumentError

__all__ = ["INDICES", "checked"]

#: The array of the records' numbers in a batch.
INDICES = "indices"


def checked(streams, indices=False, records=None):
    """Return the streams as a dict, and how many records of each are used.

    Parameters
    ----------
    streams : mapping of str to dataset
    indices : bool
        Whether a batch has the records' numbers, too.
    records : int, optional
        The first so many; all by default.

    Raises
    ------
    ArgumentError, DtypeError
        No streams, an empty or malformed one, unequal lengths, fewer records than asked for.
    """
    if not isinstance(streams, Mapping):
        raise ArgumentError(f"streams must be a mapping of names to datasets, got {type(streams).__name__}")
    streams = dict(streams)
    if not streams:
        raise ArgumentError("streams is empty; name at least one dataset, as in {'image': dataset}")
    lengths = {}
    names = [INDICES] if indices else []
    for name, stream in streams.items():
        if not isinstance(name, str):
            raise ArgumentError(f"streams are named by strings, got {name!r} ({type(name).__name__})")
        missing = [m for m in ("__len__", "__getitems__") if not hasattr(stream, m)]
        if missing:
            raise ArgumentError(
                f"stream {name!r} ({type(stream).__name__}) has no {' and no '.join(missing)}{_hint(stream)}"
            )
        lengths[name] = len(stream)
        names += [name, f"{name}{stream.suffix}"] if isinstance(stream, (Pad, Flat)) else [name]
    twice = sorted({name for name in names if names.count(name) > 1}, key=str)
    if twice:
        raise ArgumentError(f"a batch would have two arrays called {twice}; rename a stream")
    empty = [name for name, n in lengths.items() if n == 0]
    if empty:
        raise ArgumentError(f"streams without records: {empty}")
    if records is not None:
        return streams, _integer("records", records, 1, min(lengths.values()), f" (the streams have {lengths})")
    if len(set(lengths.values())) > 1:
        raise ArgumentError(
            f"streams must have the same number of records, got {lengths}; records={min(lengths.values())} would use "
            "the first of each"
        )
    return streams, lengths[name]


def _hint(stream):
    """Say what somebody meant who gave no dataset."""
    if isinstance(stream, (str, bytes, os.PathLike)):
        return ": open the store, as loaderx.dataset.DenseDataset(path), or a RaggedDataset in a loaderx.collate.Pad"
    if isinstance(stream, (np.ndarray, list, tuple)):
        return ": write it by loaderx.converter.from_numpy(path, array), and give loaderx.dataset.DenseDataset(path)"
    return ""
