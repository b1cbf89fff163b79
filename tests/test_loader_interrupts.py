"""Loaders and what signal handlers raise: no batch twice or never, nothing left running."""

import itertools
import os

import numpy as np
import pytest

from loaderx.converter import from_numpy
from tests.processes import run_python
from tests.test_interrupts import STORM

LOADERS = (
    STORM
    + """
    import threading
    from loaderx.dataloader import DataLoader
    from loaderx.dataset import DenseDataset
    from loaderx.errors import ClosedError
    from loaderx.sampler import Sampler

    random.seed(5)
    N, BATCH = 500, 16
    sampler = Sampler(N, BATCH, 1, 42)

    class Numbers:
        '''A stream that Python threads read.'''

        def __len__(self):
            return N

        def __getitems__(self, indices):
            return ds[indices]

    ds = DenseDataset(path)
    stream = {"engine": ds, "python": Numbers()}[os.environ["STREAM"]]
    workers, output = int(os.environ["WORKERS"]), os.environ["OUTPUT"]

    def negated(batch):
        '''A transform that changes the batch in place, slowly enough to be interrupted.'''
        batch["x"] *= -1
        for _ in range(200):
            pass
        return batch

    transform = negated if os.environ["TRANSFORM"] else None

    def made(**options):
        return DataLoader(
            {"x": stream}, workers, BATCH, transform=transform, output=output, indices=True, **options
        )

    def check(batch, step):
        sampler.seek(step)
        want = next(sampler).astype(np.int64)
        x, indices = np.asarray(batch["x"]), np.asarray(batch["indices"])
        assert (indices == want).all(), f"another step's batch at step {step}"
        assert (x[:, 0] == (-want if transform else want)).all() and (x[:, -1] == x[:, 0]).all()

    def left():
        names = [t.name for t in threading.enumerate() if t.name.startswith("loaderx")]
        return len(names), _engine.lib.NumHandles(), len(os.listdir("/proc/self/fd"))

    def settled(before):
        '''Wait until what was dropped is gone.'''
        for _ in range(1000):
            gc.collect()
            if left() == before:
                return
            time.sleep(0.01)
        raise AssertionError(f"{left()} threads, handles and descriptors, {before} before")

    with made() as loader:
        next(loader)
    before = left()
    end = time.monotonic() + seconds
"""
)

#: Those of every run; ``make soak`` takes all.
FEW = [
    ("engine", 0, "numpy", ""),
    ("engine", 0, "torch", "negated"),
    ("engine", 4, "numpy", "negated"),
    ("python", 1, "numpy", ""),
]
ALL = list(itertools.product(("engine", "python"), (0, 1, 4), ("numpy", "torch"), ("", "negated")))
WAYS = [
    pytest.param(way, id="-".join(map(str, way))) for way in (ALL if os.environ.get("LOADER_STORMS") == "all" else FEW)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    where = tmp_path_factory.mktemp("storm") / "s"
    from_numpy(where, np.repeat(np.arange(500), 600).reshape(500, 600), codec="raw")
    return where


@pytest.fixture(params=WAYS)
def storm(request, path):
    """Run code beside an interrupted loader of some kind for a while."""
    stream, workers, output, transform = request.param

    def run(code, seconds=0.7):
        options = {"STREAM": stream, "WORKERS": str(workers), "OUTPUT": output, "TRANSFORM": transform}
        return run_python(LOADERS + code, STORE=str(path), SECONDS=str(seconds), **options)

    return run


def test_a_storm_in_next_loses_and_repeats_nothing(storm):
    """But the batch that was on its way from `next` to the caller's variable, which `step` counts."""
    storm("""
    with made() as loader:
        hits = lost = 0
        while time.monotonic() < end:
            step = loader.step
            got = 0

            def work():
                global got
                for batch in loader:
                    got += 1
                    check(batch, step + got - 1)
                    del batch

            hits += interrupted(work)
            assert not loader.closed, loader._front.why
            lost = loader.step - step - got
            assert lost == 0 if sys.version_info[:2] == (3, 11) else lost in (0, 1)
            loader.seek(step + got)  # as the notes of the class advise
            check(next(loader), step + got)
        assert hits > 10
    settled(before)
    """)


def test_a_storm_in_seek_arrives_or_stays(storm):
    storm("""
    with made() as loader:
        hits = 0
        while time.monotonic() < end:
            old, new = loader.step, random.randrange(10**6)
            state = {**loader.state_dict(), "step": new, "samples": new * BATCH}

            def work():
                for _ in range(50):
                    loader.seek(new) if new % 2 else loader.load_state_dict(state)
                    loader.state_dict()

            hits += interrupted(work)
            assert loader.step in (old, new) and loader.state_dict()["step"] == loader.step
            for _ in range(3):
                at = loader.step
                check(next(loader), at)
        assert hits > 10
        loader.seek(0)
        assert len(loader._fronts) == 1
    settled(before)
    """)


def test_a_storm_in_close_leaves_nothing(storm):
    storm("""
    hits = 0
    while time.monotonic() < end:
        kept = []
        hits += interrupted(lambda: kept.append(made(step=3)))
        if not kept:
            continue
        loader = kept.pop()
        check(next(loader), 3)
        hits += interrupted(loader.close)
        if not loader.closed:
            check(next(loader), 4)
        loader.close()
        try:
            next(loader)
        except ClosedError:
            pass
        else:
            raise AssertionError("a closed loader delivers")
    assert hits > 5
    with made() as loader:  # which sweeps up what was never known to anybody
        del kept
    settled(before)
    """)


def test_a_storm_in_an_epoch_ends_it_and_no_other(storm):
    storm("""
    with made() as loader:
        hits = 0
        while time.monotonic() < end:
            def work():
                for _ in range(20):
                    for batch in loader.epoch():
                        del batch

            hits += interrupted(work)
            rows = np.concatenate([np.asarray(batch["indices"]) for batch in loader.epoch()])
            assert (rows == np.arange(N)).all()
            at = loader.step
            check(next(loader), at)
        assert hits > 10
    settled(before)
    """)


def test_a_storm_around_dropped_loaders_leaves_nothing(storm):
    storm("""
    def work():
        for k in range(20):
            loader = made(step=k)
            check(next(loader), k)
            if k % 3 == 0:
                next(loader.epoch())
            if k % 3 == 1:
                loader.seek(9)

    hits = 0
    sys.unraisablehook = lambda args: None  # what is raised inside a finalizer
    while time.monotonic() < end:
        hits += interrupted(work)
    assert hits > 5
    gc.collect()
    with made():
        pass
    settled(before)
    """)
