"""What the converters write, and what is left when they fail."""

import numpy as np
import pytest

from loaderx import _schema
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import (
    ArgumentError,
    DtypeError,
    RecordSizeError,
    StoreNotFoundError,
    ZrecordError,
)
from loaderx.zrecord import MAX_RECORD_LEN, Zrecord
from tests.stores import back, left_in


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


# ---- arrays ----

DTYPES = [
    "?", "i1", "u1", "<i2", ">i2", "<u4", ">u8", "<i8", "<f2", "<f4", ">f4", "<f8", "<f16", "<c8", ">c16", "S3", "<U2",
    ">U2", "<M8[ns]", ">M8[D]", "<m8[s]",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_come_back_with_their_byte_order(path, name, rng):
    dtype = np.dtype(name)
    array = rng.integers(0, 2, (7, 3 * dtype.itemsize), dtype=np.uint8).view(dtype)
    assert from_numpy(path, array) == 7
    got = back(path)
    assert got.dtype == dtype
    assert got.dtype.byteorder == dtype.byteorder
    assert got.tobytes() == array.tobytes()
    assert _schema.read_schema(path)["dtype"] == dtype.str
    with DenseDataset(path) as ds:
        assert ds[3].tobytes() == array[3].tobytes()
    assert from_iterator(path.with_name("ragged"), list(array)) == 7
    assert back(path.with_name("ragged"), RaggedDataset)[2].dtype.str == dtype.str


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
def test_ml_dtypes_come_back(path, name):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.arange(-6, 6).astype(np.float32).reshape(4, 3).astype(dtype)
    from_numpy(path, array)
    assert _schema.read_schema(path)["dtype"] == name
    got = back(path)
    assert got.dtype == dtype
    assert got.tobytes() == array.tobytes()
    with DenseDataset(path) as ds:
        assert ds[1].tobytes() == array[1].tobytes()


def test_special_values_keep_their_bits(path):
    bits = np.array([0x7FC00001, 0xFFC12345, 1, 0x80000001, 0x7F800000, 0x80000000], np.uint32)
    from_numpy(path, bits.view(np.float32))
    np.testing.assert_array_equal(back(path).view(np.uint32), bits)


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.array([None, "a"]), np.zeros(3, [("a", "i4"), ("b", "f4")]), np.zeros(3, "V4"),
     np.zeros(2, "O").reshape(2, 1), np.array(["a", "bc"], dtype=object)],
)  # fmt: skip
def test_dtypes_without_bytes_are_refused_before_anything_is_written(path, array):
    for write in (lambda: from_numpy(path, array), lambda: from_iterator(path, [array])):
        with pytest.raises(DtypeError):
            write()
    assert left_in(path.parent) == []


def test_any_memory_layout(path, rng):
    base = rng.integers(0, 99, (6, 8, 10), dtype=np.int32)
    frozen = base.copy()
    frozen.flags.writeable = False
    layouts = [base.T, base[::2], base[:, ::-1], np.asfortranarray(base), frozen, np.broadcast_to(base[0], base.shape)]
    for number, array in enumerate(layouts):
        place = path / str(number)
        assert from_numpy(place, array, chunk_bytes=700) == len(array)
        np.testing.assert_array_equal(back(place), array, strict=True)


@pytest.mark.parametrize("chunk_bytes", [1, 12, 13, 100, 1 << 20])
def test_blocks_of_any_size_give_the_same_store(path, chunk_bytes):
    array = np.arange(99, dtype=np.int32).reshape(33, 3)
    from_numpy(path, array, chunk_bytes=chunk_bytes)
    np.testing.assert_array_equal(back(path), array)
    from_iterator(path.with_name("r"), (row[: 1 + i % 3] for i, row in enumerate(array)), chunk_bytes=chunk_bytes)
    assert back(path.with_name("r"), RaggedDataset)[31].tolist() == array[31, :2].tolist()


