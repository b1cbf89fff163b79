"""Where tables may be written: not over files that are none, and below directories that are missing."""

import os

import numpy as np
import pytest

from loaderx.errors import DtypeError, StoreExistsError
from ngram_store import NativeRows, pack_native


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.men"


@pytest.fixture
def floats():
    return np.arange(400, dtype=np.float32).reshape(100, 4)


def assert_rows(path, rows):
    with NativeRows(path, verify=True) as table:
        np.testing.assert_array_equal(table.gather(np.arange(len(rows)), dtype="fp32"), rows)


def test_files_that_are_no_tables_are_left_alone(path, tmp_path, floats):
    np.save(tmp_path / "w.npy", floats)
    (tmp_path / "notes").write_text("x")
    for place in (tmp_path / "w.npy", tmp_path / "notes"):
        before = place.read_bytes()
        (tmp_path / "link").symlink_to(place)
        for name in (place, tmp_path / "link"):
            with pytest.raises(StoreExistsError, match=r"is a file and no table, so it is left alone"):
                pack_native(iter([None]), name)  # before anything is asked for
        (tmp_path / "link").unlink()
        assert place.read_bytes() == before
    path.touch()
    for rows in (floats, floats[:10]):  # nothing, and a table
        pack_native(rows, path)
        assert_rows(path, rows)


def test_missing_directories_are_made(tmp_path, floats):
    path = tmp_path / "one" / "two" / "t.men"
    with pytest.raises(DtypeError):
        pack_native(iter([floats, None]), path)
    assert os.listdir(tmp_path) == []
    pack_native(floats, path)
    assert_rows(path, floats)
