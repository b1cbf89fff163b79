"""Dense and ragged datasets against the arrays they were made of."""

import copy
import pickle
import threading

import numpy as np
import pytest

from loaderx import _schema
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset, pad
from loaderx.errors import (
    ArgumentError,
    ClosedError,
    CorruptRecordError,
    DtypeError,
    RecordIndexError,
    StoreFormatError,
    StoreNotFoundError,
    ZrecordError,
)
from loaderx.zrecord import Zrecord


@pytest.fixture
def array(rng):
    return rng.integers(-1000, 1000, (50, 4, 3), dtype=np.int16)


@pytest.fixture
def dense(tmp_path, array):
    from_numpy(tmp_path / "dense", array)
    with DenseDataset(tmp_path / "dense") as ds:
        yield ds


@pytest.fixture
def records(rng):
    return [rng.integers(0, 9, (int(n), 2), dtype=np.int32) for n in rng.integers(1, 9, 40)]


@pytest.fixture
def ragged(tmp_path, records):
    from_iterator(tmp_path / "ragged", records)
    with RaggedDataset(tmp_path / "ragged") as ds:
        yield ds


def assert_fresh(batch, dtype):
    assert batch.dtype == dtype
    assert batch.flags.c_contiguous
    assert batch.flags.writeable


def assert_lists_equal(got, expected):
    assert isinstance(got, list)
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


# ---- dense ----


def test_attributes_are_the_arrays(dense, array, tmp_path):
    assert (len(dense), dense.shape, dense.ndim, dense.nbytes) == (50, array.shape, 3, array.nbytes)
    assert (dense.dtype, dense.item_shape, dense.codec) == (array.dtype, (4, 3), "zstd")
    assert dense.path == tmp_path / "dense"
    assert isinstance(dense.store, Zrecord)
    assert repr(dense) == f"DenseDataset({str(dense.path)!r}, shape=(50, 4, 3), dtype=int16, codec='zstd')"


SHAPES = [(), (4,), (2, 3), (1, 1, 2)]


@pytest.mark.parametrize("item_shape", SHAPES)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_indexing_is_numpys(tmp_path, rng, item_shape, codec):
    array = rng.standard_normal((23, *item_shape)).astype(np.float32)
    from_numpy(tmp_path / "s", array, codec=codec)
    with DenseDataset(tmp_path / "s") as ds:
        indices = [
            0, -1, 22, -23, np.int8(3), np.uint64(5), np.array(4), slice(None), slice(2, 9), slice(None, None, -3),
            slice(30, 40), [], [-1], [3, 3, -23], np.array([], int), range(4), rng.integers(-23, 23, (3, 2)),
            rng.integers(0, 23, 9, dtype=np.uint8), rng.integers(0, 23, 9).astype(">u8"), np.arange(23)[::-2],
            array.reshape(23, -1)[:, 0] > 0, [True] * 23, np.zeros(23, bool), ..., None, True, False, (), (3,),
            (..., 0), (None, 2), (slice(None), None), ([1, 2], ...), (np.array([[0], [1]]),),
        ]  # fmt: skip
        if item_shape:
            indices += [(1, 0), (slice(2, 5), 0), ([1, 2, 3], 0), (..., -1), (np.arange(3), np.zeros(3, int)), (1, [0])]
        for index in indices:
            expected = array[index]
            got = ds[index]
            assert type(got) is type(expected), index
            np.testing.assert_array_equal(got, expected, err_msg=repr(index))
            if isinstance(got, np.ndarray):
                assert got.shape == expected.shape
                assert_fresh(got, array.dtype)


@pytest.mark.parametrize(
    "index",
    [50, -51, 2**70, [50], [0, -51], 1.0, [1.5], np.array([]), "0", {}, [True] * 49, np.ones(51, bool),
     np.ones(0, bool), np.ones((50, 5), bool), (0, 4), (0, 0, 0, 0), (..., ...), np.array([2**64 - 1], np.uint64)],
)  # fmt: skip
def test_bad_indices_are_index_errors(dense, index):
    with pytest.raises(IndexError):
        dense[index]


def test_messages_say_what_is_allowed(dense):
    with pytest.raises(RecordIndexError, match=r"50"):
        dense[50]
    with pytest.raises(RecordIndexError, match=r"-51"):
        dense[[1, -51]]
    with pytest.raises(RecordIndexError, match=r"shape \(49,\) did not match the 50 records"):
        dense[[True] * 49]


