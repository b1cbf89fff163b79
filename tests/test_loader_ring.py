"""Batches of store streams: whose memory they are, and in which libraries' arrays."""

import gc
import itertools
import json
import threading

import numpy as np
import pytest

from loaderx.collate import Flat, Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, DtypeError
from loaderx.sampler import Sampler

N = 240


@pytest.fixture(scope="module")
def rows():
    return np.arange(N * 2048, dtype=np.float32).reshape(N, 2048)


@pytest.fixture(scope="module", params=["raw", "zstd"])
def ds(request, rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("ring") / request.param
    from_numpy(path, rows, codec=request.param)
    with DenseDataset(path) as dataset:
        yield dataset


@pytest.fixture(scope="module")
def records():
    return [np.full((k % 7, 3), k, np.int32) for k in range(1, N + 1) if k % 7]


@pytest.fixture(scope="module")
def ragged(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("ring") / "ragged"
    from_iterator(path, iter(records))
    with RaggedDataset(path) as dataset:
        yield dataset


def sequence(n, batch, mode=1, seed=42):
    return (b.astype(np.int64) for b in Sampler(n, batch, mode, seed))


def test_without_a_transform_there_is_no_thread(ds):
    before = threading.active_count()
    with DataLoader({"x": ds}) as loader:
        next(loader)
        assert threading.active_count() == before


@pytest.mark.parametrize("keep", [0, 1, 2, 3, 9, 1000])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_kept_batches_stay_as_they_were(ds, rows, keep, num_workers):
    kept = []
    with DataLoader({"x": ds}, num_workers, 16, 3) as loader:
        for step, want in enumerate(itertools.islice(sequence(N, 16), 60)):
            batch = next(loader)["x"]
            np.testing.assert_array_equal(batch, rows[want])
            assert batch.flags.writeable and batch.flags.c_contiguous and batch.flags.aligned
            batch[0] = -step  # it is the consumer's, also to write to
            kept.append((step, want, batch))
            del batch
            kept = kept[len(kept) - keep :]
            for k, want, old in kept:
                assert (old[0] == -k).all()
                np.testing.assert_array_equal(old[1:], rows[want[1:]])


def test_memory_is_used_again(ds):
    with DataLoader({"x": ds}, 2, 16, 3) as loader:
        places = {next(loader)["x"].__array_interface__["data"][0] for _ in range(100)}
    assert len(places) <= 5  # three ahead, two in hand


def holders():
    import jax
    import torch

    yield "view", lambda x: x[3:, ::2]
    yield "memoryview", memoryview
    yield "reshaped", lambda x: x.reshape(-1)[5:]
    yield "torch", lambda x: torch.from_numpy(x)[1:]
    yield "dlpack", lambda x: torch.from_dlpack(x)
    yield "jax", lambda x: jax.device_put(x)
    yield "jax dlpack", lambda x: jax.dlpack.from_dlpack(x)


@pytest.mark.parametrize("hold", [pytest.param(f, id=name) for name, f in holders()])
def test_whatever_shares_the_memory_keeps_it(ds, hold):
    with DataLoader({"x": ds}, 2, 16, 2) as loader:
        held = []
        for _ in range(12):
            batch = next(loader)["x"]
            held.append((hold(batch), np.asarray(hold(batch)).copy()))
            del batch
        for _ in range(20):
            next(loader)
        for got, want in held:
            np.testing.assert_array_equal(np.asarray(got), want)
        del held, got
        gc.collect()
        assert len({next(loader)["x"].__array_interface__["data"][0] for _ in range(40)}) <= 8


def test_batches_outlive_the_loader(ds, rows):
    loader = DataLoader({"x": ds}, 2, 16)
    batch = next(loader)["x"]
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(batch, rows[next(sequence(N, 16))])


def test_one_kept_stream_does_not_keep_the_other(ds, tmp_path):
    from_numpy(tmp_path / "y", np.arange(N))
    with DenseDataset(tmp_path / "y") as y, DataLoader({"x": ds, "y": y}, 2, 16, 2) as loader:
        labels, places = [], set()
        for _ in range(50):
            batch = next(loader)
            labels.append(batch["y"])
            places.add(batch["x"].__array_interface__["data"][0])
            del batch
        assert len(places) <= 4
        for got, want in zip(labels, sequence(N, 16), strict=False):
            np.testing.assert_array_equal(got, want)


def test_record_numbers(ds):
    for transform in (None, dict):
        with DataLoader({"x": ds}, 2, 16, mode=2, transform=transform, indices=True) as loader:
            for want in itertools.islice(sequence(N, 16, 2), 30):
                batch = next(loader)
                assert list(batch) == ["x", "indices"]
                np.testing.assert_array_equal(batch["indices"], want)
                np.testing.assert_array_equal(batch["x"][:, 0], want * 2048)


# ---- ragged -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transform", [None, dict])
def test_padded_and_flat_streams(ragged, records, num_workers, transform):
    streams = {
        "wide": Pad(ragged, 9, -1),
        "cut": Pad(ragged, 2, truncate=True),
        "tight": Pad(ragged, pad_value=7),
        "flat": Flat(ragged),
    }
    kept = []
    with DataLoader(streams, num_workers, 8, transform=transform) as loader:
        for want in itertools.islice(sequence(len(records), 8), 60):
            batch = next(loader)
            chosen = [records[i] for i in want]
            lengths = np.array([len(r) for r in chosen])
            assert batch["wide"].shape == (8, 9, 3)
            assert batch["cut"].shape == (8, 2, 3)
            assert batch["tight"].shape == (8, lengths.max(), 3)
            for k, record in enumerate(chosen):
                n = len(record)
                for name, rest in (("wide", -1), ("tight", 7)):
                    np.testing.assert_array_equal(batch[name][k, :n], record)
                    assert (batch[name][k, n:] == rest).all()
                np.testing.assert_array_equal(batch["cut"][k, : min(n, 2)], record[:2])
                assert not batch["cut"][k, n:].any()
            np.testing.assert_array_equal(batch["wide_lengths"], lengths)
            np.testing.assert_array_equal(batch["cut_lengths"], lengths.clip(max=2))
            np.testing.assert_array_equal(batch["flat"], np.concatenate(chosen))
            np.testing.assert_array_equal(batch["flat_splits"], np.cumsum([0, *lengths]))
            kept.append((batch, {name: value.copy() for name, value in batch.items()}))
            kept = kept[-5:]
    for batch, copy in kept:
        for name, value in batch.items():
            np.testing.assert_array_equal(value, copy[name])


def test_python_streams_beside_ragged_ones_give_the_same(ragged, records):
    class Numbers:
        def __len__(self):
            return len(records)

        def __getitems__(self, indices):
            return indices

    streams = {"p": Pad(ragged, 9, -1), "t": Pad(ragged), "f": Flat(ragged)}
    with DataLoader(streams, 0, 8) as ours, DataLoader({**streams, "n": Numbers()}, 0, 8) as other:
        for _ in range(20):
            a, b = next(ours), next(other)
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])
                assert a[name].dtype == b[name].dtype


