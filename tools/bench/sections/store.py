"""Random batches out of a store, and writing one.

NumPy reads the same records, never compressed, from a mapped .npy, and writes them with an fsync.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset

from ..bench import LOADERX, Bench
from ..case import OURS, Case
from ..loops import each, over
from ._records import Kind, Source, content, make, save

_CODECS = ("raw", "zstd")
_KINDS = (
    Kind("64 B", 64, 1 << 20, 256),
    Kind("1 KiB", 1 << 10, 1 << 17, 256),
    Kind("12 KiB", 12 << 10, 12_000, 256),
    Kind("12 KiB walks", 12 << 10, 12_000, 256, "walks"),
    Kind("600 KiB", 600 << 10, 256, 16),
)
_QUICK = (
    Kind("64 B", 64, 1 << 17, 256),
    Kind("1 KiB", 1 << 10, 1 << 15, 256),
    Kind("12 KiB", 12 << 10, 4_000, 256),
    Kind("12 KiB walks", 12 << 10, 4_000, 256, "walks"),
    Kind("600 KiB", 600 << 10, 64, 16),
)


def cases(bench: Bench) -> Iterator[Case]:
    """Yield reads of every size and codec, then writes of every codec."""
    for kind in _QUICK if bench.quick else _KINDS:
        folder = bench.work / kind.name
        # Without compression the pattern makes no difference.
        codecs = _CODECS if kind.pattern == "noise" else ("zstd",)
        source = make(folder, kind, codecs)
        for codec in codecs:
            yield _fresh(bench, source, codec)
            yield _given(bench, source, codec)
        shutil.rmtree(folder)
    for codec in _CODECS:
        yield _write(bench, codec)


def _case(source: Source, codec: str, how: str) -> Case:
    kind = source.kind
    name = f"{codec}, {kind.batch} x {kind.name}{how}"
    return Case(name, baseline="numpy", unit="B", amount=kind.batch_bytes)


def _fresh(bench: Bench, source: Source, codec: str) -> Case:
    case = _case(source, codec, "")
    store = source.stores[codec]
    dataset = DenseDataset(store)
    case.on_close(dataset.close)
    case.add(OURS, over(dataset.__getitem__, source.pool()))
    case.add("numpy", over(source.mapped().__getitem__, source.pool()))
    bench.enter_loaderx(case, "gather", store=str(store), indices=str(source.indices))
    if codec == "raw" and source.kind.nbytes == 12 << 10:
        case.expect(LOADERX, 1.5)
        case.expect("numpy", 0.9)
    return case


def _given(bench: Bench, source: Source, codec: str) -> Case:
    case = _case(source, codec, ", out=")
    store, kind = source.stores[codec], source.kind
    dataset = DenseDataset(store)
    case.on_close(dataset.close)
    out = np.empty((kind.batch, kind.nbytes), np.uint8)
    case.add(OURS, over(lambda idx: dataset.gather(idx, out=out), source.pool()))
    mapped, given = source.mapped(), np.empty_like(out)
    # mode="clip" because take() with the default mode copies through a buffer of its own.
    case.add("numpy", over(lambda idx: np.take(mapped, idx, 0, given, "clip"), source.pool()))
    bench.enter_loaderx(case, "gather_out", store=str(store), indices=str(source.indices))
    return case


def _write(bench: Bench, codec: str) -> Case:
    kind = Kind("12 KiB", 12 << 10, 500 if bench.quick else 4_000, 1)
    data = content(kind)
    case = Case(f"{codec}, write {kind.name}", baseline="numpy", unit="B", amount=data.nbytes)
    array, path, npy = (bench.work / name for name in ("write.npy", "write.zr", "written.npy"))
    np.save(array, data)
    with ExitStack() as undo:
        undo.callback(array.unlink)
        undo.callback(shutil.rmtree, path, ignore_errors=True)
        undo.callback(npy.unlink, missing_ok=True)
        case.on_close(undo.pop_all().close)
    case.add(
        OURS,
        each(
            lambda: from_numpy(path, data, codec=codec),
            before=lambda: shutil.rmtree(path, ignore_errors=True),
        ),
    )
    case.add("numpy", each(lambda: save(npy, data), lambda: npy.unlink(missing_ok=True)))
    theirs = str(bench.work / "write-peer.zr")
    bench.enter_loaderx(case, "write", array=str(array), store=theirs, codec=codec)
    return case
