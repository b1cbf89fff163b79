"""What a loader delivers: the order of its batches, their contents, and errors."""

import gc
import itertools
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.errors import ArgumentError, ClosedError, DtypeError, ZrecordError
from loaderx.sampler import Sampler
from tests.loaders import no_threads_left, take, wait_until, workers  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Stream:
    """Records that are functions of their number, some of them slow to read."""

    def __init__(self, length, factor=1, slow=False):
        self.length, self.factor, self.slow = length, factor, slow

    def __len__(self):
        return self.length

    def __getitems__(self, indices):
        if self.slow and indices[0] % 3 == 0:
            time.sleep(0.002)
        return indices.astype(np.int64) * self.factor


def sequence(n, batch, mode=1, seed=42, count=30):
    return [b.astype(np.int64).tolist() for b in itertools.islice(Sampler(n, batch, mode, seed), count)]


# ---- order --------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("prefetch_size", [1, 4])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_order_is_the_samplers_whatever_the_workers(num_workers, prefetch_size, mode):
    """The fault of loaderx and grain: order and number of batches changed with the workers."""
    with DataLoader({"x": Stream(34, slow=True)}, num_workers, 16, prefetch_size, mode, seed=7) as loader:
        assert take(loader, 30) == sequence(34, 16, mode, 7)


def test_streams_are_read_at_the_same_records():
    with DataLoader({"x": Stream(1000), "y": Stream(1000, -3)}, batch_size=8) as loader:
        for batch in itertools.islice(loader, 20):
            assert list(batch) == ["x", "y"]
            np.testing.assert_array_equal(batch["y"], -3 * batch["x"])


def test_a_store_smaller_than_a_batch_gives_short_cycles():
    with DataLoader({"x": Stream(5)}, batch_size=16, mode=2) as loader:
        for batch in take(loader, 5):
            assert sorted(batch) == [0, 1, 2, 3, 4]


def test_iterating_again_goes_on():
    with DataLoader({"x": Stream(34)}, batch_size=4) as loader:
        got = [next(loader)["x"].tolist()]
        for batch in loader:
            got.append(batch["x"].tolist())
            break
        assert iter(loader) is iter(loader) is loader
        assert got + take(loader, 3) == sequence(34, 4, count=5)


def test_batches_prepared_ahead_are_bounded():
    made = []
    release = threading.Event()

    def transform(batch):
        made.append(batch)
        return batch

    with DataLoader({"x": Stream(100)}, 2, 4, 3, transform=transform) as loader:
        wait_until(lambda: len(made) == 3)
        next(loader)
        wait_until(lambda: len(made) == 4)
        release.wait(0.05)  # time in which it would prepare too many
        assert len(made) == 4


def test_consumers_in_many_threads_get_each_step_once():
    got = []
    with DataLoader({"x": Stream(10**9)}, 3, 1, mode=0) as loader:

        def consume():
            for _ in range(100):
                got.append(int(next(loader)["x"][0]))

        consumers = [threading.Thread(target=consume) for _ in range(4)]
        for thread in consumers:
            thread.start()
        for thread in consumers:
            thread.join()
    assert sorted(got) == list(range(400))


def test_the_loader_has_no_length():
    with DataLoader({"x": Stream(5)}) as loader, pytest.raises(TypeError, match="endless"):
        len(loader)


@pytest.mark.parametrize("num_workers", [0, 3])
def test_transforms_run_on_whole_batches(num_workers):
    with DataLoader({"x": Stream(50)}, num_workers, 8, transform=lambda b: int(b["x"].sum())) as loader:
        assert list(itertools.islice(loader, 9)) == [sum(b) for b in sequence(50, 8, count=9)]


# ---- real stores --------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_batches_of_stores_are_the_arrays_rows(tmp_path, rng, codec, num_workers):
    images = rng.integers(0, 255, (300, 8, 8, 3), np.uint8)
    labels = np.arange(300, dtype=np.int64)
    from_numpy(tmp_path / "images", images, codec=codec)
    from_numpy(tmp_path / "labels", labels, codec=codec)
    with DenseDataset(tmp_path / "images") as x, DenseDataset(tmp_path / "labels") as y:
        kept = []
        with DataLoader({"image": x, "label": y}, num_workers, 64, mode=2, seed=1) as loader:
            for want, batch in zip(itertools.islice(Sampler(300, 64, 2, 1), 12), loader, strict=False):
                np.testing.assert_array_equal(batch["label"], labels[want])
                np.testing.assert_array_equal(batch["image"], images[want])
                assert batch["image"].flags.writeable
                kept.append((batch["image"], images[want]))
                if len(kept) == 12:
                    break
        for got, want in kept:  # batches stay as they were when later ones arrive
            np.testing.assert_array_equal(got, want)
        assert not x.closed
    assert x.closed


