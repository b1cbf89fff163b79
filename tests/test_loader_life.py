"""The life of loaders whose streams the engine reads: leaks, ends, forks, interruptions."""

import copy
import gc
import itertools
import os
import pickle
import random
import signal
import subprocess
import threading

import numpy as np
import pytest

from loaderx import _engine
from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.errors import ClosedError, CorruptRecordError
from loaderx.sampler import Sampler
from tests.processes import command, environment, in_child, resident_kib

N = 500


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    where = tmp_path_factory.mktemp("life") / "s"
    # 12 KiB a record: a batch is worth a worker.
    from_numpy(where, np.repeat(np.arange(N), 1536).reshape(N, 1536), codec="raw")
    return where


@pytest.fixture
def handles():
    """Return a function that counts the engine's objects."""
    return lambda: _engine.lib.NumHandles()


@pytest.fixture
def ds(path):
    with DenseDataset(path) as dataset:
        yield dataset


def sequence(batch=16, mode=1, start=0):
    sampler = Sampler(N, batch, mode, 42)
    sampler.seek(start)
    return (b.astype(np.int64) for b in sampler)


def expect(loader, steps, start):
    for want in itertools.islice(sequence(start=start), steps):
        x = next(loader)["x"]
        np.testing.assert_array_equal(x[:, 0], want)
        np.testing.assert_array_equal(x[:, -1], want)


def used():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def churn(ds, rounds):
    for k in range(rounds):
        loader = DataLoader({"x": ds}, 4, 16, seed=k, transform=dict if k % 10 == 9 else None)
        next(iter(loader))
        if k % 3 == 0:
            loader.close()
        elif k % 3 == 1:
            for _ in loader.epoch():
                break


def abandoned_loaders_leave_nothing(ds, handles, rounds):
    churn(ds, 60)
    gc.collect()
    before, open_before, rss = used(), handles(), resident_kib()
    churn(ds, rounds)
    gc.collect()
    assert handles() == open_before
    assert used()[1] == before[1]
    assert resident_kib() - rss < 16 << 10  # a ring has 1.2 MiB: ten that leaked would show


def test_abandoned_loaders_leave_nothing(ds, handles):
    abandoned_loaders_leave_nothing(ds, handles, 300)


@pytest.mark.slow
def test_two_thousand_abandoned_loaders_leave_nothing(ds, handles):
    abandoned_loaders_leave_nothing(ds, handles, 2000)


def test_millions_of_batches_do_not_grow_the_process(tmp_path):
    from_numpy(tmp_path / "s", np.arange(64))
    with DenseDataset(tmp_path / "s") as small, DataLoader({"x": small}, 2, 4) as loader:
        for _ in range(3000):
            next(loader)
        before = resident_kib()
        for _ in range(30_000):
            next(loader)
        assert resident_kib() - before < 2048


EXIT = """
    import sys, threading, time
    from loaderx.dataloader import DataLoader
    from loaderx.dataset import DenseDataset
    ds = DenseDataset(sys.argv[1])
    def work(batch):
        ds[:8]  # the engine, in the middle of a transform
        return {"x": sum(range(1000))}
    loaders = [DataLoader({"x": ds}, k, 64, transform=t) for k in (0, 1, 4) for t in (None, dict, work)]
    kept = [next(loader) for loader in loaders]
    epoch = loaders[2].epoch()
    next(epoch)
    def consume(loader):
        for _ in loader:
            pass
    for loader in loaders[2:]:
        threading.Thread(target=consume, args=(loader,), daemon=True).start()
    time.sleep(int(sys.argv[2]) % 10 / 500)
    sys.exit(3)
"""


def exits(path, rounds):
    """End processes with live loaders: the status is theirs, and no thread of them says a word."""
    for k in range(rounds):
        done = subprocess.run(command(EXIT, path, k), capture_output=True, text=True, timeout=60, env=environment())
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_exits_with_live_loaders(path):
    exits(path, 10)


@pytest.mark.slow
def test_a_hundred_exits_with_live_loaders(path):
    exits(path, 100)


# ---- errors and the end -------------------------------------------------------------------


