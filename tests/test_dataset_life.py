"""Datasets whose files change, and reads that are interrupted."""

import numpy as np
import pytest

from loaderx import _engine
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ClosedError, DtypeError, RecordIndexError, ZrecordError
from loaderx.torch import MapDataset
from loaderx.zrecord import Zrecord


def test_negative_numbers_count_from_one_length_while_the_store_grows(tmp_path, monkeypatch):
    path = tmp_path / "ragged"
    from_iterator(path, [np.arange(3), np.arange(5)])
    with Zrecord(path, mode="a") as writer, RaggedDataset(path) as ragged:
        lengths = type(ragged._store)._lengths

        def then_append(store, rows, wrap):
            found = lengths(store, rows, wrap)
            writer.append(np.arange(900), [0])
            writer.sync()
            return found

        monkeypatch.setattr(type(ragged._store), "_lengths", then_append)
        assert ragged[-1].tolist() == [0, 1, 2, 3, 4]
        monkeypatch.undo()
        assert len(ragged[-1]) == 900

    path = tmp_path / "dense"
    from_numpy(path, np.arange(10))
    with Zrecord(path, mode="a") as writer, DenseDataset(path) as dense:
        calls = []

        class Slow:
            """An engine that returns before the gather is done, as it does after 50 ms."""

            def __getattr__(self, name):
                return getattr(engine, name)

            def ZrGatherDense(self, handle, idxs, n, wrap, start, *rest):
                calls.append(start)
                done = engine.ZrGatherDense(handle, idxs, min(n, start + 2), wrap, start, *rest)
                writer.append(np.array([10 + len(calls)]), [0])
                writer.sync()
                return done

        engine = _engine.lib
        monkeypatch.setattr(_engine, "lib", Slow())
        batch = dense[np.full(7, -1)]
        monkeypatch.undo()
        assert len(calls) > 4
        assert len(set(batch.tolist())) == 1 and batch[0] in (9, 11)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_missing_and_truncated_files_are_exceptions(tmp_path, rng, codec):
    array = rng.integers(0, 255, (64, 4096), dtype=np.uint8)
    from_numpy(tmp_path / "s", array, codec=codec)
    for name in ("0.zr", "meta.zr", "schema.msgpack"):
        file = tmp_path / "s" / name
        aside = tmp_path / name
        file.rename(aside)
        with pytest.raises(ZrecordError, match=name if name != "meta.zr" else None), DenseDataset(file.parent) as ds:
            ds[:]
        assert not file.exists()
        aside.rename(file)
    chunk = tmp_path / "s" / "0.zr"
    size = chunk.stat().st_size
    for keep in (0, 1, 4096, 100_000):
        with DenseDataset(tmp_path / "s") as ds:
            np.testing.assert_array_equal(ds[0], array[0])
            with chunk.open("r+b") as file:
                content = file.read(64 * 5000)
                file.truncate(keep)
            with pytest.raises(ZrecordError):
                ds[:]
        with pytest.raises(ZrecordError), DenseDataset(tmp_path / "s") as ds:
            ds[:]
        with chunk.open("r+b") as file:
            file.write(content)
            file.truncate(size)


def test_ctrl_c_ends_a_long_gather(tmp_path, interrupted):
    code = """
        import sys, numpy as np
        from loaderx.zrecord import Zrecord
        store = Zrecord(sys.argv[1], mode="x")
        record = np.random.default_rng(0).integers(0, 4, 1 << 20, dtype=np.uint8)
        store.append(record, [0])
        idxs = np.zeros(3_000_000, np.uint64)
        dst = np.empty(1 << 20, np.uint8)
        try:
            print("ready", flush=True)
            store.gather(idxs, dst, idxs)
            print("finished")
        except KeyboardInterrupt:
            print("interrupted", len(store), store.lengths([0])[0])
    """
    out, err = interrupted(code, tmp_path / "s")
    assert out == f"interrupted 1 {1 << 20}\n", err


# ---- pad ----


def test_a_store_that_is_closed_just_before_a_call_says_so(tmp_path, monkeypatch):
    from_numpy(tmp_path / "dense", np.arange(10))
    from_iterator(tmp_path / "ragged", [np.arange(3), np.arange(5)])
    engine = _engine.lib
    for kind, path in ((DenseDataset, tmp_path / "dense"), (RaggedDataset, tmp_path / "ragged")):
        dataset = kind(path)

        class Closing:
            def __getattr__(self, name, dataset=dataset):
                function = getattr(engine, name)
                if not name.startswith("Zr"):
                    return function

                def called(*args):
                    dataset.close()
                    return function(*args)

                return called

        monkeypatch.setattr(_engine, "lib", Closing())
        with pytest.raises(ClosedError, match=rf"^the store {path} was closed$"):
            dataset[[0, 1]]
        monkeypatch.undo()


def test_masked_arrays_are_no_records_numbers(tmp_path):
    from_numpy(tmp_path / "dense", np.arange(10))
    from_iterator(tmp_path / "ragged", [np.arange(3), np.arange(5)])
    masked = np.ma.array([0, 1], mask=[False, True])
    with DenseDataset(tmp_path / "dense") as dense, RaggedDataset(tmp_path / "ragged") as ragged:
        for call in (
            lambda: dense[masked],
            lambda: dense[masked.astype(bool)],
            lambda: dense.gather(masked),
            lambda: dense.__getitems__(masked),
            lambda: ragged[masked],
            lambda: ragged.lengths(masked),
        ):
            with pytest.raises(RecordIndexError, match="masked array"):
                call()
        with pytest.raises(DtypeError, match="must have no mask"):
            dense.gather([0, 1], np.ma.zeros(2, np.int64))
        with pytest.raises(DtypeError, match="indices must have no mask"):
            MapDataset({"d": dense}).__getitems__(masked)
    with Zrecord(tmp_path / "z", mode="a") as store:
        store.append(np.arange(16, dtype=np.uint8), [0, 8])
        for call in (
            lambda: store.gather(masked, bytearray(16), [0, 8]),
            lambda: store.gather([0, 1], bytearray(16), masked),
            lambda: store.append(np.arange(16, dtype=np.uint8), masked),
            lambda: store.append(np.ma.arange(16), [0, 8]),
        ):
            with pytest.raises(DtypeError, match="must have no mask"):
                call()