@pytest.mark.parametrize("num_workers", [0, 4])
def test_a_dataset_closed_underneath_is_an_error_of_the_step(tmp_path, num_workers):
    from_numpy(tmp_path / "s", np.arange(100))
    ds = DenseDataset(tmp_path / "s")
    loader = DataLoader({"x": ds}, num_workers, batch_size=4)
    next(loader)
    ds.close()
    with pytest.raises(ClosedError, match=rf'stream "x": its store {tmp_path / "s"} was closed'):
        for _ in loader:
            pass
    assert loader.closed


# ---- errors -------------------------------------------------------------------------------


class Five:
    """A transform that fails at step 5 of a sequential stream of single records."""

    def __init__(self, error):
        self.error = error

    def __call__(self, batch):
        if batch["x"][0] == 5:
            raise self.error
        return batch


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("error", [ValueError("bad pixel"), KeyError("k"), SystemExit(3), KeyboardInterrupt()])
def test_a_transform_that_fails_fails_its_own_step(num_workers, error):
    loader = DataLoader({"x": Stream(100)}, num_workers, 1, mode=0, transform=Five(error))
    assert take(loader, 5) == [[k] for k in range(5)]
    with pytest.raises(type(error)) as caught:
        next(loader)
    assert caught.value is error
    assert "raise self.error" in "".join(traceback.format_tb(caught.value.__traceback__))
    if num_workers or isinstance(error, Exception):
        assert loader.closed
        with pytest.raises(ClosedError, match=f"step 5 failed with {type(error).__name__}"):
            next(loader)
    else:  # Ctrl-C ends the call, and the step can be asked for again
        with pytest.raises(type(error)):
            next(loader)
    error.__traceback__ = None
    loader.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stop_iteration_does_not_end_the_stream_silently(num_workers):
    loader = DataLoader({"x": Stream(100)}, num_workers, 1, mode=0, transform=Five(StopIteration()))
    with pytest.raises(RuntimeError, match="step 5 raised StopIteration") as caught:
        for _ in loader:
            pass
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_read_that_fails_fails_its_own_step(num_workers):
    class Broken(Stream):
        def __getitems__(self, indices):
            if indices[0] == 2:
                raise OSError("disk on fire")
            return super().__getitems__(indices)

    loader = DataLoader({"x": Broken(9)}, num_workers, 1, mode=0)
    assert take(loader, 2) == [[0], [1]]
    with pytest.raises(OSError, match="disk on fire"):
        next(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda i: i[1:], "was asked for 4 records, and returned 3 records"),
        (lambda i: np.zeros((5, 2)), "returned 5 records"),
        (lambda i: np.float32(1), "returned one that has no first axis"),
        (lambda i: [1] * 6, "returned 6 records"),
    ],
)
def test_a_stream_that_returns_another_number_of_records_is_named(num_workers, returned, words):
    class Odd(Stream):
        def __getitems__(self, indices):
            return returned(indices) if 8 in indices else indices.copy()

    with DataLoader({"x": Stream(100), "odd": Odd(100)}, num_workers, 4, mode=0) as loader:
        take(loader, 2)
        with pytest.raises(ArgumentError, match=rf"stream 'odd' \(Odd\) .*{words}"):
            next(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_cannot_change_what_the_others_are_asked_for(num_workers):
    class Changing(Stream):
        def __getitems__(self, indices):
            indices += 1
            return indices

    with (
        DataLoader({"a": Changing(100), "x": Stream(100)}, num_workers, 4, mode=0) as loader,
        pytest.raises(ValueError, match="read-only"),
    ):
        next(loader)


def test_whatever_else_a_stream_returns_is_the_transform_s():
    class Pairs(Stream):
        def __getitems__(self, indices):
            return {"a": indices, "b": -indices}

    with DataLoader({"x": Pairs(100)}, 2, 4, transform=lambda batch: batch["x"]["b"], mode=0) as loader:
        assert next(loader).tolist() == [0, -1, -2, -3]


def test_a_closed_source_is_no_empty_batch():
    """A thread that was about to read when the loader was closed."""
    with DataLoader({"x": Stream(100)}, 0, 4) as loader:
        source = loader._front._source
    with pytest.raises(ClosedError):
        source.read(0)


def test_an_epoch_cannot_be_made_by_its_own_transform():
    with (
        DataLoader({"x": Stream(100)}, 0, 4, transform=lambda batch: next(loader.epoch())) as loader,
        pytest.raises(ZrecordError, match=r"epoch was called from the loader's own transform"),
    ):
        next(loader)
    with (
        DataLoader({"x": Stream(100)}, 0, 4, transform=lambda batch: next(loader.epoch())) as loader,
        pytest.raises(ZrecordError, match=r"epoch was called from the loader's own transform"),
    ):
        next(loader.epoch())


def test_an_error_that_is_raised_again_has_one_note():
    error = KeyError("always the same")
    error.__notes__ = ["mine"]

    def transform(batch):
        raise error

    for step in (3, 5):
        with DataLoader({"x": Stream(100)}, 1, 4, transform=transform, step=step) as loader, pytest.raises(KeyError):
            next(loader)
    if sys.version_info >= (3, 11):
        assert error.__notes__ == ["mine", "raised while the loader prepared step 5"]


def test_an_error_does_not_keep_the_loader_alive():
    """The transform keeps the error, the error its traceback, and that the loader's frames."""
    loader = DataLoader({"x": Stream(100)}, 2, 1, mode=0, transform=Five(ValueError("x")))
    gone = weakref.ref(loader)
    with pytest.raises(ValueError, match="x"):
        take(loader, 6)
    del loader
    gc.collect()
    assert gone() is None


class NoLength:
    __getitems__ = None


@pytest.mark.parametrize(
    ("streams", "words"),
    [
        ({}, "streams is empty"),
        ([("x", 1)], "must be a mapping of names to datasets, got list"),
        (None, "must be a mapping of names to datasets, got NoneType"),
        ({"a": Stream(3), "b": [1, 2, 3]}, r"stream 'b' \(list\) has no __getitems__"),
        ({"a": NoLength()}, "stream 'a' .* has no __len__"),
        ({"a": 7}, "has no __len__ and no __getitems__"),
        (
            {"a": "some/path"},
            r"stream 'a' \(str\) has no __getitems__: open the store, as loaderx.dataset.DenseDataset",
        ),
        ({"a": Path("x")}, r"has no __len__ and no __getitems__: open the store, as loaderx.dataset.DenseDataset"),
        ({"a": np.zeros(3)}, r"no __getitems__: write it by loaderx.converter.from_numpy.*DenseDataset"),
        ({1: Stream(3)}, r"streams are named by strings, got 1 \(int\)"),
        ({("a", "b"): Stream(3)}, r"streams are named by strings, got \('a', 'b'\)"),
        ({"a": Stream(3), "b": Stream(0)}, r"without records: \['b'\]"),
        ({"a": Stream(3), "b": Stream(4)}, r"same number of records, got \{'a': 3, 'b': 4\}"),
    ],
)
def test_streams_that_are_refused(streams, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        DataLoader(streams)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ZrecordError)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"num_workers": -1}, ArgumentError, "num_workers must be in 0..1024, got -1"),
        ({"num_workers": 10**9}, ArgumentError, "num_workers"),
        ({"num_workers": 2.0}, DtypeError, "num_workers must be an integer"),
        ({"num_workers": True}, DtypeError, "num_workers"),
        ({"prefetch_size": 0}, ArgumentError, "prefetch_size must be in 1"),
        ({"prefetch_size": -4}, ArgumentError, "prefetch_size"),
        ({"batch_size": 0}, ArgumentError, "batch_size must be in 1"),
        ({"batch_size": None}, DtypeError, "batch_size"),
        ({"mode": 3}, ArgumentError, "mode must be in 0..2"),
        ({"seed": 2**64}, ArgumentError, "seed must be in"),
        ({"transform": 5}, ArgumentError, "transform must be callable or None, got 5"),
    ],
)
def test_options_that_are_refused(options, error, words):
    with pytest.raises(error, match=words.replace(".", r"\.")):
        DataLoader({"x": Stream(9)}, **options)
    assert not workers()