def test_zero_lengths(path):
    assert from_numpy(path, np.zeros((0, 3), np.float32)) == 0
    with DenseDataset(path) as ds:
        assert (ds.shape, ds.dtype) == ((0, 3), np.float32)
        assert ds[:].shape == (0, 3)
        assert list(ds) == []
    assert from_numpy(path, np.ones((2, 3), np.float32)) == 2
    assert back(path).shape == (2, 3)
    for shape in ((3, 0), (0, 0), (3, 2, 0)):
        with pytest.raises(RecordSizeError, match="empty"):
            from_numpy(path.with_name("n"), np.zeros(shape))
    with pytest.raises(ArgumentError, match="no axis of records"):
        from_numpy(path.with_name("n"), np.array(3))
    assert left_in(path.parent) == ["store"]


def test_arguments_are_checked_before_anything_is_written(path):
    array = np.zeros((2, 3), np.float32)
    bad = [
        ({"codec": "lz4"}, ValueError, "unknown codec 'lz4'"),
        ({"chunk_bytes": 0}, ValueError, r"chunk_bytes must be in 1\.\."),
        ({"chunk_bytes": 1.5}, TypeError, "chunk_bytes must be an integer"),
        ({"chunk_bytes": None}, TypeError, "chunk_bytes must be an integer"),
        ({"dict_size": -1}, ValueError, r"dict_size must be in 256\.\.16777216, got -1"),
        ({"schema": [1]}, TypeError, "schema must be a dict"),
        ({"schema": {"dtype": "<f8"}}, ValueError, "dtype is '<f8', but the records have '<f4'"),
        ({"schema": {"item_shape": [9]}}, ValueError, r"item_shape is \[9\], but the records have \[3\]"),
        ({"schema": {"format": "mine"}}, ValueError, "format 'mine'"),
        ({"schema": {"note": object()}}, TypeError, "schema's own values"),
    ]
    for options, kind, message in bad:
        for write, source in ((from_numpy, array), (from_iterator, [array, array])):
            with pytest.raises(kind, match=message) as caught:
                write(path, source, **options)
            assert isinstance(caught.value, ZrecordError)
    for source in ([[1, 2]], "text", None, np.ma.masked_array([1, 2], [0, 1])):
        with pytest.raises(TypeError):
            from_numpy(path, source)
    with pytest.raises(RecordSizeError, match=str(MAX_RECORD_LEN)):
        from_numpy(path, np.zeros((1, MAX_RECORD_LEN + 1), np.uint8))
    assert left_in(path.parent) == []


def test_the_schema_is_that_of_loaderx_with_the_callers_keys(path):
    mine = {"note": "ünï", "classes": ["a", "b"], "scale": 0.5, "nested": {"k": [1, None, True]}, "kind": "ragged"}
    kept = dict(mine)
    from_numpy(path, np.zeros((2, 3), ">f4"), codec="raw", schema=mine)
    assert mine == kept
    expected = {
        **mine,
        "kind": "dense",
        "dtype": ">f4",
        "item_shape": [3],
        "format": "loaderx-zrecord",
        "version": 1,
        "codec": "raw",
    }
    assert _schema.read_schema(path) == expected


def test_other_names_of_the_same_dtype_are_taken(path):
    array = np.ones((2, 3), np.float32)
    from_numpy(path, array, schema={"dtype": "float32", "item_shape": (3,)})
    assert _schema.read_schema(path)["dtype"] == "<f4"
    _schema.write_schema(path, {**_schema.read_schema(path), "dtype": "float32"})
    from_numpy(path, array)
    assert back(path).shape == (4, 3)


# ---- records ----


def test_records_of_any_kind(path):
    import torch

    sources = [
        [[1, 2], [3]],
        [np.array([1, 2]), np.array([3])],
        (np.array([1, 2]), np.array([3])),
        iter([np.array([1, 2]), np.array([3])]),
        [torch.tensor([1, 2]), torch.tensor([3])],
        [np.array([0, 1, 0, 2])[1::2], np.array([3])],
    ]
    for number, source in enumerate(sources):
        assert from_iterator(path / str(number), source) == 2
        got = back(path / str(number), RaggedDataset)
        assert [r.tolist() for r in got] == [[1, 2], [3]]
        assert got[0].dtype == np.int64