def test_iteration_ends_and_reads_in_blocks(dense, array, monkeypatch):
    calls = []
    fill = DenseDataset._fill
    monkeypatch.setattr(DenseDataset, "_fill", lambda self, rows, *a: calls.append(rows.size) or fill(self, rows, *a))
    assert_lists_equal(list(dense), list(array))
    assert calls == [50]
    assert_lists_equal(list(reversed(dense)), list(array[::-1]))
    iterator = iter(dense)
    next(iterator)[:] = 0
    np.testing.assert_array_equal(dense[0], array[0])


def test_iterating_over_numbers_and_large_records(tmp_path):
    labels = np.arange(3000, dtype=np.int64)
    from_numpy(tmp_path / "labels", labels)
    assert list(DenseDataset(tmp_path / "labels")) == list(labels)
    big = np.arange(5 * 100_000, dtype=np.float64).reshape(5, -1)
    from_numpy(tmp_path / "big", big, codec="raw")
    assert_lists_equal(list(DenseDataset(tmp_path / "big")), list(big))


def test_membership_is_refused_rather_than_weird(dense, ragged):
    for ds in (dense, ragged):
        with pytest.raises(TypeError, match="no membership test"):
            3 in ds  # noqa: B015


def test_conversion_to_an_array(dense, array):
    np.testing.assert_array_equal(np.asarray(dense), array, strict=True)
    assert np.asarray(dense, dtype=np.float32).dtype == np.float32
    assert np.array(dense).flags.writeable
    with pytest.raises(ValueError, match="always a copy"):
        dense.__array__(copy=False)
    np.testing.assert_array_equal(np.add(dense, 1), array + 1)


def test_gather_fills_a_given_batch(dense, array):
    out = np.zeros((3, 4, 3), np.int16)
    assert dense.gather([3, -1, 3], out=out) is out
    np.testing.assert_array_equal(out, array[[3, -1, 3]])
    np.testing.assert_array_equal(dense.gather(slice(1, 4)), array[1:4], strict=True)
    assert dense.gather(np.array([[1, 2]]), out=np.zeros((1, 2, 4, 3), np.int16)).shape == (1, 2, 4, 3)
    assert dense.gather([], out=np.zeros((0, 4, 3), np.int16)).size == 0


def test_gather_refuses_a_batch_that_does_not_fit(dense):
    frozen = np.zeros((2, 4, 3), np.int16)
    frozen.flags.writeable = False
    bad = [
        np.zeros((3, 4, 3), np.int16), np.zeros((2, 12), np.int16), np.zeros((2, 4, 3), np.uint16),
        np.zeros((2, 4, 3), ">i2"), np.zeros((2, 4, 6), np.int16)[..., ::2], np.zeros((2, 4, 3), np.int16, order="F"),
        frozen,
    ]  # fmt: skip
    for out in bad:
        with pytest.raises(ArgumentError):
            dense.gather([0, 1], out=out)
        assert not out.any()
    with pytest.raises(DtypeError):
        dense.gather([0], out=bytearray(24))


def test_batches_share_no_memory(dense):
    one, two = dense[[0, 1]], dense[[0, 1]]
    one[:] = 0
    assert two.any()


def test_torch_collates_a_fetched_batch(dense, array):
    import torch

    batch = torch.utils.data.default_collate(dense.__getitems__([5, 2, -1]))
    np.testing.assert_array_equal(batch.numpy(), array[[5, 2, -1]], strict=True)
    assert [s.shape for s in dense.__getitems__([1, 2])] == [(4, 3)] * 2


# ---- ragged ----


def test_ragged_indexing(ragged, records):
    for index in (0, -1, np.int16(7), np.array(3)):
        np.testing.assert_array_equal(ragged[index], records[int(index)], strict=True)
    mask = np.arange(40) % 3 == 0
    for index, expected in [
        (slice(3, 30, 4), records[3:30:4]),
        (slice(None, None, -1), records[::-1]),
        ([5, -1, 5], [records[5], records[-1], records[5]]),
        ([], []),
        (np.array([7], np.uint8), [records[7]]),
        (mask, [r for r, m in zip(records, mask, strict=True) if m]),
        (..., records),
        (range(3), records[:3]),
    ]:
        assert_lists_equal(ragged[index], expected)
    assert_lists_equal(list(ragged), records)
    assert_lists_equal(ragged.__getitems__([2, 1]), [records[2], records[1]])


