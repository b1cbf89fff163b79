"""Stores go both ways between this package and the real loaderx 0.9.4.

The two never meet in one process: the real one runs in an interpreter of its
own and hands its view of a store over as a file.
"""

import json

import numpy as np
import pytest

from loaderx import _schema
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.zrecord import Zrecord

CODECS = ["raw", "zstd", "zstd_dict"]

# Writes what the real loaderx reads to argv[2]: the array, or the records one after another and their lengths.
READ = """
    import sys, json, msgpack, numpy as np
    from loaderx.dataset import DenseDataset, RaggedDataset
    path, out, kind = sys.argv[1:]
    if kind == "dense":
        with DenseDataset(path) as ds:
            np.savez(out, values=ds[:], some=ds[[3, 0, 3]])
    else:
        with RaggedDataset(path) as ds:
            records = ds[:]
            np.savez(out, values=np.concatenate(records), lengths=[len(r) for r in records])
    print(json.dumps(msgpack.load(open(path + "/schema.msgpack", "rb"))))
"""

WRITE = """
    import sys, json, msgpack, numpy as np
    from loaderx.converter import from_numpy, from_iterator
    path, source, kind, codec = sys.argv[1:]
    data = np.load(source)
    if kind == "dense":
        from_numpy(path, data["values"], codec=codec)
    else:
        from_iterator(path, np.split(data["values"], np.cumsum(data["lengths"])[:-1]), codec=codec)
    print(json.dumps(msgpack.load(open(path + "/schema.msgpack", "rb"))))
"""


@pytest.fixture(params=["<f4", ">i2", "|u1"])
def array(request, rng):
    base = rng.integers(0, 50, (700, 6, 5))
    base[100:200] = rng.integers(0, 256, (100, 6, 5))
    return base.astype(request.param)


@pytest.fixture
def records(rng):
    return [rng.integers(0, 20, (int(n), 3), dtype=np.int32) for n in rng.integers(1, 60, 700)]


