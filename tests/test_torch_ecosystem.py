"""`loaderx.torch` under the real torch and torchdata."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split
from torch.utils.data import DataLoader as TorchLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from loaderx.collate import Flat, Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, ClosedError, DtypeError, RecordIndexError
from loaderx.torch import IterableLoader, MapDataset, collate

N = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("torch")
    from_numpy(path / "x", np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3))
    from_numpy(path / "y", np.arange(N), codec="raw")
    from_numpy(path / "h", torch.arange(N * 2).reshape(N, 2).to(torch.bfloat16))
    from_iterator(path / "r", [np.full(1 + i % 4, i, np.int32) for i in range(N)])
    return path


@pytest.fixture
def streams(folder):
    with DenseDataset(folder / "x") as x, DenseDataset(folder / "y") as y, DenseDataset(folder / "h") as h:
        yield {"x": x, "y": y, "h": h}


def expected(streams, count, **options):
    """The first batches' labels, by the loader itself."""
    with DataLoader({"y": streams["y"]}, **options) as loader:
        return [batch["y"].tolist() for batch in itertools.islice(loader, count)]


def labels(batches, count=None):
    return [batch["y"].tolist() for batch in itertools.islice(batches, count)]


OPTIONS = {"batch_size": 16, "mode": 2, "seed": 7}


# ---- the iterable one ---------------------------------------------------------------------


def test_batches_are_those_of_the_loader_and_each_is_of_tensors(streams):
    with IterableLoader(streams, **OPTIONS) as loader:
        assert isinstance(loader, torch.utils.data.IterableDataset)
        for batch in itertools.islice(TorchLoader(loader, batch_size=None), 20):
            assert {name: t.dtype for name, t in batch.items()} == {
                "x": torch.float32,
                "y": torch.int64,
                "h": torch.bfloat16,
            }
            assert torch.equal(batch["x"][:, 0, 0], batch["y"].float() * 6)
            assert torch.equal(batch["h"][:, 1], (batch["y"] * 2 + 1).bfloat16())
        loader.seek(0)
        assert labels(loader, 20) == expected(streams, 20, **OPTIONS)


def test_leaving_an_iteration_and_beginning_another_loses_and_repeats_nothing(streams):
    want = expected(streams, 12, **OPTIONS)
    with IterableLoader(streams, **OPTIONS) as loader:
        got = []
        for _ in range(3):
            got += labels(loader, 2)
            got += labels(TorchLoader(loader, batch_size=None), 2)
        assert got == want
        assert loader.step == 12


@pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes:UserWarning")
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_worker_processes_make_the_same_batches_in_the_same_order(streams, workers):
    want = expected(streams, 15, **OPTIONS, step=4)
    with IterableLoader(streams, **OPTIONS, step=4) as loader:
        assert labels(TorchLoader(loader, batch_size=None, num_workers=workers), 14) == want[:14]
        # The copies moved, the original did not; in this process it is the original that moves.
        assert loader.step == (4 if workers else 18)


def test_persistent_workers_begin_at_the_same_step_again(streams):
    with IterableLoader(streams, **OPTIONS) as loader:
        outer = TorchLoader(loader, batch_size=None, num_workers=2, persistent_workers=True)
        assert labels(outer, 5) == labels(outer, 5) == expected(streams, 5, **OPTIONS)
        loader.seek(3)  # does not reach the copies, as documented
        assert labels(outer, 5) == expected(streams, 5, **OPTIONS)


