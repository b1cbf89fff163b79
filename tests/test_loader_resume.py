"""Saved and loaded states: a run goes on exactly, in another process and with other ranks."""

import hashlib
import itertools
import json
import random

import numpy as np
import pytest

from loaderx.collate import Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, DtypeError
from loaderx.sampler import Sampler

N = 1000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    where = tmp_path_factory.mktemp("resume") / "s"
    from_numpy(where, np.arange(N * 8).reshape(N, 8), codec="raw")
    return where


@pytest.fixture(scope="module")
def ds(path):
    with DenseDataset(path) as dataset:
        yield dataset


def digest(loader, steps=100):
    total = hashlib.blake2b()
    for batch in itertools.islice(loader, steps):
        total.update(batch["x"].tobytes())
    return total.hexdigest()


RESUMER = """
    import hashlib, itertools, json, sys
    from loaderx.dataloader import DataLoader
    from loaderx.dataset import DenseDataset
    ds = DenseDataset(sys.argv[1])
    for job in json.loads(open(sys.argv[2]).read()):
        sums = []
        world = job["world_size"]
        loaders = [DataLoader({"x": ds}, 2, job["batch_size"], 3, job["mode"], 5, rank=r, world_size=world)
                   for r in range(world)]
        for loader in loaders:
            loader.load_state_dict(job["state"])
            assert loader.state_dict()["step"] == job["state"]["step"]
        total = hashlib.blake2b()
        for _ in range(100):
            for loader in loaders:
                total.update(next(loader)["x"].tobytes())
        print(total.hexdigest())
"""


