"""A run uses the records that were there when it began, or the first so many."""

import json

import numpy as np
import pytest

from loaderx.collate import Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, DtypeError

N, MORE = 1000, 200


def grow(path):
    from_numpy(path, np.arange(N, N + MORE))


@pytest.fixture
def path(tmp_path):
    from_numpy(tmp_path / "x", np.arange(N))
    return tmp_path / "x"


def loaders():
    """The kinds of loaders, and how a batch's labels are had."""
    import jax

    from loaderx.jax import DeviceLoader, batch_sharding
    from loaderx.torch import IterableLoader

    sharding = batch_sharding(jax.local_devices()[:1])
    return {
        "numpy": DataLoader,
        "torch": IterableLoader,
        "jax": lambda streams, **options: DeviceLoader(streams, sharding=sharding, **options),
    }


@pytest.mark.parametrize("kind", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_whose_store_grows_is_resumed_with_its_own_records(path, kind, mode):
    make = loaders()[kind]
    ds = DenseDataset(path)
    with make({"x": ds}, batch_size=300, mode=mode) as loader:
        batches = iter(loader)
        next(batches)
        grow(path)
        state = json.loads(json.dumps(loader.state_dict()))
        want = [next(batches)["x"].tolist() for _ in range(8)]
    assert state["streams"]["x"]["records"] == N
    assert max(map(max, want)) < N
    for dataset in (ds, DenseDataset(path)):
        words = "records is 1000 in the state and 1200 here, which records=1000"
        with make({"x": dataset}, batch_size=300, mode=mode) as other, pytest.raises(ArgumentError, match=words):
            other.load_state_dict(state)
        with make({"x": dataset}, batch_size=300, mode=mode, records=N) as other:
            other.load_state_dict(state)
            batches = iter(other)
            assert [next(batches)["x"].tolist() for _ in range(8)] == want
            assert other.state_dict()["streams"] == state["streams"]


def test_only_the_first_records_of_streams_of_any_lengths(path, tmp_path):
    from_iterator(tmp_path / "r", [np.arange(k % 5 + 1) for k in range(300)])
    streams = {"x": DenseDataset(path), "r": Pad(RaggedDataset(tmp_path / "r"))}
    with pytest.raises(ArgumentError, match=r"same number of records, got .* records=300 would use the first"):
        DataLoader(streams)
    with DataLoader(streams, batch_size=64, records=250) as loader:
        assert loader.records == 250 and "records=250" in repr(loader)
        assert max(next(loader)["x"].max() for _ in range(50)) == 249
        assert sum(len(batch["x"]) for batch in loader.epoch()) == 250
        state = loader.state_dict()
    with DataLoader(streams, batch_size=64, records=251) as loader, pytest.raises(ArgumentError, match=r"250 .* 251"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("records", "error", "words"),
    [
        (0, ArgumentError, r"records must be in 1\.\.1000"),
        (N + 1, ArgumentError, r"records must be in 1\.\.1000 \(the streams have \{'x': 1000\}\), got 1001"),
        (2.0, DtypeError, "records must be an integer"),
    ],
)
def test_numbers_of_records_that_are_refused(path, records, error, words):
    with pytest.raises(error, match=words):
        DataLoader({"x": DenseDataset(path)}, records=records)


def test_stores_that_grow_one_after_the_other_before_iterating(tmp_path):
    """An iterable loader keeps the plan that it was made with, also after pickling."""
    import pickle

    from loaderx.torch import IterableLoader

    for name in "xy":
        from_numpy(tmp_path / name, np.arange(N))
    streams = {name: DenseDataset(tmp_path / name) for name in "xy"}
    with IterableLoader(streams, batch_size=10) as loader:
        copy = pickle.loads(pickle.dumps(loader))
        from_numpy(tmp_path / "x", np.arange(5))
        with DataLoader(streams, batch_size=10, records=N) as reference:
            want = [next(reference)["x"].tolist() for _ in range(3)]
        for each in (loader, copy):
            got = [batch["x"].tolist() for _, batch in zip(range(3), each)]  # noqa: B905 - endless
            assert got == want
        copy.close()