def test_torch_bfloat16_and_gradients(path):
    import ml_dtypes
    import torch

    tensor = torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16, requires_grad=True)
    from_iterator(path, [tensor])
    got = back(path, RaggedDataset)[0]
    assert got.dtype == ml_dtypes.bfloat16
    assert got.astype(np.float32).tolist() == [[1.5, -2.0]]


def test_bytes_records_come_back_as_bytes(path):
    assert from_iterator(path, [b"abc", b"de", bytearray(b"f")]) == 3
    got = back(path, RaggedDataset)
    assert [r.tobytes() for r in got] == [b"abc", b"de", b"f"]
    assert got[0].dtype == np.uint8
    schema = _schema.read_schema(path)
    assert (schema["kind"], schema["dtype"], schema["item_shape"]) == ("ragged", "|u1", [])
    assert from_iterator(path, b"one record") == 1
    assert back(path, RaggedDataset)[3].tobytes() == b"one record"


def test_bytes_records_with_a_schema(path):
    schema = {"dtype": "<i2", "item_shape": [2]}
    rows = np.arange(6, dtype="<i2").reshape(3, 2)
    from_iterator(path, [rows.tobytes(), rows[:1].tobytes()], schema=schema)
    np.testing.assert_array_equal(back(path, RaggedDataset)[0], rows, strict=True)
    with pytest.raises(ArgumentError, match="record 1 has 6 bytes, which is not a multiple of the row of 4"):
        from_iterator(path, [bytes(4), bytes(6)], schema=schema)
    assert len(back(path, RaggedDataset)) == 2


GOOD = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("bad", "kind", "message"),
    [
        (GOOD.astype(np.float64), ValueError, "record 2 is float64"),
        (GOOD.astype(">f4"), ValueError, "record 2 is >f4"),
        (np.zeros((2, 4), np.float32), ValueError, r"record 2 is float32 with rows of shape \(4,\)"),
        (np.float32(1), ValueError, "record 2 is a scalar"),
        (3, ValueError, "record 2 is a scalar"),
        (np.zeros((0, 3), np.float32), RecordSizeError, "record 2 is empty"),
        (np.zeros((MAX_RECORD_LEN, 3), np.float32), RecordSizeError, "record 2 has"),
        ("text", TypeError, "record 2 is a str"),
        (None, TypeError, "record 2"),
        ([1, None], TypeError, "record 2"),
        ([[1], [1, 2]], ValueError, "record 2 is not an array"),
        (np.zeros(2, [("a", "i4")]), TypeError, "record 2: structured"),
        (np.ma.masked_array(GOOD, GOOD == 0), TypeError, "record 2 is a masked array"),
        (b"12345", ValueError, "record 2 has 5 bytes"),
    ],
)
def test_a_record_that_does_not_fit_is_named_and_nothing_stays(path, bad, kind, message):
    with pytest.raises(kind, match=message):
        from_iterator(path, [GOOD, GOOD, bad, GOOD], chunk_bytes=1)
    assert left_in(path.parent) == []


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("text", TypeError),
        (["text"], TypeError),
        (5, TypeError),
        (None, TypeError),
        ([5], ValueError),
        ([b""], RecordSizeError),
        ([], ValueError),
        ([np.array([])], RecordSizeError),
    ],
)
def test_sources_that_have_no_records(path, source, kind):
    with pytest.raises(kind):
        from_iterator(path, source)
    assert left_in(path.parent) == []


def test_no_records_with_a_schema(path):
    assert from_iterator(path, [], schema={"dtype": "<f4", "item_shape": [2]}) == 0
    with RaggedDataset(path) as ds:
        assert (len(ds), ds[:], ds.item_shape) == (0, [], (2,))


