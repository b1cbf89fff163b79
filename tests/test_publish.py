"""What a conversion takes from the store it appends to, and what it makes durable."""

import ctypes
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from loaderx import _engine, _publish
from loaderx._schema import read_schema
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import LockedError, StoreExistsError, StoreIOError
from loaderx.zrecord import Zrecord


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.mark.parametrize("records", [0, 2])
def test_nobody_changes_a_store_between_the_look_at_it_and_the_append(path, monkeypatch, records):
    from_numpy(path, np.zeros((records, 2), np.float32))
    tried = []

    def read_slowly(place):
        if not tried:
            tried.append(place)
            with pytest.raises(LockedError):  # another process, at the worst moment
                from_numpy(path, np.ones((2, 2) if records else (2, 3), np.float32), schema={"note": "theirs"})
        return read_schema(place)

    monkeypatch.setattr(_publish, "read_schema", read_slowly)
    assert from_numpy(path, np.full((3, 2), 7, np.float32)) == 3
    assert tried
    with DenseDataset(path) as ds:
        assert ds[:].tolist() == [[0, 0]] * records + [[7, 7]] * 3
    assert "note" not in read_schema(path)


def test_exist_ok_false_refuses_a_store_that_somebody_writes(path):
    from_numpy(path, np.arange(3))
    with Zrecord(path, mode="r+"), pytest.raises(StoreExistsError, match="holds a store of 3 records"):
        from_numpy(path, np.arange(3), exist_ok=False)


def codecs(path):
    with Zrecord(path, mode="r") as store:
        return {name: n for name, n in store.stats()["codecs"].items() if n}


@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd_dict"])
def test_an_append_goes_on_with_the_codec_of_the_store(path, codec):
    array = np.tile(np.arange(200, dtype=np.int64), (500, 1)) + np.arange(500)[:, None]
    for write, source, cls in ((from_numpy, array, DenseDataset), (from_iterator, list(array), RaggedDataset)):
        place = path / write.__name__
        write(place, source, codec)  # as loaderx takes it: by its place
        assert write(place, source) == 500
        assert codecs(place) == {codec: 1000}
        with cls(place) as ds:
            assert ds.codec == codec
            np.testing.assert_array_equal(ds[999], array[-1])


def test_new_stores_are_zstd(path):
    assert from_numpy(path, np.zeros((5, 100))) == 5
    assert codecs(path) == {"zstd": 5}
    with DenseDataset(path) as ds:
        assert ds.codec == "zstd"
    # A store of bytes that is empty has none to go on with.
    Zrecord(path.with_name("bytes"), codec="raw", mode="x").close()
    from_numpy(path.with_name("bytes"), np.zeros((5, 100)))
    assert codecs(path.with_name("bytes")) == {"zstd": 5}


def test_a_codec_that_is_named_is_the_one_of_later_appends(path):
    array = np.zeros((5, 100))
    from_numpy(path, array[:0], codec="raw", schema={"codec": "zstd_dict"})
    for codec, expected in [
        (None, {"raw": 5}),
        ("zstd", {"raw": 5, "zstd": 5}),
        (None, {"raw": 5, "zstd": 10}),
        ("raw", {"raw": 10, "zstd": 10}),
        (None, {"raw": 15, "zstd": 10}),
    ]:
        from_numpy(path, array, codec=codec)
        assert codecs(path) == expected
    with DenseDataset(path) as ds:
        assert ds[:].tolist() == [[0] * 100] * 25


class Syncs:
    """The engine, which notes the directories that it syncs; `fail` is raised instead."""

    def __init__(self, fail=None):
        _engine.check(_engine.lib.NumHandles())  # loads it
        self._lib, self._fail = _engine.lib, fail
        self.made = []

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def DirSync(self, job, address, size):
        if self._fail is not None:
            raise self._fail
        folder = Path(os.fsdecode(ctypes.string_at(address, size)))
        self.made.append((str(folder), sorted(os.listdir(folder))))
        return self._lib.DirSync(job, address, size)


def test_a_new_store_is_durable_with_the_directories_made_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_engine, "lib", Syncs())
    from_numpy(tmp_path / "new" / "a" / "store", np.arange(3))
    # Each after its entry was made, the store's own after the renaming.
    top = str(tmp_path)
    assert _engine.lib.made == [(top + "/new/a", ["store"]), (top + "/new", ["a"]), (top, ["new"])]
    _engine.lib.made.clear()
    from_numpy(tmp_path / "other", np.arange(3))
    assert _engine.lib.made == [(top, ["new", "other"])]


def test_a_disk_that_fails_at_the_last_sync_is_an_error(path, monkeypatch):
    monkeypatch.setattr(_engine, "lib", Syncs(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(StoreIOError, match=f"write the store {path}: Input/output error") as caught:
        from_numpy(path, np.arange(3))
    assert caught.value.errno == errno.EIO


def test_errors_name_the_place_that_was_asked_for(path, monkeypatch):
    with pytest.warns(RuntimeWarning, match=f"^store {path}: a dictionary needs at least 7 records"):
        from_numpy(path, np.zeros((3, 100)), codec="zstd_dict")

    def full(store, *_args):
        raise StoreIOError(f"append to {store.path}: no space left on device")

    monkeypatch.setattr(Zrecord, "append", full)
    with pytest.raises(StoreIOError) as caught:
        from_numpy(path.with_name("other"), np.zeros((3, 100)))
    assert str(caught.value) == f"append to {path.with_name('other')}: no space left on device"

    def source():
        yield np.zeros(3)
        raise StoreIOError(5)  # a source's own, whatever it holds

    with pytest.raises(StoreIOError) as caught:
        from_iterator(path.with_name("other"), source())
    assert caught.value.args == (5,)