class Five:
    """A transform that fails at step 5."""

    def __init__(self, fail):
        self.fail, self.want = fail, list(itertools.islice(sequence(), 6))[5]

    def __call__(self, batch):
        if (batch["x"][:, 0] == self.want).all():
            self.fail()
        return batch


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_transform_that_fails_fails_its_own_step(ds, num_workers):
    def fail():
        raise LookupError("bad pixel")

    loader = DataLoader({"x": ds}, num_workers, 16, transform=Five(fail))
    expect(loader, 5, 0)
    with pytest.raises(LookupError, match="bad pixel") as caught:
        next(loader)
    assert [entry.name for entry in caught.traceback][-1] == "fail"
    with pytest.raises(ClosedError, match="step 5 failed with LookupError"):
        next(loader)


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("transform", [None, dict])
def test_a_damaged_record_fails_its_own_step(tmp_path, num_workers, transform):
    values = np.random.default_rng(1).integers(0, 4, (40, 4096), np.uint8)
    from_numpy(tmp_path / "s", values, codec="zstd")
    with open(tmp_path / "s" / "meta.zr", "rb") as meta:
        meta.seek(16 + 16 * 23)
        start = int.from_bytes(meta.read(4), "little")
    with open(tmp_path / "s" / "0.zr", "r+b") as chunk:
        chunk.seek(start)
        chunk.write(b"\xff" * 8)
    with DenseDataset(tmp_path / "s") as damaged:
        loader = DataLoader({"pictures": damaged}, num_workers, 4, mode=0, transform=transform)
        for k in range(5):
            np.testing.assert_array_equal(next(loader)["pictures"], values[4 * k : 4 * k + 4])
        with pytest.raises(CorruptRecordError, match=r'step 5: stream "pictures": .*record 23'):
            next(loader)
        assert loader.closed
        with DataLoader({"pictures": damaged}, num_workers, 4, mode=0, step=6) as onward:
            np.testing.assert_array_equal(next(onward)["pictures"], values[24:28])


def test_closing_while_others_are_in_next(ds):
    for k in range(30):
        loader = DataLoader({"x": ds}, k % 4, 64, transform=dict if k % 2 else None)
        ends = []

        def consume(loader=loader, ends=ends):
            try:
                for batch in loader:
                    assert (batch["x"][:, 0] == batch["x"][:, -1]).all()
            except ClosedError:
                ends.append(True)

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        next(loader)
        loader.close()
        for thread in threads:
            thread.join(20)
        assert len(ends) == 3


def test_moving_while_others_are_in_next(ds):
    with DataLoader({"x": ds}, 2, 16) as loader:
        stop = threading.Event()

        def consume():
            while not stop.is_set():
                try:
                    assert (next(loader)["x"][:, 0] < N).all()
                except ClosedError as exc:
                    assert "went to another step" in str(exc)  # noqa: PT017

        threads = [threading.Thread(target=consume) for _ in range(2)]
        for thread in threads:
            thread.start()
        for k in range(50):
            loader.seek(k)
        stop.set()
        for thread in threads:
            thread.join(20)
        loader.seek(5)
        expect(loader, 5, 5)


def test_consumers_in_many_threads_get_each_step_once(ds):
    got = []
    with DataLoader({"x": ds}, 3, 1, mode=0) as loader:

        def consume():
            for _ in range(100):
                got.append(int(next(loader)["x"][0, 0]))

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(got) == list(range(400))


