"""Which records a loader delivers: the sampler's, whatever prepares them and for how many ranks."""

import itertools

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.errors import ArgumentError, DtypeError
from loaderx.sampler import Sampler

LENGTHS = (1, 3, 34, 64, 1000)
BATCHES = (1, 2, 16, 33)
WORLDS = (1, 2, 3, 8)
STEPS = 12


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Stores of records that are their numbers, large enough for workers to be woken."""
    opened = {}
    for n in LENGTHS:
        path = tmp_path_factory.mktemp("order") / str(n)
        from_numpy(path, np.repeat(np.arange(n), 1500).reshape(n, 1500), codec="raw")
        opened[n] = DenseDataset(path)
    yield opened
    for ds in opened.values():
        ds.close()


def numbers(batch):
    np.testing.assert_array_equal(batch["x"][:, 0], batch["indices"])
    np.testing.assert_array_equal(batch["x"][:, -1], batch["indices"])
    return batch["indices"].copy()


def check(ds, batch, mode, workers, prefetch, world):
    """Compare all ranks' batches with the sampler's."""
    n = len(ds)
    if mode == 2 and n < world:
        for rank in range(world):
            with pytest.raises(ArgumentError, match=f"{n} records can't be shared by world_size {world}"):
                DataLoader({"x": ds}, workers, batch, prefetch, mode, rank=rank, world_size=world)
        return
    loaders = [
        DataLoader({"x": ds}, workers, batch, prefetch, mode, 7, rank=rank, world_size=world, indices=True)
        for rank in range(world)
    ]
    for want in itertools.islice(Sampler(n, world * batch, mode, 7), STEPS):
        parts = [numbers(next(loader)) for loader in loaders]
        assert np.concatenate(parts).astype(np.uint64).tobytes() == want.tobytes()
        if mode != 2 or n >= world * batch:
            assert {len(part) for part in parts} == {batch}
        elif mode == 2:
            assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("n", LENGTHS)
def test_ranks_together_deliver_the_samplers_batches(stores, n, mode):
    """Each value of every option, in combinations that change with the others."""
    ways = itertools.cycle(itertools.product(range(6), (1, 2, 3, 8)))
    for batch, world in itertools.product(BATCHES, WORLDS):
        workers, prefetch = next(ways)
        check(stores[n], batch, mode, workers, prefetch, world)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("workers", range(6))
def test_all_combinations(stores, n, mode, workers):
    for batch, prefetch, world in itertools.product(BATCHES, range(1, 9), WORLDS):
        check(stores[n], batch, mode, workers, prefetch, world)


@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("n", LENGTHS)
def test_an_epoch_has_every_record_once_in_order(stores, n, world, transform):
    for batch in BATCHES:
        steps = {}
        for rank in range(world):
            share = {"rank": rank, "world_size": world}
            loader = DataLoader({"x": stores[n]}, 2, batch, transform=transform, indices=True, **share)
            for step, got in enumerate(loader.epoch()):
                steps.setdefault(step, []).append(numbers(got))
            loader.close()
        got = [np.concatenate(parts) for _step, parts in sorted(steps.items())]
        np.testing.assert_array_equal(np.concatenate(got), np.arange(n))
        assert all(len(part) == world * batch for part in got[:-1])


def test_an_epoch_does_not_move_the_stream(stores):
    with DataLoader({"x": stores[34]}, 2, 4, indices=True) as loader:
        want = Sampler(34, 4, 1, 42)
        for _ in range(3):
            np.testing.assert_array_equal(numbers(next(loader)), next(want))
            first = next(iter(loader.epoch()))  # left early
            np.testing.assert_array_equal(first["indices"], np.arange(4))
            assert sum(len(batch["x"]) for batch in loader.epoch()) == 34
    with pytest.raises(ValueError, match="closed"):
        loader.epoch()


def test_closing_the_loader_ends_an_epoch(stores):
    loader = DataLoader({"x": stores[64]}, 2, 4)
    epoch = loader.epoch()
    next(epoch)
    loader.close()
    with pytest.raises(ValueError, match="closed"):
        next(epoch)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"rank": 2, "world_size": 2}, ArgumentError, r"rank must be in 0\.\.1 for world_size 2, got 2"),
        ({"rank": -1}, ArgumentError, "rank must be in"),
        ({"world_size": 0}, ArgumentError, "world_size must be in 1"),
        ({"rank": 0.5}, DtypeError, "rank must be an integer"),
        ({"world_size": None}, DtypeError, "world_size must be an integer"),
        ({"batch_size": 2**62, "world_size": 4}, ArgumentError, "more than 2"),
        ({"step": -1}, ArgumentError, "step must be in"),
        ({"mode": 2, "world_size": 35}, ArgumentError, "34 records can't be shared by world_size 35"),
    ],
)
def test_impossible_ranks_are_refused(stores, options, error, words):
    with pytest.raises(error, match=words):
        DataLoader({"x": stores[34]}, **{"batch_size": 4, **options})


def test_modes_by_name(stores):
    with DataLoader({"x": stores[34]}, batch_size=16, mode="Cyclic") as loader:
        assert loader.mode is Sampler.Mode.CYCLIC
        np.testing.assert_array_equal(next(loader)["x"][:, 0], next(Sampler(34, 16, "cyclic")))
    with pytest.raises(ArgumentError, match=r"mode must be one of \['sequential', 'iid', 'cyclic'\], got 'shuffle'"):
        DataLoader({"x": stores[34]}, mode="shuffle")