def test_stops_at_random_steps_resume_in_a_new_process(path, ds, python, tmp_path):
    """Also with another number of ranks, when the global batch stays the same."""
    choose, jobs, want = random.Random(1), [], []
    for k in range(50):
        mode, stop = choose.randrange(3), choose.choice([0, 1, 61, 62, 63, choose.randrange(500)])
        with DataLoader({"x": ds}, choose.randrange(4), 16, 4, mode, 5) as loader:
            for _ in range(stop if k % 2 else 0):
                next(loader)
            if k % 2 == 0:
                loader.seek(stop)
            assert loader.step == stop
            world = choose.choice([1, 1, 2, 4])
            job = {"state": loader.state_dict(), "mode": mode, "world_size": world, "batch_size": 16 // world}
            jobs.append(job)
            want.append(digest(loader))
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    assert python(RESUMER, path, tmp_path / "jobs.json").split() == want


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_load_then_save_gives_the_same_state(ds, mode):
    for step in (0, 1, 61, 62, 124):  # ends of cycles among them
        one = DataLoader({"x": ds}, 2, 16, mode=mode, step=step)
        other = DataLoader({"x": ds}, 0, 16, mode=mode)
        with one, other:
            state = json.loads(json.dumps(one.state_dict()))
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert digest(one, 10) == digest(other, 10)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_another_global_batch_goes_on_at_the_same_sample(ds, mode):
    """Every sample of the global order once, up to what a cycle drops."""
    with DataLoader({"x": ds}, 2, 48, mode=mode, seed=5) as before:
        for _ in range(10):
            next(before)
        state = before.state_dict()
    with DataLoader({"x": ds}, 2, 10, mode=mode, seed=5, rank=1, world_size=2, indices=True) as after:
        after.load_state_dict(state)
        assert after.step == 10
        got = np.concatenate([next(after)["indices"] for _ in range(5)])
        resumed = after.state_dict()
    singles = Sampler(N, 1, mode, 5)
    singles.seek(480)
    want = np.array(list(itertools.islice(singles, 100))).reshape(5, 2, 10)[:, 1].ravel()
    np.testing.assert_array_equal(got, want)
    assert (resumed["step"], resumed["samples"]) == (15, 580)
    with DataLoader({"x": ds}, 2, 20, mode=mode, seed=5) as third:
        third.load_state_dict(resumed)
        assert third.state_dict()["samples"] == 580
        third.seek(3)  # steps count as if all had had these sizes
        assert third.state_dict()["samples"] == 60


def test_leaving_early_and_going_on_skips_nothing(ds):
    with DataLoader({"x": ds}, 2, 4, mode=2, indices=True) as loader:
        got = []
        for count in (1, 3, 2, 5):
            for batch in loader:
                got.append(batch["indices"].copy())
                count -= 1
                if not count:
                    break
            state = loader.state_dict()
            assert state["step"] == len(got)
    np.testing.assert_array_equal(got, list(itertools.islice(Sampler(N, 4, 2), 11)))


@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_seek_in_every_kind_of_loader(ds, transform, num_workers):
    class Numbers:
        def __len__(self):
            return N

        def __getitems__(self, indices):
            return ds[indices]

    for stream in (ds, Numbers()):
        with DataLoader({"x": stream}, num_workers, 8, transform=transform, step=7) as loader:
            reference = Sampler(N, 8, 1)
            for step in (7, 3, 10**15, 0):
                loader.seek(step)
                reference.seek(step)
                for _ in range(3):
                    np.testing.assert_array_equal(next(loader)["x"][:, 0] // 8, next(reference))
                assert loader.step == step + 3


def test_a_state_of_another_run_says_what_differs(ds, tmp_path):
    from_numpy(tmp_path / "other", np.arange(N * 8).reshape(N, 8)[::-1].copy())
    from_numpy(tmp_path / "short", np.arange(8).reshape(1, 8).astype(np.float32))
    from_iterator(tmp_path / "ragged", (np.arange(k % 3 + 1) for k in range(N)))
    with DataLoader({"x": ds}, batch_size=4, seed=1) as loader:
        state = loader.state_dict()
    with DenseDataset(tmp_path / "other") as other, DenseDataset(tmp_path / "short") as short:
        ragged = RaggedDataset(tmp_path / "ragged")
        for streams, options, words in [
            ({"x": ds}, {"seed": 2}, "seed is 1 in the state and 2 here"),
            ({"x": ds}, {"mode": 2}, "mode is 1 in the state and 2 here"),
            ({"y": ds}, {}, "stream 'x' is only in the state; stream 'y' is only in this loader"),
            ({"x": other}, {}, "stream 'x': digest is"),
            ({"x": short}, {}, "stream 'x': dtype is '<i8' in the state and '<f4' here"),
            ({"x": short}, {}, "stream 'x': records is 1000 in the state and 1 here"),
            ({"x": Pad(ragged)}, {}, r"stream 'x': item_shape is \[8\] in the state and \[\] here"),
        ]:
            with DataLoader(streams, batch_size=4, **{"seed": 1, **options}) as loader:
                with pytest.raises(ArgumentError, match=words):
                    loader.load_state_dict(state)
                next(loader)
        ragged.close()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda s: None, DtypeError, "a loader's state is a dict, got NoneType"),
        (lambda s: {}, ArgumentError, "the state lacks"),
        (lambda s: {**s, "version": 9}, ArgumentError, "of version 9"),
        (lambda s: {**s, "step": "1"}, DtypeError, "the state's step must be an integer"),
        (lambda s: {**s, "samples": -1}, ArgumentError, "the state's samples must be in"),
        (lambda s: {**s, "streams": 5}, ArgumentError, "the state's streams is no dict, but int"),
        (lambda s: {**s, "streams": {"x": [1]}}, ArgumentError, "the state's stream 'x' is no dict, but list"),
        (
            lambda s: {**s, "streams": {"x": np.zeros(2), 3: {}}},
            ArgumentError,
            "the state's stream 'x' is no dict, but ndarray",
        ),
        (lambda s: {**s, "streams": {"x": {"records": np.zeros(3)}}}, ArgumentError, "records is array"),
        (lambda s: {**s, "version": True}, DtypeError, "the state's version must be an integer"),
        (lambda s: {**s, "mode": 1.0}, DtypeError, "the state's mode must be an integer"),
        (lambda s: {**s, "seed": np.arange(2)}, DtypeError, "the state's seed must be an integer"),
        (lambda s: {**s, "step": -1}, ArgumentError, "the state's step must be in"),
        (lambda s: {**s, "step": 2**63}, ArgumentError, "the state's step must be in"),
        (lambda s: {**s, "step": 8}, ArgumentError, "samples is 1792, and its step 8 .* comes after 2048"),
        (lambda s: {**s, "samples": 2**128 - 1}, ArgumentError, "the state contradicts itself: its samples is"),
        (lambda s: {**s, "samples": 2**128}, ArgumentError, "the state's samples must be in"),
        (lambda s: {**s, "batch_size": "a"}, DtypeError, "the state's batch_size must be an integer"),
        (lambda s: {**s, "batch_size": 0}, ArgumentError, "the state's batch_size must be in"),
        (lambda s: {**s, "world_size": None}, DtypeError, "the state's world_size must be an integer"),
        (lambda s: {**s, "world_size": 2**40}, ArgumentError, "the state's world_size must be in"),
        (lambda s: {**s, "batch_size": 2**62, "world_size": 2}, ArgumentError, "the state's world_size 2 times"),
        (lambda s: {**s, "from_step": 8}, ArgumentError, r"the state's from_step must be in 0\.\.7"),
        (lambda s: {**s, "from_samples": 5}, ArgumentError, "the state's from_samples must be in"),
        (lambda s: {**s, "from_step": 5, "from_samples": 4}, ArgumentError, "the state's from_samples must be in"),
        (lambda s: {k: v for k, v in s.items() if k != "world_size"}, ArgumentError, r"lacks \['world_size'\]"),
    ],
)
def test_states_that_are_no_states(ds, change, error, words):
    with DataLoader({"x": ds}, step=7) as loader:
        with pytest.raises(error, match=words):
            loader.load_state_dict(change(loader.state_dict()))
        assert loader.step == 7