def test_interruptions_lose_no_step(ds):
    """Ctrl-C at any place in `next`: the next batch is the one that `step` names."""
    hits = 0
    soon = random.Random(5)

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with DataLoader({"x": ds}, 2, 16, indices=True) as loader:
            want = list(itertools.islice(sequence(), 3100))
            for _ in range(400):
                step = loader.step
                try:
                    signal.setitimer(signal.ITIMER_REAL, soon.uniform(2e-5, 3e-4))
                    for _ in range(100):
                        next(loader)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    hits += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                step = loader.step
                batch = next(loader)
                np.testing.assert_array_equal(batch["indices"], want[step])
                np.testing.assert_array_equal(batch["x"][:, -1], want[step])
                if loader.step > 2900:
                    loader.seek(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hits


@pytest.mark.parametrize("library", ["json", "torch", "jax"])
def test_what_is_still_referenced_at_exit_is_let_go_of_in_silence(path, library):
    """Also where a library keeps the main module alive until names of modules are None."""
    code = f"""
        import {library}
        from loaderx.dataloader import DataLoader
        from loaderx.dataset import DenseDataset
        from loaderx.zrecord import Zrecord

        dataset = DenseDataset({str(path)!r})
        kept = []
        for transform in (None, dict):
            for workers in (0, 2):
                loader = DataLoader({{"x": dataset}}, workers, 16, transform=transform)
                next(loader)
                epoch = loader.epoch()
                next(epoch)
                kept += [loader, epoch]
        if {library!r} == "torch":
            from loaderx.torch import IterableLoader
            kept.append(IterableLoader({{"x": dataset}}, batch_size=16))
            kept.append(iter(kept[-1]))
            next(kept[-1])
        if {library!r} == "jax":
            from loaderx.jax import DeviceLoader
            kept.append(DeviceLoader({{"x": dataset}}, batch_size=16))
            next(kept[-1])
            # JAX's caches keep the function, and that all names here, to the very end.
            jax.jit(lambda x: x + 1)(1.0)
    """
    env = environment(JAX_PLATFORMS="cpu", PYTHONWARNINGS="ignore")
    done = subprocess.run(command(code), capture_output=True, text=True, timeout=120, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- forks and copies ---------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_forked_child_goes_on_where_it_was(ds, num_workers, transform):
    with DataLoader({"x": ds}, num_workers, 16, transform=transform) as loader:
        expect(loader, 4, 0)
        kept = next(loader)["x"]

        def child():
            want = next(sequence(start=4))
            np.testing.assert_array_equal(kept[:, 0], want)
            expect(loader, 5, 5)
            in_child(lambda: expect(loader, 2, 10))
            expect(loader, 5, 10)
            loader.close()
            with pytest.raises(ClosedError):
                next(loader)

        for _ in range(5):
            in_child(child, 60)
        in_child(loader.close)
        in_child(gc.collect)
        expect(loader, 16, 5)


class Plain:
    """A stream that Python threads read."""

    def __init__(self, ds):
        self.ds = ds

    def __len__(self):
        return len(self.ds)

    def __getitems__(self, indices):
        return self.ds[indices]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("stream", [lambda ds: ds, Plain], ids=["engine", "python"])
@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_forked_child_goes_on_with_an_epoch(ds, num_workers, transform, stream):
    size = len(ds) // 20 + 1
    with DataLoader({"x": stream(ds)}, num_workers, size, transform=transform) as loader:
        epoch = loader.epoch()
        first = [next(epoch)["x"][:, 0].tolist() for _ in range(3)]

        def rest():
            return [x for batch in epoch for x in batch["x"][:, 0].tolist()]

        def child():
            in_child(lambda: np.testing.assert_array_equal(rest(), ds[:, 0][3 * size :]))
            np.testing.assert_array_equal(rest(), ds[:, 0][3 * size :])

        def closed():
            loader.close()
            with pytest.raises(ClosedError):
                next(epoch)

        in_child(child, 60)
        in_child(closed, 60)
        assert [x for xs in first for x in xs] + rest() == ds[:, 0].tolist()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("transform", [None, dict])
def test_the_parent_s_threads_and_memory_are_refused_in_a_child(ds, transform):
    """Whoever asks: a call would hang, or reach the engine of the parent process."""
    with DataLoader({"x": ds}, 2, 16, transform=transform) as loader:
        front = loader._front

        def child():
            for take in (front.take, lambda: front._source._ring.take(5)):
                with pytest.raises(ClosedError, match="parent process"):
                    take()

        in_child(child)
        expect(loader, 2, 0)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_the_ring_is_filled(ds):
    with DataLoader({"x": ds}, 4, 64) as loader:
        stop = threading.Event()

        def consume():
            while not stop.is_set():
                next(loader)

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            for _ in range(10):
                in_child(lambda: next(DataLoader({"x": ds}, 4, 64)), 60)
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize("clone", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_at_the_step(ds, clone):
    with DataLoader({"x": ds}, 2, 16, step=2, indices=True) as loader:
        expect(loader, 3, 2)
        with clone(loader) as other:
            expect(other, 3, 5)
            expect(loader, 3, 5)
            assert "indices" in next(other)
