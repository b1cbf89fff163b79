"""NativeRows: the rows that NumPy's indexing gives, and errors that say what is wrong."""

import hashlib

import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import NativeRows
from tests.tables import NONE, RAW, SHUFFLE, XOR, XOR_SHUFFLE, ZLIB, forge, some_rows


@pytest.fixture
def rows():
    return np.random.default_rng(5).integers(0, 9, (500, 24)).astype(np.uint8)


@pytest.fixture
def table(rows, tmp_path):
    """The path of a table of compressed blocks."""
    return forge(tmp_path / "t.men", rows)


@pytest.fixture
def native(table):
    with NativeRows(table) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_give_numpys_rows(tmp_path, seed):
    rng = np.random.default_rng(seed)
    n, width = int(rng.integers(1, 300)), int(rng.choice([1, 2, 3, 8, 24, 100, 512, 1000, 4096, 8192]))
    element = int(rng.choice([e for e in (1, 2, 3, 4, 5, 8, 12, 16) if width % e == 0]))
    rows = some_rows(rng, n, width)
    path = forge(
        tmp_path / "t.men",
        rows,
        block_rows=int(rng.integers(1, 40)),
        codec=int(rng.choice([RAW, ZLIB, ZLIB])),
        predictor=int(rng.choice([NONE, XOR, SHUFFLE, XOR_SHUFFLE])),
        element=element,
        order=rng.permutation(n) if (ordered := rng.random() < 0.5) else None,
        share=(shared := rng.random() < 0.5),
        mapped=ordered or shared or bool(rng.random() < 0.5),
    )
    options = {
        "cache_bytes": int(rng.choice([0, rows.nbytes // 3, 1 << 26])),
        "cache_policy": str(rng.choice(["blocks", "rows"])),
        "threads": [None, 1, 2, 3][rng.integers(4)],
        "query_chunk_rows": [65536, None, 1, 50][rng.integers(4)],
        "verify": True,
    }
    with NativeRows(path, **options) as native:
        assert len(native) == n and native.row_bytes == width and native.shape == (n, width)
        for _ in range(5):
            shape = tuple(rng.integers(0, 12, rng.integers(0, 4)))
            ids = rng.integers(0, n, shape)
            np.testing.assert_array_equal(native.gather(ids), rows[ids], err_msg=f"{options}")
            out = np.full((*shape, width), 0xEE, np.uint8)
            assert native.gather(ids, out=out) is out
            np.testing.assert_array_equal(out, rows[ids])
        assert native.verify() == []


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_ids_of_any_integer_dtype_and_strides(native, rows, dtype):
    ids = np.arange(120).astype(dtype)
    for picked in (ids, ids[::-3], ids.reshape(4, 30).T, ids.reshape(2, 60)[:, ::7], ids[3], ids[:0].reshape(0, 5)):
        np.testing.assert_array_equal(native.gather(picked), rows[picked])
    padded = np.zeros(8 * 10 + 1, np.uint8)
    unaligned = padded[1:].view(np.int64)
    np.testing.assert_array_equal(native.gather(unaligned), rows[unaligned])
    out = np.empty((10, 24), np.uint8)
    native.gather_into(unaligned, out)
    np.testing.assert_array_equal(out, rows[unaligned])


def test_ids_of_other_kinds(native, rows):
    for ids in ([], [[]], [3, 1, 3], [[1], [2]], 7, np.int32(7), (0, 499), range(10)):
        np.testing.assert_array_equal(native.gather(ids), rows[np.asarray(ids, int)])
    for dtype in (torch.int64, torch.int32, torch.uint8):
        ids = torch.tensor([[5, 6], [7, 5]], dtype=dtype)
        np.testing.assert_array_equal(native.gather(ids.T), rows[ids.T.numpy()])


@pytest.mark.parametrize(
    "ids",
    [[True, False], np.ones(500, bool), [1.0], np.zeros(0), np.zeros(3), torch.ones(2), "12", b"1", None, [None],
     {1: 2}, 1.5, True, 1j, ["1"], np.array([1], object)],
)  # fmt: skip
def test_ids_that_are_no_integers_are_refused(native, ids):
    with pytest.raises(errors.DtypeError, match="ids must be"):
        native.gather(ids)
    with pytest.raises(errors.DtypeError, match="ids must be"):
        native.gather_into(ids, np.empty(0, np.uint8))
    with pytest.raises(errors.DtypeError, match="ids must be"):
        native.prefetch(ids)


def test_ragged_ids_are_refused(native):
    with pytest.raises(errors.ArgumentError, match="ids"):
        native.gather([[1], [1, 2]])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, -1, 900], r"id -1 at position 1: want 0 to 499: table .*t\.men"),
        ([[0, 1], [2, 500]], "id 500 at position 3"),
        (np.array([2**63, 0], np.uint64), "id 9223372036854775808 at position 0"),
        (np.array([0, 2**64 - 1], np.uint64), "id 18446744073709551615 at position 1"),
        ([-(2**63)], "id -9223372036854775808 at position 0"),
        ([3, 2**64], "id 18446744073709551616 at position 1"),
        ([0, -1, 2**63], "id -1 at position 1"),
        (torch.tensor([-7], dtype=torch.int8), "id -7 at position 0"),
    ],
)
def test_ids_outside_the_table_are_named(native, ids, message):
    with pytest.raises(errors.RecordIndexError, match=message) as caught:
        native.gather(ids)
    assert isinstance(caught.value, IndexError)
    with pytest.raises(IndexError):
        native.prefetch(ids)


