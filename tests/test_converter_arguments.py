"""What callers give in schemas and sizes is checked before anything is written."""

import os

import numpy as np
import pytest

from loaderx import _schema
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import RaggedDataset
from loaderx.errors import ArgumentError, DtypeError, RecordSizeError, StoreFormatError
from loaderx.zrecord import MAX_RECORD_LEN, Zrecord

BAD_SCHEMAS = [
    ({"dtype": "S0"}, DtypeError, "dtype 'S0' is not the name"),
    ({"dtype": "U"}, DtypeError, "dtype 'U' is not the name"),
    ({"dtype": "nonsense"}, DtypeError, "dtype 'nonsense' is not the name"),
    ({"dtype": None}, DtypeError, "dtype None is not the name"),
    ({"dtype": [["a", "<i4"]]}, DtypeError, "is not the name"),
    ({"dtype": object}, DtypeError, "can't be stored"),
    ({"dtype": np.dtype([("a", "<i4")])}, DtypeError, "can't be stored"),
    ({"item_shape": "ab"}, DtypeError, "item_shape must be a list of sizes, got 'ab'"),
    ({"item_shape": b"ab"}, DtypeError, "item_shape must be a list of sizes"),
    ({"item_shape": {}}, DtypeError, "item_shape must be a list of sizes"),
    ({"item_shape": 5}, DtypeError, "item_shape must be a list of sizes, got 5"),
    ({"item_shape": None}, DtypeError, "item_shape must be a list of sizes, got None"),
    ({"item_shape": [1.5]}, DtypeError, "item_shape must be a list of sizes"),
    ({"item_shape": np.array([[1]])}, DtypeError, "item_shape must be a list of sizes"),
    ({"item_shape": [0]}, ArgumentError, "item_shape has a size outside 1 to"),
    ({"item_shape": [-(2**70)]}, ArgumentError, "item_shape has a size outside 1 to"),
    ({"item_shape": [2**32, 2**32]}, ArgumentError, "item_shape has a size outside 1 to"),
    ({"item_shape": [2**63]}, ArgumentError, "item_shape has a size outside 1 to"),
    ({"item_shape": [2**70]}, ArgumentError, "item_shape has a size outside 1 to"),
    ({"item_shape": [10**5000]}, ArgumentError, "item_shape has a size outside 1 to"),
]


@pytest.mark.parametrize(("schema", "kind", "message"), BAD_SCHEMAS)
def test_schemas_that_no_record_can_have(tmp_path, schema, kind, message):
    for write, source in (
        (from_iterator, [b"abc"]),
        (from_iterator, []),
        (from_iterator, [np.zeros((2, 3), np.uint8)]),
        (from_numpy, np.zeros((2, 3), np.uint8)),
    ):
        with pytest.raises(kind, match=message):
            write(tmp_path / "s", source, schema={"dtype": "|u1", **schema})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"item_shape": [2**16, 2**16]}, f"has {2**32} bytes; the format holds records of 1 to {MAX_RECORD_LEN}"),
        ({"item_shape": [2**16] * 8}, "the format holds records of 1 to"),
        ({"dtype": "S2147483647"}, "has 2147483647 bytes"),
        ({"dtype": "<f8", "item_shape": [MAX_RECORD_LEN]}, "the format holds records of 1 to"),
        ({"item_shape": [1] * 100}, "records of 101 dimensions"),
    ],
)
@pytest.mark.parametrize("source", [[b"abc"], []])
def test_rows_of_bytes_that_fit_no_record(tmp_path, source, schema, message):
    with pytest.raises(ArgumentError, match=message):
        from_iterator(tmp_path / "s", source, schema={"dtype": "|u1", **schema})
    assert os.listdir(tmp_path) == []


def test_arrays_with_too_large_rows_are_records_of_the_wrong_size(tmp_path):
    with pytest.raises(RecordSizeError, match="record 0 has"):
        from_iterator(tmp_path / "s", [np.zeros((1, MAX_RECORD_LEN + 1), np.uint8)])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("dtype", [np.int16, np.dtype("<i2"), "int16", "<i2"])
