"""The record store through its raw interface."""

import os

import numpy as np
import pytest

from loaderx import zrecord
from loaderx.errors import (
    ArgumentError,
    BufferSizeError,
    DictionaryError,
    DtypeError,
    LockedError,
    ReadOnlyError,
    RecordIndexError,
    RecordSizeError,
    StoreExistsError,
    StoreNotFoundError,
    ZrecordError,
)
from loaderx.zrecord import Zrecord
from tests.stores import RECORDS, packed, read, small_store


@pytest.fixture
def path(tmp_path):
    """A store of `RECORDS`."""
    return small_store(tmp_path / "store")


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_records_come_back_in_any_order_and_repeated(tmp_path, codec):
    with Zrecord(tmp_path, codec=codec, mode="x") as store:
        assert store.append(*packed(RECORDS)) == 0
        assert store.append(*packed(RECORDS[:2])) == len(RECORDS)
        assert len(store) == len(RECORDS) + 2
        order = [3, 0, 0, 5, 2, 1, 4]
        expected = [(RECORDS + RECORDS[:2])[i] for i in order]
        assert read(store, order) == expected
    with Zrecord(tmp_path, mode="r") as store:
        assert read(store, order) == expected


def test_codecs_mix_within_a_store(tmp_path):
    with Zrecord(tmp_path, codec="raw") as store:
        store.append(b"a" * 100, [0])
        store.append(b"b" * 100, [0], codec="zstd")
        assert read(store, [1, 0]) == [b"b" * 100, b"a" * 100]


def test_a_dictionary_is_trained_kept_and_used(tmp_path, rng):
    words = [rng.bytes(12) for _ in range(40)]
    samples = [b"".join(words[i] for i in rng.integers(0, 40, 30)) for _ in range(500)]
    src, offsets = packed(samples)
    with Zrecord(tmp_path, codec="zstd_dict", mode="x") as store:
        assert not store.has_dict()
        with pytest.raises(DictionaryError):
            store.append(src, offsets)
        assert 0 < store.train_dict(src, [len(s) for s in samples], 8192) <= 8192
        assert store.has_dict()
        store.append(src, offsets)
    with Zrecord(tmp_path, mode="r") as store:
        assert store.has_dict()
        assert read(store, range(500)) == samples


def test_too_few_samples_for_a_dictionary_are_an_error_that_leaves_the_store_usable(tmp_path):
    with Zrecord(tmp_path, mode="x") as store:
        with pytest.raises(DictionaryError):
            store.train_dict(b"abc", [3], 8192)
        assert not store.has_dict()
        store.append(b"abc", [0])
        assert read(store, [0]) == [b"abc"]


def test_any_contiguous_buffer_is_taken(tmp_path):
    import torch

    data = np.arange(24, dtype=np.int32)
    sources = [data, data.reshape(2, 12), data.tobytes(), bytearray(data), memoryview(data), torch.from_numpy(data)]
    with Zrecord(tmp_path, mode="x") as store:
        for source in sources:
            store.append(source, [0])
        assert read(store, range(len(sources))) == [data.tobytes()] * len(sources)
        for make in (bytearray, lambda n: memoryview(bytearray(n)), lambda n: torch.zeros(n, dtype=torch.uint8)):
            dst = make(96)
            assert store.gather([0], dst, [0]) is dst
            assert bytes(dst) == data.tobytes()
        big_endian = np.zeros((4, 6), ">i4")
        store.gather([0], big_endian, [0])
        assert big_endian.tobytes() == data.tobytes()


def test_buffers_that_can_not_be_written_are_refused(path):
    frozen = np.zeros(5, np.uint8)
    frozen.flags.writeable = False
    with Zrecord(path, mode="r") as store:
        for dst in (frozen, b"12345", np.zeros((5, 2), np.uint8)[:, 0]):
            with pytest.raises(ArgumentError, match=r"read-only|contiguous"):
                store.gather([0], dst, [0])
        assert not frozen.any()
        for dst in (np.empty(1, object), [0, 0], "12345", None):
            with pytest.raises(DtypeError):
                store.gather([0], dst, [0])


