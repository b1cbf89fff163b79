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

_CODECS = ("raw", "zstd", "zstd_dict")
_RAW, _ZSTD, _DICT = ("raw",), ("zstd",), ("zstd_dict",)
# Without compression what the records hold makes no difference; level 19 with a dictionary takes
# long to write, so that there are fewer of those.
_KINDS = (
    (Kind("64 B", 64, 1 << 20, 256), _RAW),
    (Kind("1 KiB", 1 << 10, 1 << 17, 256), _RAW + _ZSTD),
    (Kind("12 KiB", 12 << 10, 12_000, 256), _RAW + _ZSTD),
    (Kind("12 KiB walks", 12 << 10, 12_000, 256, "walks"), _ZSTD),
    (Kind("12 KiB photos", 12 << 10, 12_000, 256, "photos"), _ZSTD),
    (Kind("12 KiB some photos", 12 << 10, 1_500, 256, "photos"), _DICT),
    (Kind("600 KiB", 600 << 10, 256, 16), _RAW + _ZSTD),
)
_QUICK = (
    (Kind("64 B", 64, 1 << 17, 256), _RAW),
    (Kind("1 KiB", 1 << 10, 1 << 15, 256), _RAW + _ZSTD),
    (Kind("12 KiB", 12 << 10, 4_000, 256), _RAW + _ZSTD),
    (Kind("12 KiB photos", 12 << 10, 4_000, 256, "photos"), _ZSTD),
    (Kind("12 KiB some photos", 12 << 10, 300, 256, "photos"), _DICT),
    (Kind("600 KiB", 600 << 10, 64, 16), _RAW),
)
# What a fresh result is expected to reach: times NumPy and times loaderx.
_RAW_NUMPY = {64: 1.0, 1 << 10: 1.0, 12 << 10: 1.0, 600 << 10: 1.2}
_RAW_LOADERX = {12 << 10: 1.8, 600 << 10: 1.0}
_LOADERX = {"zstd": 1.3, "zstd_dict": 1.1}


def cases(bench: Bench) -> Iterator[Case]:
    """Yield reads of every size and codec, then writes of every codec."""
    for kind, codecs in _QUICK if bench.quick else _KINDS:
        folder = bench.work / kind.name
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
    size = source.kind.nbytes
    if codec == "raw":
        case.expect("numpy", _RAW_NUMPY[size])
        if size in _RAW_LOADERX:
            case.expect(LOADERX, _RAW_LOADERX[size])
    elif size == 12 << 10:
        case.expect(LOADERX, _LOADERX[codec])
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
    if codec == "raw" and kind.nbytes == 12 << 10:
        # Against fancy indexing, which can't fill a given array: what out= saves.
        case.add("numpy, fresh", over(mapped.__getitem__, source.pool()))
        case.expect("numpy, fresh", 1.6)
    return case


def _write(bench: Bench, codec: str) -> Case:
    count = 200 if codec == "zstd_dict" else 500 if bench.quick else 4_000
    kind = Kind("12 KiB photos", 12 << 10, count, 1, "photos")
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
    case.expect(LOADERX, 1.0)
    return case