def test_nothing_is_written_when_an_id_is_outside(native):
    out = np.full((2, 24), 7, np.uint8)
    with pytest.raises(IndexError):
        native.gather_into([1, 500], out)
    assert (out == 7).all()


def test_rows_go_into_any_memory_of_their_size(native, rows):
    ids = np.array([4, 499, 4])
    expected = rows[ids].tobytes()
    for out in (
        np.empty((3, 24), np.uint8), np.empty(72, np.int8), np.empty((3, 6), np.float32), np.empty(9, np.complex64),
        bytearray(72), memoryview(bytearray(72)), torch.empty(3, 12, dtype=torch.bfloat16),
        torch.empty(18, dtype=torch.float32, requires_grad=True),
    ):  # fmt: skip
        assert native.gather(ids, out=out) is out
        got = out.detach().view(torch.uint8).numpy() if isinstance(out, torch.Tensor) else out
        assert bytes(got) == expected


@pytest.mark.parametrize(
    ("out", "error"),
    [
        (np.empty((3, 23), np.uint8), errors.BufferSizeError),
        (np.empty(73, np.uint8), errors.BufferSizeError),
        (bytearray(0), errors.BufferSizeError),
        (np.empty((24, 3), np.uint8).T, errors.ArgumentError),
        (np.empty(144, np.uint8)[::2], errors.ArgumentError),
        (b"x" * 72, errors.ArgumentError),
        (torch.empty(24, 3, dtype=torch.uint8).T, errors.ArgumentError),
        (torch.empty(72, dtype=torch.uint8, device="meta"), errors.DtypeError),
        (torch.empty(9, dtype=torch.complex64).conj(), errors.ArgumentError),
        (np.empty(9, object), errors.DtypeError),
        ([0] * 72, errors.DtypeError),
    ],
)
def test_memory_that_does_not_fit_is_refused(native, out, error):
    for ids in ([1, 2, 3], np.array([1, 2, 3])):
        with pytest.raises(error):
            native.gather_into(ids, out)


def test_rows_as_elements(native, rows):
    got = native.gather([[1, 2, 3]], dtype="float32")
    assert got.dtype == np.float32 and got.shape == (1, 3, 6)
    assert got.tobytes() == rows[[1, 2, 3]].tobytes()
    assert native.gather(4, dtype=np.int64).tolist() == rows[4].view(np.int64).tolist()
    with pytest.raises(errors.DtypeError, match="24 bytes"):
        native.gather([1], dtype=np.dtype("complex128, u1"))
    for dtype in (object, "no such", 7):
        with pytest.raises(errors.DtypeError):
            native.gather([1], dtype=dtype)
    assert native.gather([1], dtype="float8_e4m3fn").shape == (1, 24)
    assert native.gather([1], dtype=torch.bfloat16).shape == (1, 12)
    with pytest.raises(errors.ArgumentError, match="dtype"):
        native.gather([1], out=bytearray(24), dtype="float32")