def test_places_outside_the_buffer_are_refused(path):
    dst = np.full(16, 7, np.uint8)
    with Zrecord(path, mode="r") as store:
        for offset in (12, 16, 17, 2**40, 2**64 - 1):
            with pytest.raises(BufferSizeError):
                store.gather([0], dst, np.array([offset], dtype=np.uint64))
        with pytest.raises(ArgumentError, match="negative"):
            store.gather([0], dst, [-1])
        with pytest.raises(ArgumentError, match="2 indices need as many offsets, got 1"):
            store.gather([0, 1], dst, [0])
        assert (dst == 7).all()


@pytest.mark.parametrize("index", [-1, 4, 2**31, 2**63 - 1, np.uint64(2**63), np.uint64(2**64 - 1)])
def test_indices_outside_the_store_are_an_index_error(path, index):
    with Zrecord(path, mode="r") as store:
        for call in (
            lambda: store.gather(np.array([index]), bytearray(9), [0]),
            lambda: store.lengths(np.array([index])),
        ):
            with pytest.raises(RecordIndexError) as caught:
                call()
            assert isinstance(caught.value, (IndexError, ZrecordError))
            assert caught.value.code == -3


def test_indices_and_offsets_must_be_integers(path):
    with Zrecord(path, mode="r") as store:
        for bad in ([0.0], ["0"], [None], [True]):
            with pytest.raises(DtypeError):
                store.lengths(bad)
            with pytest.raises(DtypeError):
                store.gather([0], bytearray(9), bad)
        assert store.lengths([]).tolist() == []
        assert store.gather([], bytearray(), []) == bytearray()
        assert store.lengths(np.array([1, 0], dtype=np.uint8)).dtype == np.uint32


def test_sizes_that_the_format_can_not_hold_are_refused_whole(tmp_path):
    limit = zrecord.MAX_RECORD_LEN
    with Zrecord(tmp_path, mode="x") as store:
        for sizes in ((3, 0, 3), (0,), (3, limit + 1)):
            src = bytes(sum(sizes))
            with pytest.raises(RecordSizeError):
                store.append(src, np.cumsum((0, *sizes[:-1])))
        for offsets in ([1], [0, 9], [0, 2, 1], []):
            with pytest.raises(ZrecordError):
                store.append(b"abc", offsets)
        assert len(store) == 0
        assert store.append(bytes(limit), [0]) == 0
        assert store.lengths([0]).tolist() == [limit]


def test_constants_are_those_of_loaderx():
    assert zrecord.CODECS == {"raw": 0, "zstd": 1, "zstd_dict": 2}
    assert zrecord.SCHEMA == "schema.msgpack"
    assert zrecord.FORMAT == "loaderx-zrecord"
    assert zrecord.MAX_RECORD_LEN == 1 << 20
    with pytest.raises(AttributeError):
        zrecord.NOTHING  # noqa: B018


def test_importing_loads_no_engine(python):
    code = """
        import threading, loaderx, loaderx.zrecord, loaderx.dataset, loaderx.converter, sys
        from loaderx import _engine
        assert "NotLoaded" in type(_engine.lib).__name__
        assert not {"torch", "jax", "ml_dtypes", "tqdm"} & set(sys.modules)
    """
    python(code)


# ---- modes ----


def test_a_mistyped_path_creates_nothing(tmp_path):
    typo = tmp_path / "typo"
    with Zrecord(typo) as store:
        assert len(store) == 0
        with pytest.raises(StoreNotFoundError, match="typo"):
            store.lengths([0])
        with pytest.raises(FileNotFoundError):
            store.gather([0], bytearray(1), [0])
        store.sync()
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError, match="typo"):
            Zrecord(typo, mode=mode)
    assert not typo.exists()


def test_the_first_write_creates_the_store(tmp_path):
    with Zrecord(tmp_path / "a" / "b") as store:
        assert store.append(b"abc", [0]) == 0
        assert read(store, [0]) == [b"abc"]
    assert len(Zrecord(tmp_path / "a" / "b", mode="r")) == 1


def test_a_refused_argument_creates_nothing(tmp_path):
    with Zrecord(tmp_path / "new") as store:
        for src, offsets in ((object(), [0]), (b"abc", [0.5]), (np.zeros((2, 2))[:, 0], [0])):
            with pytest.raises((TypeError, ValueError)):
                store.append(src, offsets)
    assert not (tmp_path / "new").exists()