CODE = """
    import sys, itertools
    import numpy as np, torch
    from torch.utils.data import DataLoader
    from loaderx.dataset import DenseDataset
    from loaderx.torch import IterableLoader, MapDataset, collate

    def halved(batch):
        return {**batch, "half": batch["x"] / 2}

    def main(path, method):
        streams = {name: DenseDataset(f"{path}/{name}") for name in "xyh"}
        loader = IterableLoader(streams, batch_size=16, mode=0, transform=halved, step=1)
        assert next(iter(loader))["y"][0] == 16  # the engine is in use in this process
        options = dict(num_workers=1, multiprocessing_context=method)
        batches = itertools.islice(DataLoader(loader, batch_size=None, **options), 4)
        for step, batch in enumerate(batches, 2):
            assert batch["y"].tolist() == [(step * 16 + i) % 100 for i in range(16)]
            assert torch.equal(batch["half"] * 2, batch["x"]) and batch["h"].dtype == torch.bfloat16
        data = MapDataset(streams)
        seen = []
        for batch in DataLoader(data, batch_size=16, shuffle=True, collate_fn=collate, **options):
            assert torch.equal(batch["x"][:, 0, 0], batch["y"].float() * 6)
            seen += batch["y"].tolist()
        assert sorted(seen) == list(range(100))
        print("done")

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_both_kinds_go_to_worker_processes(folder, script, method):
    assert script(CODE, folder, method, timeout=300) == "done\n"


@pytest.mark.parametrize("k", [0, 1, 7])
@pytest.mark.parametrize("world", [(0, 1), (1, 2)])
def test_states_resume_bit_for_bit(streams, k, world):
    options = {**OPTIONS, "rank": world[0], "world_size": world[1], "batch_size": 16 // world[1]}
    want = expected(streams, k + 5, **options)
    with IterableLoader(streams, **options) as loader:
        assert labels(loader, k) == want[:k]
        state = json.dumps(loader.state_dict())
    with IterableLoader(streams, **options) as loader:
        loader.load_state_dict(json.loads(state))
        assert json.dumps(loader.state_dict()) == state
        assert labels(loader, 5) == want[k:]
    with DataLoader(streams, **options) as loader:
        loader.load_state_dict(json.loads(state))
        assert labels(loader, 5) == want[k:]
    with IterableLoader(streams, **options) as loader:
        assert json.loads(state) == loader.state_dict(step=k)


def test_a_resumed_run_with_another_global_batch_goes_to_workers_and_pickles(streams):
    with IterableLoader(streams, batch_size=10, mode=0) as loader:
        labels(loader, 3)
        state = loader.state_dict()
    with IterableLoader(streams, batch_size=7, mode=0) as loader:
        loader.load_state_dict(state)
        copy = pickle.loads(pickle.dumps(loader))
        want = [[(30 + 7 * k + i) % N for i in range(7)] for k in range(4)]
        assert labels(TorchLoader(loader, batch_size=None, num_workers=2), 4) == want
        assert labels(loader, 4) == labels(copy, 4) == want
        assert loader.step == copy.step == 7
        copy.close()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("k", [0, 1, 5])
def test_the_stateful_loader_of_torchdata_resumes(streams, workers, k):
    want = expected(streams, k + 6, **OPTIONS)
    with IterableLoader(streams, **OPTIONS) as loader:
        outer = StatefulDataLoader(loader, batch_size=None, num_workers=workers)
        assert labels(outer, k) == want[:k]
        state = outer.state_dict()
    with IterableLoader(streams, **OPTIONS) as loader:
        outer = StatefulDataLoader(loader, batch_size=None, num_workers=workers)
        outer.load_state_dict(state)
        assert labels(outer, 6) == want[k:]


def test_a_worker_s_state_is_for_that_worker(streams):
    with IterableLoader(streams, **OPTIONS) as loader:
        state = {**loader.state_dict(), "worker": [1, 2]}
        with pytest.raises(ArgumentError, match="single worker process"):
            loader.load_state_dict(state)


DISTRIBUTED = """
    import itertools, multiprocessing, sys
    import torch, torch.distributed as dist
    from torch.utils.data import DataLoader
    from loaderx.dataset import DenseDataset
    from loaderx.torch import IterableLoader

    def work(folder, meet, rank, method):
        streams = {"y": DenseDataset(folder + "/y")}
        early = IterableLoader(streams)
        dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=2)
        try:
            next(iter(early))
        except ValueError as error:
            assert f"rank 0 of 1, and torch.distributed says {rank} of 2" in str(error), error
        else:
            raise AssertionError("rank 0 of 1 was accepted")
        alone = IterableLoader(streams, batch_size=5, mode=0, rank=0, world_size=1)
        assert next(iter(alone))["y"].tolist() == list(range(5))
        shared = IterableLoader(streams, batch_size=5, mode=0)
        want = [list(range(10 * k + 5 * rank, 10 * k + 5 * rank + 5)) for k in range(4)]
        outer = DataLoader(shared, batch_size=None, num_workers=1, multiprocessing_context=method)
        assert [b["y"].tolist() for b in itertools.islice(outer, 4)] == want
        assert [b["y"].tolist() for b in itertools.islice(shared, 4)] == want
        dist.destroy_process_group()

    if __name__ == "__main__":
        folder, meet = sys.argv[1:]
        fork = multiprocessing.get_context("fork")
        ranks = [fork.Process(target=work, args=(folder, meet, r, ["fork", "spawn"][r])) for r in range(2)]
        for rank in ranks: rank.start()
        for rank in ranks: rank.join()
        print([rank.exitcode for rank in ranks])
