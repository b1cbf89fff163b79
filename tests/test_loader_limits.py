"""What a loader refuses: sizes that no machine has, fillers, and calls that would wait for themselves."""

import itertools
import signal
import threading

import numpy as np
import pytest

from loaderx.collate import Flat, Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, DtypeError, OutOfMemoryError, ZrecordError
from loaderx.sampler import Sampler
from tests.processes import in_child

N = 100


class Numbers:
    """Records that are their numbers, read by Python threads."""

    def __len__(self):
        return N

    def __getitems__(self, indices):
        return indices


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("limits")
    from_numpy(folder / "d", np.arange(N))
    from_iterator(folder / "r", [np.arange(3)] * N)
    with DenseDataset(folder / "d") as dense, RaggedDataset(folder / "r") as ragged:
        yield {"dense": dense, "pad": Pad(ragged), "flat": Flat(ragged), "python": Numbers()}


# ---- sizes --------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("batch_size", [2**45, 2**59, 2**60, 2**62, 2**63 - 1])
@pytest.mark.parametrize("kind", ["dense", "pad", "flat", "python"])
@pytest.mark.parametrize("transform", [None, dict])
def test_impossible_batches_are_refused_at_construction(streams, kind, batch_size, output, transform):
    words = rf"no (machine has )?memory for .* \d+ bytes.* for batch_size {batch_size}$"
    for num_workers in (0, 2):
        with pytest.raises((ArgumentError, OutOfMemoryError), match=words) as caught:
            DataLoader({"x": streams[kind]}, num_workers, batch_size, output=output, transform=transform)
        assert isinstance(caught.value, ArgumentError) or batch_size < 2**62


def test_a_batch_larger_than_a_cycle_needs_no_memory_for_it(streams):
    with DataLoader({"x": streams["dense"]}, batch_size=2**62, mode=2) as loader:
        assert sorted(next(loader)["x"]) == list(range(N))


# ---- fillers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, value, error",
    [
        ("u2", -1, ArgumentError), ("i4", 0.5, ArgumentError), ("u1", 300, ArgumentError),
        ("i8", np.nan, ArgumentError),
        ("u8", 2**64, ArgumentError), ("f2", 1e6, ArgumentError), ("?", 2, ArgumentError), ("f4", "1", DtypeError),
        ("i4", None, DtypeError), ("f4", 1j, DtypeError), ("i4", [1], ArgumentError),
    ],
)  # fmt: skip
def test_padding_that_the_dtype_cannot_hold_is_refused(tmp_path, dtype, value, error):
    from_iterator(tmp_path / "r", [np.ones(2, dtype), np.ones(1, dtype)])
    with RaggedDataset(tmp_path / "r") as ragged, pytest.raises(error, match="pad_value"):
        Pad(ragged, pad_value=value)


@pytest.mark.parametrize(
    "dtype, value",
    [("u2", 65535), ("i4", -1), ("i4", 7.0), ("f4", 0.1), ("f8", np.inf), ("?", True), ("u8", 2**64 - 1), (">i2", -2)],
)
def test_padding_is_the_value_that_was_given(tmp_path, dtype, value):
    from_iterator(tmp_path / "r", [np.ones(2, dtype), np.ones(1, dtype)])
    with RaggedDataset(tmp_path / "r") as ragged:
        pad = Pad(ragged, pad_value=value)
        want = [np.ones(2, dtype).tolist(), [1, np.dtype(dtype).type(value)]]
        assert pad.__getitems__([0, 1])[0].tolist() == want
        with DataLoader({"x": pad}, batch_size=2, mode=0) as loader:
            assert next(loader)["x"].tolist() == want


# ---- calls within calls -------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("name", ["next", "seek", "load_state_dict"])
@pytest.mark.parametrize("kind", ["dense", "python"])
def test_a_transform_cannot_wait_for_its_own_loader(streams, num_workers, name, kind):
    ready = threading.Event()

    def transform(batch):
        ready.wait(10)
        calls = {
            "next": lambda: next(loader),
            "seek": lambda: loader.seek(3),
            "load_state_dict": lambda: loader.load_state_dict(loader.state_dict()),
        }
        calls[name]()

    loader = DataLoader({"x": streams[kind]}, num_workers, 4, transform=transform)
    ready.set()
    with pytest.raises(ZrecordError, match=f"{name} was called from the loader's own transform"):
        next(loader)
    assert loader.closed


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_cannot_wait_for_its_own_loader(num_workers):
    ready = threading.Event()

    class Seeking(Numbers):
        def __getitems__(self, indices):
            ready.wait(10)
            loader.seek(5)

    loader = DataLoader({"x": Seeking()}, num_workers, 4)
    ready.set()
    with pytest.raises(ZrecordError, match="seek was called from the loader's own"):
        next(loader)


@pytest.mark.parametrize("transform", [None, dict])
def test_a_signal_handler_within_a_call_is_refused(streams, transform):
    """It runs in the thread of the call that it interrupted, which would never end."""
    seen = []

    def handler(*_):
        for call in (lambda: next(loader), lambda: loader.seek(3)):
            try:
                call()
            except ZrecordError as exc:
                seen.append(str(exc))

    before = signal.signal(signal.SIGUSR1, handler)
    loader = DataLoader({"x": streams["dense"]}, 0, 4, transform=transform, indices=True)
    try:
        with loader._front._turn:  # as inside `take`
            signal.raise_signal(signal.SIGUSR1)
        with loader._lock():  # as inside `seek`
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [text.split(" ")[0] for text in seen] == ["next", "seek", "seek"]
    assert next(loader)["indices"].tolist() == list(itertools.islice(Sampler(N, 4, 1, 42), 2))[1].tolist()
    loader.close()


# ---- one loader's work is no other's ------------------------------------------------------


def test_loaders_seek_independently(streams):
    """A seek that waits for a slow transform holds up no other loader."""
    entered, release = threading.Event(), threading.Event()

    def slow(batch):
        entered.set()
        release.wait(60)
        return batch

    one = DataLoader({"x": streams["dense"]}, 1, 4, transform=slow)
    assert entered.wait(10)
    with DataLoader({"x": streams["dense"]}, 1, 4) as other, one._lock():  # as while `one` waits
        mover = threading.Thread(target=other.seek, args=(7,), daemon=True)
        mover.start()
        mover.join(20)
        assert not mover.is_alive() and other.step == 7
    release.set()
    one.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_held_at_the_fork_does_not_hang_the_child(streams):
    with DataLoader({"x": streams["dense"]}, 1, 4, mode=0) as loader:
        held, release = threading.Event(), threading.Event()

        def hold():
            with loader._lock():
                held.set()
                release.wait(60)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()

        def child():
            assert next(loader)["x"].tolist() == [0, 1, 2, 3]
            loader.seek(3)
            assert next(loader)["x"].tolist() == [12, 13, 14, 15]

        in_child(child)
        release.set()
        holder.join()