@pytest.mark.parametrize(
    "index", [40, -41, 2**70, [40], 1.0, [0.5], (0, 1), [[0, 1]], None, True, "0", [True] * 39, np.array(True)]
)
def test_bad_ragged_indices_are_index_errors(ragged, index):
    with pytest.raises(IndexError):
        ragged[index]


def test_ragged_records_are_views_of_one_new_buffer(ragged):
    got = ragged[[3, 4]]
    assert got[0].base is got[1].base
    for record in got:
        assert_fresh(record, np.int32)
    got[0][:] = -1
    assert (ragged[3] != -1).all()


def test_ragged_attributes(ragged, records):
    assert (len(ragged), ragged.shape, ragged.item_shape, ragged.dtype) == (40, (40,), (2,), np.int32)
    assert ragged.lengths().tolist() == [len(r) for r in records]
    assert ragged.lengths([-1, 0]).tolist() == [len(records[-1]), len(records[0])]
    assert ragged.lengths([0]).dtype == np.int64
    assert ragged.lengths([]).tolist() == []
    with pytest.raises(TypeError, match="pad"):
        np.asarray(ragged)
    assert repr(ragged).endswith("len=40, item_shape=(2,), dtype=int32, codec='zstd')")


def test_ragged_iteration_keeps_blocks_small(tmp_path, monkeypatch):
    records = [np.full(n, n % 251, np.uint8) for n in (10, 900_000, 900_000, 5, 1_000_000, 1_000_000, 7)] + [
        np.full(3, 1, np.uint8)
    ] * 3000
    from_iterator(tmp_path / "s", records)
    taken = []
    batch = RaggedDataset._batch
    monkeypatch.setattr(RaggedDataset, "_batch", lambda self, rows: taken.append(batch(self, rows)) or taken[-1])
    with RaggedDataset(tmp_path / "s") as ds:
        assert_lists_equal(list(ds), records)
    assert max(sum(r.nbytes for r in block) for block in taken) <= 1 << 20
    assert len(taken) < 15


def test_a_record_of_broken_rows_is_named(ragged, tmp_path):
    ragged.close()
    with Zrecord(tmp_path / "ragged") as store:
        store.append(bytes(17), [0, 8])
    with RaggedDataset(tmp_path / "ragged") as ds:
        assert len(ds[40]) == 1
        message = r"record 41 of .* has 9 bytes, which is not a multiple of its row of 8"
        for read in (lambda: ds[41], lambda: ds.lengths(), lambda: ds[[0, 41]]):
            with pytest.raises(CorruptRecordError, match=message):
                read()


def test_a_record_of_another_length_in_a_dense_store_is_named(dense, tmp_path):
    dense.close()
    with Zrecord(tmp_path / "dense") as store:
        store.append(bytes(10), [0])
    with DenseDataset(tmp_path / "dense") as ds:
        assert ds[49].shape == (4, 3)
        for read in (lambda: ds[50], lambda: ds[[0, 50]], lambda: list(ds)):
            with pytest.raises(ZrecordError, match="50"):
                read()


# ---- life ----


def test_a_missing_store_is_reported_and_not_created(tmp_path):
    for cls in (DenseDataset, RaggedDataset):
        with pytest.raises(StoreNotFoundError, match="typo") as caught:
            cls(tmp_path / "typo")
        assert isinstance(caught.value, FileNotFoundError)
    assert list(tmp_path.iterdir()) == []


def test_the_kinds_are_not_mixed_up(dense, ragged):
    with pytest.raises(StoreFormatError, match="is a 'dense' store, not 'ragged': open it with DenseDataset"):
        RaggedDataset(dense.path)
    with pytest.raises(ValueError, match="open it with RaggedDataset"):
        DenseDataset(ragged.path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("format", "other"), ("format", None), ("version", 2), ("kind", "sparse"), ("kind", []), ("dtype", "|O"),
     ("dtype", "<x9"), ("dtype", None), ("dtype", [["a", "<i4"]]), ("dtype", "O,O"), ("item_shape", None),
     ("item_shape", [-1]), ("item_shape", "44"), ("item_shape", [1 << 30, 1 << 30]), ("item_shape", [1.5]),
     ("codec", "lz4"), ("codec", {})],
)  # fmt: skip
def test_a_damaged_schema_is_reported(dense, key, value):
    schema = _schema.read_schema(dense.path)
    _schema.write_schema(dense.path, {**schema, key: value})
    with pytest.raises(StoreFormatError):
        DenseDataset(dense.path)