def test_a_store_that_appears_later_is_found(tmp_path):
    with Zrecord(tmp_path / "s") as store:
        with Zrecord(tmp_path / "s", mode="x") as writer:
            writer.append(b"abc", [0])
        assert read(store, [0]) == [b"abc"]
        assert len(store) == 1


def test_reading_changes_no_file(path):
    def state():
        return {p.name: (p.stat().st_size, p.stat().st_mtime_ns, p.stat().st_blocks) for p in path.iterdir()}

    before = state()
    for mode in (None, "r"):
        with Zrecord(path, mode=mode) as store:
            read(store, range(len(RECORDS)))
            store.has_dict()
            store.sync()
    assert state() == before


def test_a_reader_refuses_to_write(path):
    with Zrecord(path, mode="r") as store:
        with pytest.raises(ReadOnlyError, match="mode='r'"):
            store.append(b"abc", [0])
        with pytest.raises(PermissionError):
            store.train_dict(b"abc", [3], 100)
        assert len(store) == len(RECORDS)


def test_an_existing_store_is_not_created_again(path):
    with pytest.raises(StoreExistsError) as caught:
        Zrecord(path, mode="x")
    assert isinstance(caught.value, FileExistsError)
    with Zrecord(path, mode="r+") as store:
        assert store.append(b"abc", [0]) == len(RECORDS)
    with Zrecord(path) as store:
        assert store.append(b"abc", [0]) == len(RECORDS) + 1
        assert len(store) == len(RECORDS) + 2


def test_a_second_writer_is_refused(path):
    with Zrecord(path, mode="a"):
        with pytest.raises(LockedError) as caught:
            Zrecord(path, mode="a")
        assert isinstance(caught.value, BlockingIOError)
        with Zrecord(path) as other:
            with pytest.raises(LockedError):
                other.append(b"abc", [0])
            assert read(other, [0]) == [RECORDS[0]]


def test_options_are_checked(tmp_path):
    with pytest.raises(ArgumentError, match=r"unknown codec 'lz4', expected one of \['raw', 'zstd', 'zstd_dict'\]"):
        Zrecord(tmp_path / "s", codec="lz4")
    with pytest.raises(ArgumentError, match="unknown mode 'w'"):
        Zrecord(tmp_path / "s", mode="w")
    with pytest.raises(TypeError):
        Zrecord(None)
    with pytest.raises(ArgumentError, match="unknown codec"), Zrecord(tmp_path / "s") as store:
        store.append(b"abc", [0], codec=["raw"])
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("name", ["ünï-код", "with space", os.fsdecode(b"raw\xff")])
def test_any_file_name_works(tmp_path, name):
    with Zrecord(tmp_path / name, mode="x") as store:
        store.append(b"abc", [0])
    assert read(Zrecord(os.fsencode(tmp_path / name), mode="r"), [0]) == [b"abc"]


def test_a_level_is_taken(tmp_path, rng):
    text = bytes(rng.integers(97, 101, 100_000, dtype=np.uint8))
    for level in (1, 19):
        with Zrecord(tmp_path / str(level), level=level) as store:
            store.append(text, [0])
            assert read(store, [0]) == [text]


# ---- publishing ----


def test_appended_records_are_published_by_sync(path):
    with Zrecord(path, mode="a") as writer, Zrecord(path, mode="r") as reader:
        writer.append(b"new", [0])
        assert len(writer) == len(RECORDS) + 1
        assert len(reader) == len(RECORDS)
        writer.sync()
        assert len(reader) == len(RECORDS) + 1
        assert read(reader, [len(RECORDS)]) == [b"new"]


def test_discarded_records_never_appear(path):
    store = Zrecord(path, mode="a")
    store.append(b"new", [0])
    store._discard()
    assert store.closed
    with Zrecord(path, mode="a") as store:
        assert len(store) == len(RECORDS)
        assert store.append(b"other", [0]) == len(RECORDS)
    assert read(Zrecord(path, mode="r"), range(len(RECORDS) + 1)) == [*RECORDS, b"other"]


def test_a_writer_that_is_dropped_publishes(path):
    Zrecord(path, mode="a").append(b"new", [0])
    assert len(Zrecord(path, mode="r")) == len(RECORDS) + 1