@pytest.mark.parametrize("python", [False, True])
def test_a_record_that_is_too_long_is_an_error_of_its_step(ragged, python):
    """The same one, whoever reads."""

    class Other:
        def __len__(self):
            return len(ragged)

        def __getitems__(self, indices):
            return indices.copy()

    words = (
        r'^step 5: stream "x": record 5 has 6 rows, more than the 5 that records are padded to: '
        r"pad to more \(max_len\), or cut longer ones \(truncate=True\)(\n|$)"
    )
    streams = {"x": Pad(ragged, 5), **({"y": Other()} if python else {})}
    with DataLoader(streams, 2, 1, mode=0) as loader:
        for _ in range(5):
            next(loader)
        with pytest.raises(ArgumentError, match=words) as caught:
            next(loader)
        assert type(caught.value) is ArgumentError
    with pytest.raises(ArgumentError, match=r"^record 5 has 6 rows"):
        Pad(ragged, 5).__getitems__([-len(ragged) + 5, 1])


def test_collates_show_what_they_do(ragged):
    assert repr(Pad(ragged)) == f"Pad({ragged!r})"
    assert repr(Pad(ragged, 5, -1, truncate=True)) == f"Pad({ragged!r}, max_len=5, pad_value=-1, truncate=True)"
    assert repr(Flat(ragged)) == f"Flat({ragged!r})"


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda r, d: Pad(d), DtypeError, "takes a RaggedDataset, got DenseDataset"),
        (lambda r, d: Flat([1]), DtypeError, "got list"),
        (lambda r, d: Pad(r, 0), ArgumentError, "max_len must be in 1"),
        (lambda r, d: Pad(r, 1.5), DtypeError, "max_len must be an integer"),
        (lambda r, d: Pad(r, truncate=True), ArgumentError, "needs max_len"),
        (lambda r, d: Pad(r, 4, "x"), DtypeError, "pad_value is a str, which does not go with records of int32"),
        (lambda r, d: Pad(r, 4, [1, 2]), ArgumentError, "must be a scalar"),
        (lambda r, d: DataLoader({"a": Pad(r), "a_lengths": Flat(r)}), ArgumentError, "two arrays called"),
        (lambda r, d: DataLoader({"indices": d}, indices=True), ArgumentError, "two arrays called"),
    ],
)
def test_collates_that_are_refused(ragged, ds, make, error, words):
    with pytest.raises(error, match=words):
        make(ragged, ds)