@pytest.mark.parametrize("shape", [[2], (2,), np.array([2])])
def test_schemas_may_hold_what_numpy_calls_a_dtype_and_a_shape(tmp_path, dtype, shape):
    rows = np.arange(6, dtype="<i2").reshape(3, 2)
    schema = {"dtype": dtype, "item_shape": shape}
    from_iterator(tmp_path / "r", [rows.tobytes()], schema=schema)
    with RaggedDataset(tmp_path / "r") as ds:
        np.testing.assert_array_equal(ds[0], rows, strict=True)
    from_numpy(tmp_path / "d", rows, schema=schema)
    for name in "rd":
        found = _schema.read_schema(tmp_path / name)
        assert (found["dtype"], found["item_shape"]) == ("<i2", [2])


def test_a_store_whose_rows_have_no_bytes_is_damaged(tmp_path):
    from_iterator(tmp_path / "s", [b"abc"])
    _schema.write_schema(tmp_path / "s", {**_schema.read_schema(tmp_path / "s"), "dtype": "S0"})
    with pytest.raises(StoreFormatError, match="'S0'"):
        RaggedDataset(tmp_path / "s")


@pytest.mark.parametrize("size", [-1, 0, 1, 255, (16 << 20) + 1, 2**40, 2**63, 2**70])
def test_dictionaries_of_no_possible_size(tmp_path, size):
    rows = np.zeros((100, 30), np.uint8)
    for write, source in ((from_numpy, rows), (from_iterator, list(rows))):
        with pytest.raises(ArgumentError, match=f"dict_size must be in 256..{16 << 20}, got {size}"):
            write(tmp_path / "s", source, codec="zstd_dict", dict_size=size)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("level", [-1, 0, 23, 2**40])
def test_levels_that_zstd_has_not(tmp_path, level):
    for write, source in ((from_numpy, np.zeros((3, 3))), (from_iterator, [np.zeros(3)])):
        with pytest.raises(ArgumentError, match=f"level must be in 1..22, got {level}"):
            write(tmp_path / "s", source, level=level)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (None, DtypeError, "target must be an int, got NoneType"),
        (1000.0, DtypeError, "target must be an int, got float"),
        ("1000", DtypeError, "target must be an int, got str"),
        (2**63, ArgumentError, f"target must be a size of at most {16 << 20} bytes"),
        (-(2**70), ArgumentError, "target must be a size"),
    ],
)
def test_training_targets_that_are_no_size(tmp_path, target, kind, message):
    with Zrecord(tmp_path / "s", mode="x") as store:
        with pytest.raises(kind, match=message):
            store.train_dict(bytes(range(256)) * 10, [256] * 10, target)
        assert not store.has_dict()


def test_lists_of_unequal_lengths_are_no_integers(tmp_path):
    with Zrecord(tmp_path / "s", mode="x") as store:
        for call in (
            lambda: store.append(b"abc", [[0], [1, 2]]),
            lambda: store.lengths([[0], [1, 2]]),
            lambda: store.train_dict(b"abc", [[1], [1, 2]], 1000),
        ):
            with pytest.raises(ArgumentError, match="must be a list of integers"):
                call()


def test_binary_values_of_a_foreign_schema_survive_an_append(tmp_path):
    import msgpack

    path = tmp_path / "s"
    from_numpy(path, np.zeros(3, np.uint8))
    file = path / "schema.msgpack"
    foreign = {**msgpack.unpackb(file.read_bytes()), "mean": b"\x00\xff", "more": [{"deep": b""}]}
    file.write_bytes(msgpack.packb(foreign))
    assert _schema.read_schema(path)["mean"] == {"__bytes__": "AP8="}
    from_numpy(path, np.ones(3, np.uint8), schema={"note": "new"})
    assert msgpack.unpackb(file.read_bytes()) == {**foreign, "note": "new"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"codec": "raw", "level": 3}, "level has no meaning with codec 'raw'"),
        ({"codec": "raw", "dict_size": 9000}, "dict_size has no meaning with codec 'raw'"),
        ({"codec": "zstd", "dict_size": 9000}, "dict_size has no meaning with codec 'zstd'"),
    ],
)
def test_options_that_the_codec_would_ignore_are_refused(tmp_path, options, words):
    for write, records in ((from_numpy, np.arange(5)), (from_iterator, [b"abc"])):
        with pytest.raises(ArgumentError, match=words):
            write(tmp_path / "s", records, **options)
    assert list(tmp_path.iterdir()) == []
