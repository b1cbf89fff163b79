"""What errors say: what was wrong and what to do, once."""

import re

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import (
    DictionaryError,
    LockedError,
    RecordIndexError,
    RecordSizeError,
    StoreExistsError,
    StoreFormatError,
    StoreInUseError,
    StoreNotFoundError,
)
from loaderx.zrecord import MAX_RECORD_LEN, Zrecord


@pytest.fixture
def path(tmp_path):
    from_numpy(tmp_path / "s", np.arange(12).reshape(4, 3))
    return tmp_path / "s"


def write(path, src, offsets, **options):
    with Zrecord(path, mode="r+") as store:
        store.append(src, offsets, **options)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda path: DenseDataset(f"{path}/nope"), StoreNotFoundError, "{path}/nope does not exist"),
        (
            lambda path: Zrecord(f"{path}/nope", mode="r"),
            StoreNotFoundError,
            "open store: there is no store at {path}/nope",
        ),
        (lambda path: DenseDataset(f"{path}/0.zr"), StoreFormatError, "{path}/0.zr is a file, a store is a directory"),
        (
            lambda path: Zrecord(path.parent, mode="r"),
            StoreNotFoundError,
            "open store: directory {path.parent} has no meta.zr, it is no store",
        ),
        (lambda path: Zrecord(path, mode="x"), StoreExistsError, "open store: there is a store at {path} already"),
        (
            lambda path: DenseDataset(path)[[1, 4]],
            RecordIndexError,
            "gather: index 4 at position 1 is out of range, want -4 to 3: store {path}",
        ),
        (
            lambda path: write(path, b"abc", [0], codec="zstd_dict"),
            DictionaryError,
            "append to {path}: codec zstd_dict needs a dictionary, train one first",
        ),
        (
            lambda path: Zrecord(path, mode="r+").train_dict(b"abc", [3], 1000),
            DictionaryError,
            "store {path}: a dictionary needs at least 7 records that are not empty and 256 bytes in all, got 1 and 3",
        ),
        (
            lambda path: write(path, bytes(MAX_RECORD_LEN + 1), [0]),
            RecordSizeError,
            "append to {path}: record 0 has 1048577 bytes, at most 1048576 are allowed",
        ),
        (
            lambda path: write(path, b"", [0]),
            RecordSizeError,
            "append to {path}: record 0 is empty: format 3 can't hold empty records",
        ),
    ],
)
def test_a_message_says_it_once(path, call, kind, text):
    with pytest.raises(kind, match="^" + re.escape(text.format(path=path)) + "$"):
        call(path)


def test_a_store_that_is_open_elsewhere_says_what_to_close(path):
    with DenseDataset(path), Zrecord(path, mode="r+") as store:
        for call, verb in ((lambda: store.delete([0]), "delete from"), (store.compact, "compact")):
            with pytest.raises(StoreInUseError) as caught:
                call()
            assert str(caught.value) == (
                f"{verb} {path}: the store is in use: close the datasets, loaders and handles that have it open, in "
                "this process or another"
            )
        with pytest.raises(LockedError) as caught:
            Zrecord(path, mode="a")
        assert str(caught.value) == (
            f"open store: {path}: another process, or another handle of this one, has the store open for writing; "
            "close that first"
        )


@pytest.mark.parametrize("kind", [DenseDataset, RaggedDataset])
def test_a_store_of_bytes_is_no_data_set_and_says_so(path, kind):
    (path / "schema.msgpack").unlink()
    with pytest.raises(
        StoreNotFoundError, match=r"is a store of bytes, without a schema.msgpack .*: open it with loader"
    ):
        kind(path)
    # Nothing of the kind is said of other directories.
    with pytest.raises(StoreNotFoundError, match=r"^directory .* has no schema.msgpack, it is no data set$"):
        kind(path.parent)
