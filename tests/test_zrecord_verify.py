"""Finding damaged records, through Python."""

import struct

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.errors import CorruptRecordError
from loaderx.zrecord import BadRecord, Zrecord


@pytest.fixture
def store_path(tmp_path, rng):
    rows = rng.integers(0, 5, (3000, 50)).astype(np.int64)
    from_numpy(tmp_path / "s", rows, codec="zstd")
    return tmp_path / "s"


def entry(path, idx):
    with open(path / "meta.zr", "rb") as f:
        f.seek(16 + 16 * idx)
        return struct.unpack("<IIIHBB", f.read(16))


def overwrite(path, name, offset, data):
    with open(path / name, "r+b") as f:
        f.seek(offset)
        f.write(data)


def test_a_sound_store(store_path):
    with Zrecord(store_path) as store:
        assert store.verify() == []


def test_every_bad_record_is_reported_by_rising_index(store_path):
    bad = [0, 1, 700, 2999]
    for idx in bad:
        overwrite(store_path, "0.zr", entry(store_path, idx)[0], b"none")
    overwrite(store_path, "meta.zr", 16 + 16 * 1500, b"\xff" * 16)
    with Zrecord(store_path) as store:
        found = store.verify()
        assert [one.index for one in found] == sorted([*bad, 1500])
        for index, message in found:
            assert f"record {index}" in message and str(store_path) in message
        assert isinstance(found[0], BadRecord)
        # The others are there still, and the bad ones can be deleted.
        with pytest.raises(CorruptRecordError):
            store.gather([700], np.empty(400, np.uint8), [0])
        store.delete([one.index for one in found])
        store.compact()
        assert store.verify() == [] and len(store) == 2995


def test_thousands_of_bad_records(store_path):
    with open(store_path / "meta.zr", "r+b") as f:
        f.seek(16)
        f.write(b"\xff" * 16 * 3000)
    with Zrecord(store_path, mode="r") as store:
        assert [one.index for one in store.verify()] == list(range(3000))


def test_a_lost_chunk(store_path):
    (store_path / "0.zr").rename(store_path / "elsewhere")
    with Zrecord(store_path, mode="r") as store:
        found = store.verify()
        assert len(found) == 3000
        assert "missing" in found[0].message