"""


def test_ranks_are_those_of_torch_distributed(folder, script, tmp_path):
    assert script(DISTRIBUTED, folder, tmp_path / "meet", timeout=300) == "[0, 0]\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 2, "world_size": 2}, "rank must be in 0..1"),
        ({"rank": 0}, "rank and world_size go together"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"num_workers": -1}, "num_workers must be"),
        ({"transform": 1}, "transform must be callable"),
        ({"step": -1}, "step must be"),
    ],
)
def test_arguments_are_checked_at_construction(streams, options, words):
    with pytest.raises(ArgumentError, match=words):
        IterableLoader(streams, **options)


def test_what_a_transform_raises_comes_at_its_step_and_seek_goes_on(streams):
    def transform(batch):
        if 48 in batch["y"]:
            raise KeyError("no such label")
        return batch

    for workers in (0, 2):
        with IterableLoader(streams, batch_size=16, mode=0, transform=transform) as loader:
            batches = iter(TorchLoader(loader, batch_size=None, num_workers=workers))
            for _ in range(3):
                next(batches)
            with pytest.raises(KeyError, match="no such label"):
                next(batches)
            if not workers:
                with pytest.raises(ClosedError, match="step 3 failed with KeyError"):
                    next(iter(loader))
            loader.seek(4)
            assert next(iter(loader))["y"][0] == 64


def test_closing_ends_iterations(streams):
    for begun in (False, True):
        loader = IterableLoader(streams, **OPTIONS)
        batches = iter(loader)
        if begun:
            next(batches)
        loader.close()
        loader.close()
        for iterator in (batches, iter(loader)):
            with pytest.raises(ClosedError):
                next(iterator)
        with pytest.raises(ClosedError):
            loader.seek(0)
        with pytest.raises(ClosedError):
            pickle.dumps(loader)


def test_kept_batches_stay_as_they_are(streams):
    with IterableLoader(streams, **OPTIONS) as loader:
        kept = list(itertools.islice(TorchLoader(loader, batch_size=None), 40))
    assert labels(kept) == expected(streams, 40, **OPTIONS)
    for batch in kept:
        assert torch.equal(batch["x"][:, 0, 0], batch["y"].float() * 6)


def test_loaders_that_are_left_or_dropped_leave_nothing_behind(folder, python):
    code = """
        import sys
        from torch.utils.data import DataLoader
        from loaderx.dataset import DenseDataset
        from loaderx.torch import IterableLoader, MapDataset
        from tests.processes import assert_no_growth
        streams = {name: DenseDataset(f"{sys.argv[1]}/{name}") for name in "xyh"}
        def left():
            next(iter(IterableLoader(streams, batch_size=16)))
            next(iter(DataLoader(IterableLoader(streams, batch_size=16), batch_size=None)))
            loader = IterableLoader(streams, batch_size=16)
            next(iter(loader)); loader.seek(3); next(iter(loader)); loader.close()
            MapDataset(streams)[0]
        assert_no_growth(left, 100, 300)
        print("done")
    """
    assert python(code, folder) == "done\n"


# ---- the map-style one --------------------------------------------------------------------


def test_batches_are_one_dict_of_tensors(streams):
    data = MapDataset(streams)
    assert len(data) == N
    batch = data.__getitems__([3, 99, 0, 3])
    assert batch["y"].tolist() == [3, 99, 0, 3]
    assert batch["h"].dtype == torch.bfloat16 and batch["h"][1].tolist() == [198, 199]
    assert type(collate(batch)) is dict and collate(batch) == {**batch} and collate({"a": 1}) == {"a": 1}
    one = data[7]
    assert one["y"].shape == () and one["y"] == 7 and one["x"].shape == (2, 3) and one["h"].dtype == torch.bfloat16
    assert data[np.int64(-1)]["y"] == 99
    assert data.__getitems__([])["x"].shape == (0, 2, 3)
    for index in (N, -N - 1):
        with pytest.raises(RecordIndexError):
            data[index]
        with pytest.raises(IndexError):
            data.__getitems__([0, index])
    for index in (1.5, "a", None):
        with pytest.raises(TypeError):
            data[index]
    with pytest.raises(DtypeError, match="records are asked for by integers, got float64"):
        data.__getitems__([1.0])


def test_torch_s_own_collate_is_told_of_ours(streams):
    for workers in (0, 1):
        with pytest.raises(ValueError, match=r"pass collate_fn=loaderx\.torch\.collate"):
            next(iter(TorchLoader(MapDataset(streams), batch_size=4, num_workers=workers)))
    with pytest.raises(KeyError, match="z"):
        MapDataset(streams).__getitems__([0])["z"]


def test_an_endless_loader_says_that_it_has_no_length(streams):
    with IterableLoader(streams, **OPTIONS) as loader:
        assert loader
        for what in (loader, TorchLoader(loader, batch_size=None)):
            with pytest.raises(TypeError, match="the loader is endless and has no length"):
                len(what)
    with pytest.raises(TypeError, match=r"there is loaderx\.torch\.IterableLoader"):
        next(iter(TorchLoader(DataLoader(streams), batch_size=None)))


@pytest.mark.parametrize("workers", [0, 2])
def test_under_torch_s_loader_with_subsets_and_splits(streams, workers):
    data = MapDataset(streams)
    options = {"batch_size": 16, "num_workers": workers, "collate_fn": collate}
    want = [list(range(k, min(k + 16, N))) for k in range(0, N, 16)]
    assert labels(TorchLoader(data, **options)) == want
    assert labels(TorchLoader(Subset(data, range(N)), **options)) == want
    first, second = random_split(data, [60, 40], torch.Generator().manual_seed(1))
    parts = *labels(TorchLoader(first, shuffle=True, **options)), *labels(TorchLoader(second, **options))
    assert sorted(itertools.chain(*parts)) == list(range(N))
    # This one asks for single records.
    both = labels(TorchLoader(ConcatDataset([data, data]), **options))
    assert list(itertools.chain(*both)) == [*range(N), *range(N)]


def test_no_objects_are_made_per_record(streams, monkeypatch):
    data = MapDataset(streams)
    data.__getitems__([0])  # the first time the dtypes are tried
    monkeypatch.setattr(MapDataset, "__getitem__", None)
    made = []
    original = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda array: made.append(1) or original(array))
    batch = next(iter(TorchLoader(data, batch_size=64, collate_fn=collate)))
    assert len(batch["y"]) == 64
    assert len(made) == len(streams)


def test_pinned_memory_takes_the_dict_as_it_is(streams):
    data = MapDataset(streams)
    if torch.cuda.is_available():
        batch = next(iter(TorchLoader(data, batch_size=8, collate_fn=collate, pin_memory=True)))
        assert all(tensor.is_pinned() for tensor in batch.values())
    else:
        with pytest.warns(UserWarning, match="pin_memory"):
            batch = next(iter(TorchLoader(data, batch_size=8, collate_fn=collate, pin_memory=True)))
    assert batch["y"].tolist() == list(range(8))


def test_ragged_streams_padded_and_flat(folder):
    with RaggedDataset(folder / "r") as r, DenseDataset(folder / "y") as y:
        data = MapDataset({"p": Pad(r, pad_value=-1), "y": y})
        batch = next(iter(TorchLoader(data, batch_size=4, collate_fn=collate)))
        assert batch["p"].tolist() == [[0, -1, -1, -1], [1, 1, -1, -1], [2, 2, 2, -1], [3, 3, 3, 3]]
        assert batch["p_lengths"].tolist() == [1, 2, 3, 4]
        assert data[2]["p"].tolist() == [2, 2, 2] and data[2]["p_lengths"] == 3
        flat = MapDataset({"f": Flat(r)})
        assert flat.__getitems__([1, 2])["f_splits"].tolist() == [0, 2, 5]
        with pytest.raises(DtypeError, match=r"\['f'\] are flat"):
            flat[0]
        with pytest.raises(ArgumentError, match="stream 'r' is ragged: wrap it"):
            MapDataset({"r": r})


def test_streams_that_are_refused(folder, streams, tmp_path):
    from_numpy(tmp_path / "s", np.array(["a", "b"]))
    with DenseDataset(tmp_path / "s") as text:
        with pytest.raises(DtypeError, match="stream 's': torch has no dtype"):
            MapDataset({"s": text})
        with pytest.raises(ArgumentError, match="same number of records"):
            MapDataset({"s": DenseDataset(tmp_path / "s", bits=False), **streams})
    for wrong in ({}, [1], None):
        with pytest.raises(ArgumentError):
            MapDataset(wrong)


def test_datasets_and_stacks_of_them_are_map_style_as_they_are(streams):
    x, y = streams["x"], streams["y"]
    stacked = torch.utils.data.StackDataset(x=x, y=y)
    batch = next(iter(TorchLoader(stacked, batch_size=4)))
    assert batch["y"].tolist() == [0, 1, 2, 3] and batch["x"].shape == (4, 2, 3)
    assert next(iter(TorchLoader(x, batch_size=4, num_workers=1))).shape == (4, 2, 3)