# ---- appending ----


def test_appending_to_a_store_that_matches(path):
    first, second = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(6, 12, dtype=np.int32).reshape(2, 3)
    assert from_numpy(path, first, codec="raw") == 2
    with DenseDataset(path) as reader:
        assert from_numpy(path, second, schema={"note": "more"}) == 2
        assert len(reader) == 4
        np.testing.assert_array_equal(reader[:], np.concatenate([first, second]))
    schema = _schema.read_schema(path)
    assert (schema["codec"], schema["note"]) == ("raw", "more")


@pytest.mark.parametrize(
    "other", [np.zeros((2, 4), np.int32), np.zeros((2, 3), np.int64), np.zeros((2, 3), ">i4"), np.zeros(2, np.int32)]
)
def test_appending_other_records_is_refused(path, other):
    from_numpy(path, np.ones((2, 3), np.int32))
    with pytest.raises(ArgumentError, match=r"holds dense <i4\(3,\) records, can't append dense"):
        from_numpy(path, other)
    with pytest.raises(ArgumentError, match="can't append ragged"):
        from_iterator(path, [np.ones((2, 3), np.int32)])
    np.testing.assert_array_equal(back(path), np.ones((2, 3), np.int32))


def test_records_without_a_schema_are_not_guessed(path):
    with Zrecord(path, mode="x") as store:
        store.append(b"abcd", [0])
    with pytest.raises(ArgumentError, match="holds 1 records without a schema"):
        from_numpy(path, np.zeros(3, np.int32))
    with pytest.raises(StoreNotFoundError, match=r"schema\.msgpack"):
        DenseDataset(path)


def test_an_empty_store_takes_the_schema_of_its_first_records(path):
    Zrecord(path, mode="x").close()
    from_numpy(path, np.zeros((0, 3), np.int32))
    assert from_numpy(path, np.ones(2, np.uint8)) == 2
    assert back(path).tolist() == [1, 1]


# ---- dictionaries ----


def test_a_dictionary_shrinks_small_similar_records(path, rng):
    words = rng.integers(0, 255, (50, 16), dtype=np.uint8)
    array = words[rng.integers(0, 50, (4000, 8))].reshape(4000, 128)
    from_numpy(path, array, codec="zstd_dict", chunk_bytes=200_000)
    with DenseDataset(path) as ds:
        assert ds.codec == "zstd_dict"
        assert ds.store.has_dict()
        np.testing.assert_array_equal(ds[:], array)
    size = (path / "dict.zr").stat().st_size
    from_numpy(path, array[:10], codec="zstd_dict")
    assert (path / "dict.zr").stat().st_size == size
    np.testing.assert_array_equal(back(path)[-10:], array[:10])
    from_iterator(path.with_name("small"), list(array), codec="zstd_dict", dict_size=1000)
    assert (path.with_name("small") / "dict.zr").stat().st_size <= 1000


@pytest.mark.parametrize("shape", [(2,), (7, 8), (1, 100)])
def test_too_few_records_for_a_dictionary(path, shape):
    array = np.zeros(shape, np.uint8)
    with pytest.warns(RuntimeWarning, match="without a dictionary"):
        from_numpy(path, array, codec="zstd_dict")
    with DenseDataset(path) as ds:
        assert ds.codec == "zstd"
        np.testing.assert_array_equal(ds[:], array)


@pytest.mark.filterwarnings("ignore:.*without a dictionary:RuntimeWarning")
@pytest.mark.parametrize("shape", [(32, 8), (2, 10_000), (9000, 1)])
def test_identical_records_with_a_dictionary(path, shape):
    array = np.ones(shape, np.uint8)
    from_numpy(path, array, codec="zstd_dict")
    np.testing.assert_array_equal(back(path), array)


def test_no_records_train_no_dictionary(path):
    from_numpy(path, np.zeros((0, 3), np.uint8), codec="zstd_dict")
    assert back(path).shape == (0, 3)