def test_a_schema_of_random_bytes_is_reported(dense, rng):
    file = dense.path / "schema.msgpack"
    whole = file.read_bytes()
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        with pytest.raises(ZrecordError):
            DenseDataset(dense.path)
    for _ in range(200):
        file.write_bytes(rng.bytes(int(rng.integers(1, 80))))
        with pytest.raises(ZrecordError):
            DenseDataset(dense.path)


def test_closed_datasets_raise(dense, ragged):
    for ds in (dense, ragged):
        ds.close()
        ds.close()
        assert ds.closed
        for call in (lambda ds=ds: len(ds), lambda ds=ds: ds[0], lambda ds=ds: ds[[]], lambda ds=ds: list(ds),
                     lambda ds=ds: ds.shape, lambda ds=ds: pickle.dumps(ds), lambda ds=ds: copy.copy(ds)):  # fmt: skip
            with pytest.raises(ClosedError):
                call()
        assert "closed" in repr(ds)


def test_datasets_pickle_as_their_path(dense, ragged, monkeypatch):
    monkeypatch.chdir(dense.path.parent)
    for ds in (DenseDataset("dense"), RaggedDataset("ragged")):
        expected = ds[3]
        raw = pickle.dumps(ds)
        assert len(raw) < 800
        copies = [copy.copy(ds), copy.deepcopy(ds)]
        ds.close()
        monkeypatch.chdir("/")
        for other in (pickle.loads(raw), *copies):
            np.testing.assert_array_equal(other[3], expected, strict=True)
            assert other.codec == "zstd"
            other.close()
        monkeypatch.chdir(dense.path.parent)


class Scaled(DenseDataset):
    """A subclass with arguments of its own."""

    def __init__(self, path, factor):
        super().__init__(path)
        self.factor = factor

    def __getitem__(self, index):
        return super().__getitem__(index) * self.factor


def test_subclasses_keep_what_they_add(dense, array):
    twin = copy.deepcopy(Scaled(dense.path, 3))
    np.testing.assert_array_equal(twin[2], array[2] * 3)


def test_threads_read_one_dataset(dense, ragged, array, records, rng):
    failures = []

    def work(seed):
        own = np.random.default_rng(seed)
        try:
            for _ in range(300):
                idx = own.integers(-40, 40, 16)
                np.testing.assert_array_equal(dense[idx], array[idx])
                assert_lists_equal(ragged[idx], [records[i] for i in idx])
                i = int(own.integers(50))
                np.testing.assert_array_equal(dense[i], array[i])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_a_store_without_write_permission_opens(dense, array):
    for file in dense.path.iterdir():
        file.chmod(0o444)
    dense.path.chmod(0o555)
    try:
        with DenseDataset(dense.path) as ds:
            np.testing.assert_array_equal(ds[:], array)
    finally:
        dense.path.chmod(0o755)


def test_pad():
    records = [np.array([[1, 2]], np.int16), np.array([[3, 4], [5, 6]], np.int16)]
    padded, lengths = pad(records)
    np.testing.assert_array_equal(padded, np.array([[[1, 2], [0, 0]], [[3, 4], [5, 6]]], np.int16), strict=True)
    assert lengths.tolist() == [1, 2]
    assert lengths.dtype == np.int64
    padded, _ = pad(records, max_len=4, pad_value=-1)
    assert padded.shape == (2, 4, 2)
    assert (padded[0, 1:] == -1).all()


def test_pad_refuses_what_does_not_stack():
    with pytest.raises(ValueError, match="at least one record"):
        pad([])
    with pytest.raises(ValueError, match="record 1 has 3 rows, more than max_len=2"):
        pad([np.zeros(1), np.zeros(3)], max_len=2)
    for other in (np.zeros((2, 2)), np.zeros(2, np.float32), np.float64(3)):
        with pytest.raises(ArgumentError, match="record 1"):
            pad([np.zeros(2), other])
