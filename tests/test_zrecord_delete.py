"""Deleting records and compacting, through Python."""

import os
import threading

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset
from loaderx.errors import (
    ClosedError,
    ReadOnlyError,
    RecordIndexError,
    StoreInUseError,
    StoreNotFoundError,
)
from loaderx.zrecord import Zrecord
from tests.processes import in_child, run_python

CODECS = ["raw", "zstd", "zstd_dict"]


def record(i):
    return bytes([i % 251]) * (10 + i % 40)


def fill(path, n, codec="raw"):
    store = Zrecord(path, codec=codec, mode="x")
    if codec == "zstd_dict":
        rows = [record(i) * 20 for i in range(100)]
        store.train_dict(b"".join(rows), [len(r) for r in rows], 4096)
    rows = [record(i) for i in range(n)]
    store.append(b"".join(rows), np.cumsum([0] + [len(r) for r in rows[:-1]]))
    return store


def content(store):
    idxs = np.arange(len(store))
    lengths = store.lengths(idxs).astype(np.int64)
    ends = np.cumsum(lengths)
    out = np.empty(int(lengths.sum()), np.uint8)
    store.gather(idxs, out, ends - lengths)
    return [out[end - n : end].tobytes() for end, n in zip(ends, lengths, strict=True)]


def delete(rows, idxs):
    rows = list(rows)
    for idx in sorted(set(idxs), reverse=True):
        rows[idx] = rows[-1]
        rows.pop()
    return rows


@pytest.mark.parametrize("codec", CODECS)
def test_delete_then_compact(tmp_path, rng, codec):
    rows = [record(i) for i in range(300)]
    with fill(tmp_path / "s", 300, codec) as store:
        for _ in range(4):
            idxs = rng.integers(0, len(rows), 30)
            store.delete(idxs)
            rows = delete(rows, idxs.tolist())
            assert content(store) == rows
        before = store.stats()
        assert before["records"] == len(rows) and before["reclaimable"] > 0
        assert before["chunk_bytes"] - before["live_bytes"] == before["reclaimable"]
        store.compact()
        assert content(store) == rows
        after = store.stats()
        assert after == {**before, "chunk_bytes": before["live_bytes"], "reclaimable": 0}
        assert store.append(b"abc", [0]) == len(rows)
    with Zrecord(tmp_path / "s", mode="r") as store:
        assert content(store) == [*rows, b"abc"]
        assert store.verify() == []
    assert not (tmp_path / "s" / "journal.zr").exists()


def test_a_store_opened_without_mode_turns_into_a_writer(tmp_path):
    fill(tmp_path / "s", 5).close()
    with Zrecord(tmp_path / "s") as store:
        assert len(store) == 5
        store.delete([0, 0])
        assert content(store) == [record(i) for i in (4, 1, 2, 3)]
        store.delete([])
        store.delete(range(4))
        assert len(store) == 0
        store.compact()
        assert set(store.stats()) == {"records", "live_bytes", "chunk_bytes", "reclaimable", "lost", "codecs"}
        assert not any(store.stats()[name] for name in ("records", "live_bytes", "chunk_bytes", "reclaimable", "lost"))
        assert store.stats()["codecs"] == {"raw": 0, "zstd": 0, "zstd_dict": 0}


def test_errors_change_nothing(tmp_path):
    for call in (lambda s: s.delete([0]), lambda s: s.compact(), lambda s: s.stats(), lambda s: s.verify()):
        with pytest.raises(StoreNotFoundError):
            call(Zrecord(tmp_path / "missing"))
    assert not (tmp_path / "missing").exists()
    with fill(tmp_path / "s", 5) as store:
        for bad in ([5], np.array([0, 2**63], np.uint64), [-1]):
            with pytest.raises(RecordIndexError):
                store.delete(bad)
        with pytest.raises(TypeError):
            store.delete([0.5])
        assert len(store) == 5
    for call in (lambda: store.delete([0]), store.compact, store.stats, store.verify):
        with pytest.raises(ClosedError):
            call()
    with Zrecord(tmp_path / "s", mode="r") as store:
        for call in (lambda: store.delete([0]), store.compact):
            with pytest.raises(ReadOnlyError):
                call()


