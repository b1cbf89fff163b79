"""Sources of tables that look like rows and are not."""

import warnings

import numpy as np
import pytest
import torch

from loaderx.errors import ArgumentError, DtypeError
from ngram_store import pack_native


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.men"


def test_files_that_hold_more_than_rows_are_refused(path, tmp_path, rng):
    floats = rng.normal(size=(10, 4)).astype(np.float32)
    np.save(tmp_path / "w.npy", floats)
    np.savez(tmp_path / "w.npz", floats)
    pack_native(floats, tmp_path / "other.men")
    for name, text in (("w.npy", "numpy.load"), ("w.npz", "zip archive"), ("other.men", "table already")):
        with pytest.raises(ArgumentError, match=text):
            pack_native(tmp_path / name, path, row_bytes=4)
    assert not path.exists()


def test_chunks_of_other_rows_are_refused(path):
    chunks = [np.zeros((10, 4), np.float32), np.zeros((3, 4))]
    with pytest.raises(ArgumentError, match=r"chunk 1 has the shape .3, 4. and rows of 32 bytes, not of 16"):
        pack_native(iter(chunks), path)
    with pytest.raises(DtypeError, match="chunk 0"):
        pack_native(iter([None, chunks[0]]), path, row_bytes=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to remove them
        quantized = torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.quint8)
    for source in (quantized, iter([quantized])):
        with pytest.raises(DtypeError, match="quantized"):
            pack_native(source, path)
    assert not path.exists()