# ---- other libraries ----------------------------------------------------------------------


def test_torch_batches(ds, rows, tmp_path):
    import ml_dtypes
    import torch

    half = np.arange(N * 4).reshape(N, 4).astype(ml_dtypes.bfloat16)
    from_numpy(tmp_path / "h", half)
    h = DenseDataset(tmp_path / "h")
    with h, DataLoader({"x": ds, "h": h}, 2, 16, output="torch", indices=True) as loader:
        kept = []
        for want in itertools.islice(sequence(N, 16), 30):
            batch = next(loader)
            assert batch["h"].dtype == torch.bfloat16 and batch["indices"].dtype == torch.int64
            assert torch.equal(batch["x"], torch.from_numpy(rows[want]))
            np.testing.assert_array_equal(batch["h"].float().numpy(), half[want].astype(np.float32))
            kept.append((batch["x"], want))
        for tensor, want in kept:
            assert torch.equal(tensor, torch.from_numpy(rows[want]))
    with pytest.warns(UserWarning, match="finds no GPU") if not torch.cuda.is_available() else gc.callbacks:
        DataLoader({"x": ds}, output="torch", pin_memory=True).close()


def test_jax_batches(ds, rows):
    import jax

    kept = []
    with DataLoader({"x": ds}, 2, 16, output="jax") as loader:
        for want in itertools.islice(sequence(N, 16), 30):
            batch = next(loader)
            assert isinstance(batch["x"], jax.Array)
            kept.append((batch["x"], jax.jit(lambda x: x.sum(axis=1))(batch["x"]), want))
    for x, total, want in kept:
        np.testing.assert_array_equal(x, rows[want])
        np.testing.assert_allclose(total, rows[want].sum(axis=1), rtol=1e-5)


def test_outputs_that_are_refused(ds, tmp_path):
    with pytest.raises(ArgumentError, match="output must be one of"):
        DataLoader({"x": ds}, output="tensorflow")
    with pytest.raises(ArgumentError, match="pin_memory=True needs output='torch'"):
        DataLoader({"x": ds}, pin_memory=True)
    import torch  # noqa: F401 - what is tested uses it

    from_numpy(tmp_path / "s", np.array(["a", "b"]))
    with DenseDataset(tmp_path / "s") as text, pytest.raises(DtypeError, match="stream 'x': torch has no dtype"):
        DataLoader({"x": text}, output="torch")


def test_states_are_plain_json(ds):
    with DataLoader({"x": ds}, batch_size=16) as loader:
        for _ in range(3):
            next(loader)
        state = loader.state_dict()
        assert json.loads(json.dumps(state)) == state
        assert (state["step"], state["samples"]) == (3, 48)