def test_a_state_of_cyclic_mode_with_more_ranks_than_records(ds):
    with DataLoader({"x": ds}, mode=2) as loader, pytest.raises(ArgumentError, match="world_size 1001 is more than"):
        loader.load_state_dict({**loader.state_dict(), "world_size": 1001})


@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_states_at_the_last_steps(ds, mode, transform, num_workers):
    """Steps end before 2**63 - 1: a state can be saved there, and loaded."""
    last = 2**63 - 1
    options = {"num_workers": num_workers, "batch_size": 16, "mode": mode, "transform": transform, "indices": True}
    reference = Sampler(N, 16, mode)
    reference.seek(last - 2)
    with DataLoader({"x": ds}, step=last - 2, **options) as loader, DataLoader({"x": ds}, **options) as other:
        for step in range(last - 2, last + 1):
            state = json.loads(json.dumps(loader.state_dict()))
            other.load_state_dict(state)
            assert other.step == loader.step == state["step"] == step
            assert other.state_dict() == state
            if step == last:
                for one in (loader, other):
                    with pytest.raises(StopIteration):
                        next(one)
                break
            want = next(reference)
            for one in (loader, other):
                np.testing.assert_array_equal(next(one)["indices"], want)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_run_that_was_resumed_with_other_sizes_saves_and_loads(ds, mode):
    """Again and again: the same state comes out, and the same batches."""
    choose, state = random.Random(mode), None
    for _ in range(20):
        world = choose.choice([1, 2, 3])
        options = {"batch_size": choose.choice([7, 16, 48, 1500]), "mode": mode, "rank": world - 1, "world_size": world}
        with DataLoader({"x": ds}, 2, **options) as one, DataLoader({"x": ds}, 0, **options) as other:
            if state is not None:
                one.load_state_dict(state)
                assert [one.state_dict()[key] for key in ("step", "samples")] == [state["step"], state["samples"]]
            for _ in range(choose.randrange(9)):
                next(one)
            state = json.loads(json.dumps(one.state_dict()))
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert digest(other, 5) == digest(one, 5)