@pytest.mark.parametrize("codec", CODECS)
def test_dense_there(tmp_path, oracle, array, codec):
    from_numpy(tmp_path / "s", array, codec=codec, chunk_bytes=array.nbytes // 3)
    schema = json.loads(oracle(READ, tmp_path / "s", tmp_path / "out.npz", "dense"))
    with np.load(tmp_path / "out.npz") as got:
        np.testing.assert_array_equal(got["values"], array, strict=True)
        np.testing.assert_array_equal(got["some"], array[[3, 0, 3]])
    assert schema == _schema.read_schema(tmp_path / "s")


@pytest.mark.parametrize("codec", CODECS)
def test_dense_and_back(tmp_path, oracle, array, codec):
    np.savez(tmp_path / "in.npz", values=array)
    schema = json.loads(oracle(WRITE, tmp_path / "s", tmp_path / "in.npz", "dense", codec))
    with DenseDataset(tmp_path / "s") as ds:
        np.testing.assert_array_equal(ds[:], array, strict=True)
        np.testing.assert_array_equal(ds[[3, 0, -1]], array[[3, 0, -1]])
        assert ds.codec == codec
    from_numpy(tmp_path / "ours", array, codec=codec)
    assert schema == _schema.read_schema(tmp_path / "s") == _schema.read_schema(tmp_path / "ours")


@pytest.mark.parametrize("codec", CODECS)
def test_ragged_there(tmp_path, oracle, records, codec):
    from_iterator(tmp_path / "s", records, codec=codec, chunk_bytes=20_000)
    schema = json.loads(oracle(READ, tmp_path / "s", tmp_path / "out.npz", "ragged"))
    with np.load(tmp_path / "out.npz") as got:
        np.testing.assert_array_equal(got["values"], np.concatenate(records), strict=True)
        assert got["lengths"].tolist() == [len(r) for r in records]
    assert schema == _schema.read_schema(tmp_path / "s")


@pytest.mark.parametrize("codec", CODECS)
def test_ragged_and_back(tmp_path, oracle, records, codec):
    np.savez(tmp_path / "in.npz", values=np.concatenate(records), lengths=[len(r) for r in records])
    schema = json.loads(oracle(WRITE, tmp_path / "s", tmp_path / "in.npz", "ragged", codec))
    with RaggedDataset(tmp_path / "s") as ds:
        for got, expected in zip(ds, records, strict=True):
            np.testing.assert_array_equal(got, expected, strict=True)
    from_iterator(tmp_path / "ours", records, codec=codec)
    assert schema == _schema.read_schema(tmp_path / "s") == _schema.read_schema(tmp_path / "ours")


@pytest.mark.parametrize("codec", CODECS)
def test_each_appends_to_the_others_store(tmp_path, oracle, array, codec):
    first, second, third = np.split(array[:699], 3)
    from_numpy(tmp_path / "s", first, codec=codec)
    np.savez(tmp_path / "in.npz", values=second)
    oracle(WRITE, tmp_path / "s", tmp_path / "in.npz", "dense", codec)
    from_numpy(tmp_path / "s", third, codec=codec)
    with DenseDataset(tmp_path / "s") as ds:
        np.testing.assert_array_equal(ds[:], array[:699], strict=True)
    oracle(READ, tmp_path / "s", tmp_path / "out.npz", "dense")
    with np.load(tmp_path / "out.npz") as got:
        np.testing.assert_array_equal(got["values"], array[:699], strict=True)


# Deletes every record whose number argv[2] lists and compacts.
DELETE = """
    import sys, json, numpy as np
    from loaderx.zrecord import Zrecord
    with Zrecord(sys.argv[1]) as store:
        for idxs in json.loads(sys.argv[2]):
            store.delete(np.array(idxs, dtype=np.uint64))
        if sys.argv[3] == "compact":
            store.compact()
        print(json.dumps(store.stats()))
"""

DELETED = [[0, 5, 5, 699], [13], list(range(100, 300, 3))]


def survivors(count):
    """Do to the numbers of records what deleting does to a store."""
    rows = list(range(count))
    for idxs in DELETED:
        for idx in sorted(set(idxs), reverse=True):
            rows[idx] = rows[-1]
            rows.pop()
    return rows


def deleted(array):
    return array[survivors(len(array))]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("compact", ["", "compact"])
def test_deletes_and_compaction_there_and_back(tmp_path, oracle, array, codec, compact):
    for name in ("ours", "theirs"):
        from_numpy(tmp_path / name, array, codec=codec)
    with Zrecord(tmp_path / "ours") as store:
        for idxs in DELETED:
            store.delete(idxs)
        if compact:
            store.compact()
        stats = store.stats()
    assert stats.pop("lost") == 0  # which they do not count
    assert json.loads(oracle(DELETE, tmp_path / "theirs", json.dumps(DELETED), compact)) == stats
    expected = deleted(array)
    more = array[:50]
    np.savez(tmp_path / "in.npz", values=more)
    for name in ("ours", "theirs"):
        # The other one reads it, then each appends, and both read that.
        oracle(READ, tmp_path / name, tmp_path / "out.npz", "dense")
        with np.load(tmp_path / "out.npz") as got:
            np.testing.assert_array_equal(got["values"], expected, strict=True)
        with DenseDataset(tmp_path / name) as ds:
            np.testing.assert_array_equal(ds[:], expected, strict=True)
        oracle(WRITE, tmp_path / name, tmp_path / "in.npz", "dense", codec)
        from_numpy(tmp_path / name, more, codec=codec)
        both = np.concatenate([expected, more, more], dtype=array.dtype)
        oracle(READ, tmp_path / name, tmp_path / "out.npz", "dense")
        with np.load(tmp_path / "out.npz") as got:
            np.testing.assert_array_equal(got["values"], both, strict=True)
        with DenseDataset(tmp_path / name) as ds:
            np.testing.assert_array_equal(ds[:], both, strict=True)
    with Zrecord(tmp_path / "theirs") as store:  # after their appends to their own deletes
        store.delete([0])
        store.compact()
        assert store.verify() == []


@pytest.mark.parametrize("codec", CODECS)
def test_ragged_records_after_deletes_and_compaction(tmp_path, oracle, records, codec):
    for name in ("ours", "theirs"):
        from_iterator(tmp_path / name, records, codec=codec)
    with Zrecord(tmp_path / "ours") as store:
        for idxs in DELETED:
            store.delete(idxs)
        store.compact()
    oracle(DELETE, tmp_path / "theirs", json.dumps(DELETED), "compact")
    expected = [records[i] for i in survivors(len(records))]
    for name in ("ours", "theirs"):
        oracle(READ, tmp_path / name, tmp_path / "out.npz", "ragged")
        with np.load(tmp_path / "out.npz") as got:
            assert got["lengths"].tolist() == [len(r) for r in expected]
            np.testing.assert_array_equal(got["values"], np.concatenate(expected), strict=True)
        with RaggedDataset(tmp_path / name) as ds:
            assert all(np.array_equal(a, b) for a, b in zip(ds[:], expected, strict=True))


def test_a_schema_with_keys_of_the_callers_is_read(tmp_path, oracle):
    code = """
        import sys, numpy as np
        from loaderx.converter import from_numpy
        schema = {"dtype": "<f4", "item_shape": [2], "classes": ["a"], "scale": 0.5}
        from_numpy(sys.argv[1], np.ones((3, 2), np.float32), schema=schema)
    """
    oracle(code, tmp_path / "s")
    with DenseDataset(tmp_path / "s") as ds:
        assert ds[:].tolist() == [[1, 1]] * 3
    schema = _schema.read_schema(tmp_path / "s")
    assert (schema["classes"], schema["scale"]) == (["a"], 0.5)