def test_they_need_the_store_alone(tmp_path):
    from_numpy(tmp_path / "s", np.arange(40, dtype=np.int32).reshape(10, 4))
    with Zrecord(tmp_path / "s", mode="r+") as store:
        with DenseDataset(tmp_path / "s") as ds:
            for call in (lambda: store.delete([0]), store.compact):
                with pytest.raises(StoreInUseError, match="close the datasets, loaders and handles that have it open"):
                    call()
            assert ds[0].tolist() == [0, 1, 2, 3]
        store.delete([0])
        other = """
            import os
            from loaderx.dataset import DenseDataset
            ds = DenseDataset(os.environ["STORE"])
            print(len(ds), flush=True)
            input()
        """
        assert run_python(other.replace("input()", ""), STORE=str(tmp_path / "s")) == "9\n"
        store.compact()
    with DenseDataset(tmp_path / "s") as ds:
        assert ds[0].tolist() == [36, 37, 38, 39]


def test_readers_in_forked_children_count_as_users(tmp_path):
    fill(tmp_path / "s", 9).close()
    reader = Zrecord(tmp_path / "s", mode="r")
    assert len(reader) == 9
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ok = len(reader) == 9
            os.write(ready[1], b"y" if ok else b"n")
            os.read(go[0], 1)
        finally:
            os._exit(0)
    assert os.read(ready[0], 1) == b"y"
    reader.close()  # the child's own handle stays
    with Zrecord(tmp_path / "s", mode="r+") as store:
        with pytest.raises(StoreInUseError):
            store.delete([0])
        os.write(go[1], b"x")
        os.waitpid(pid, 0)
        store.delete([0])
        assert len(store) == 8
    for fd in (*ready, *go):
        os.close(fd)


def test_a_child_that_inherits_a_closed_handle_is_no_user(tmp_path):
    fill(tmp_path / "s", 9).close()
    reader = Zrecord(tmp_path / "s", mode="r")
    stop = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(stop[0], 1)
        os._exit(0)
    reader.close()
    with Zrecord(tmp_path / "s", mode="r+") as store:
        store.delete([0])
    os.write(stop[1], b"x")
    os.waitpid(pid, 0)
    in_child(lambda: Zrecord(tmp_path / "s").delete([0]))
    assert len(Zrecord(tmp_path / "s", mode="r")) == 7


def test_threads_get_rows_or_an_error(tmp_path):
    store = fill(tmp_path / "s", 200)
    known = {record(i) for i in range(200)}
    stop, problems = threading.Event(), []

    def read():
        while not stop.is_set():
            try:
                rows = content(store)
            except (StoreInUseError, RecordIndexError):
                continue
            if not set(rows) <= known:
                problems.append(rows)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    deleted = 0
    while deleted < 20:
        try:
            store.delete([deleted])
            store.compact()
        except StoreInUseError:
            continue
        finally:
            deleted = 200 - len(store)
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    assert not problems


def test_interrupted_compact_goes_on(tmp_path, interrupted):
    code = """
        import sys, numpy as np
        from loaderx.zrecord import Zrecord
        store = Zrecord(sys.argv[1], codec="raw", mode="x")
        noise = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
        for i in range(300):
            noise[:8] = np.frombuffer(i.to_bytes(8, "little"), np.uint8)
            store.append(noise, [0, 1000])
        store.sync()
        try:
            print("ready", flush=True)
            while True:
                store.delete([0])
                store.compact()
        except KeyboardInterrupt:
            print("interrupted")
    """
    out, err = interrupted(code, tmp_path / "s")
    assert out == "interrupted\n", err
    with Zrecord(tmp_path / "s", mode="r+") as store:
        before = sorted(content(store))
        store.compact()
        assert sorted(content(store)) == before
        assert store.verify() == []
