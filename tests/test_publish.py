"""How a conversion looks at the store it appends to, and what it makes durable."""

import ctypes
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from loaderx import _engine, _publish
from loaderx._schema import read_schema
from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset
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