@pytest.mark.parametrize("policy", ["blocks", "rows"])
def test_counters_tell_what_a_query_decoded(table, policy):
    with NativeRows(table, 1 << 20, policy) as native:
        ids = np.arange(500)
        native.gather(ids)
        first = native.stats()
        assert first["last_blocks_decoded"] == first["blocks_decoded"] == native.info()["blocks"] == 72
        assert native.last_decoded_bytes == 500 * 24 and 0 < native.last_compressed_bytes < 500 * 24
        assert first["cache_misses"] == 500 and first["cache_hits"] == 0
        assert first["cache_bytes"] <= 1 << 20 and first["cache_entries"] == (72 if policy == "blocks" else 500)
        native.gather(ids)
        second = native.stats()
        assert second["last_cache_hits"] == 500 and native.last_decoded_bytes == native.last_compressed_bytes == 0
        assert second["queries"] == 2 and second["rows"] == 1000 and second["blocks_decoded"] == 72
        native.set_cache(0)
        native.gather(ids)
        assert native.stats()["last_blocks_decoded"] == 72 and native.stats()["cache_capacity"] == 0


def test_a_cache_keeps_what_was_used_last(table):
    with NativeRows(table, 736, "rows") as native:
        assert native.stats()["cache_capacity"] == 10
        for row in range(10):
            native.gather([row * 7])
        native.gather([0])  # the oldest turns into the newest
        native.gather([490])
        native.gather([0, 14, 490])
        assert native.stats()["last_cache_hits"] == 3
        native.gather([7])
        assert native.stats()["last_cache_hits"] == 0


def test_info_tells_what_the_header_says(native, table):
    info = native.info()
    assert info["version"] == 1 and info["rows"] == info["stored_rows"] == 500 and info["row_bytes"] == 24
    assert info["block_rows"] == 7 and not info["identity"] and not info["raw"]
    assert info["file_bytes"] == table.stat().st_size


def test_the_checksum_is_sha256sums(table):
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    for given in (digest, digest.upper(), f"sha256:{digest}"):
        with NativeRows(table, checksum=given) as native:
            assert native.checksum() == digest
    with pytest.raises(errors.CorruptRecordError, match=digest):
        NativeRows(table, checksum="0" * 64)
    with pytest.raises(errors.ArgumentError, match="64"):
        NativeRows(table, checksum="abc")
    with pytest.raises(errors.DtypeError):
        NativeRows(table, checksum=7)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"cache_bytes": -1}, errors.ArgumentError),
        ({"cache_bytes": 1.5}, errors.DtypeError),
        ({"cache_bytes": 1 << 64}, errors.ArgumentError),
        ({"cache_policy": "lru"}, errors.ArgumentError),
        ({"threads": 0}, errors.ArgumentError),
        ({"threads": True}, errors.DtypeError),
        ({"query_chunk_rows": 0}, errors.ArgumentError),
        ({"query_chunk_rows": "8"}, errors.DtypeError),
    ],
)
def test_options_are_checked(table, options, error):
    with pytest.raises(error):
        NativeRows(table, **options)


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.men"):
        NativeRows(tmp_path / "none.men")
    for content in (b"", b"MEFTNAT", b"x" * 500, b"MEFTNAT1" + bytes(200)):
        (tmp_path / "bad.men").write_bytes(content)
        with pytest.raises(errors.StoreFormatError, match=r"bad\.men"):
            NativeRows(tmp_path / "bad.men")
    with pytest.raises(errors.StoreFormatError):
        NativeRows(tmp_path)
    with pytest.raises(errors.ArgumentError):
        NativeRows("")
    with pytest.raises(errors.DtypeError):
        NativeRows(7)


def test_verify_names_every_bad_block(rows, tmp_path):
    path = forge(tmp_path / "t.men", rows, predictor=SHUFFLE)
    content = bytearray(path.read_bytes())
    info = NativeRows(path).info()
    at = info["file_bytes"] - info["payload_bytes"]
    content[at] ^= 1
    content[-1] ^= 1
    content[130] ^= 1  # a row of the map
    path.write_bytes(content)
    with NativeRows(path) as native:
        bad = native.verify()
        assert [fault.block for fault in bad] in ([-1, 0, 71], [-1, -1, 0, 71])
        with pytest.raises(errors.CorruptRecordError, match="block 71"):
            native.gather([499])
        np.testing.assert_array_equal(native.gather([100]), rows[[100]])
    with pytest.raises(errors.CorruptRecordError, match="block 71"):
        NativeRows(path, verify=True)
