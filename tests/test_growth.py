"""Millions of calls leave the process as it was, and its end is quiet."""

import os
from functools import cache

import numpy as np
import pytest

from loaderx import _engine, errors
from loaderx._plan import Plan
from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.sampler import Sampler
from tests.processes import rss_kib, run_python


@pytest.fixture(scope="module")
def rows():
    return np.arange(1000 * 16, dtype=np.float32).reshape(1000, 16)


@pytest.fixture(scope="module")
def store(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("engine") / "store"
    from_numpy(path, rows, codec="zstd")
    return path


@cache
def loader_of(ds):
    """Return the loader of the calls below; it ends with its dataset."""
    return DataLoader({"x": ds}, 1, 4)


@pytest.mark.parametrize(
    "name, call",
    [
        ("record", lambda ds: ds[3]),
        ("batch", lambda ds: ds[[1, 2, 3]]),
        ("length", len),
        ("sampler", lambda ds: Sampler(1000, 4, 2).next()),
        ("lengths", lambda ds: ds.store.lengths([1, 2])),
        ("plan", lambda ds: Plan(1000, 4).indices(3)),
        ("position", lambda ds: Plan(1000, 4, 2).position(3)),
        ("loader", lambda ds: next(loader_of(ds))),
    ],
)
def test_good_calls_do_not_grow_the_process(store, name, call):
    with DenseDataset(store) as ds:
        for _ in range(5000):
            call(ds)
        handles, before = _engine.lib.NumHandles(), rss_kib()
        for _ in range(100_000):
            call(ds)
        assert rss_kib() - before < 2048
        assert _engine.lib.NumHandles() == handles


def test_failing_calls_do_not_grow_the_process(store):
    with DenseDataset(store) as ds:

        def fail():
            with pytest.raises(IndexError):
                ds[[1, 5000]]
            with pytest.raises(errors.ZrecordError):
                DenseDataset(store / "missing")

        for _ in range(500):
            fail()
        handles, before = _engine.lib.NumHandles(), rss_kib()
        for _ in range(10_000):
            fail()
        assert rss_kib() - before < 2048
        assert _engine.lib.NumHandles() == handles


def test_opening_and_dropping_frees_everything(store):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))

    DenseDataset(store)[0]
    handles, fds, before = _engine.lib.NumHandles(), descriptors(), rss_kib()
    for _ in range(3000):
        DenseDataset(store)[0]
    assert _engine.lib.NumHandles() == handles
    assert descriptors() == fds
    assert rss_kib() - before < 8192


@pytest.mark.parametrize("round_", range(5))
def test_exit_while_daemon_threads_are_in_the_engine(store, round_):
    run_python(
        """
        import os, threading, time
        from loaderx.dataset import DenseDataset
        ds = DenseDataset(os.environ["STORE"])
        def read():
            while True:
                ds[[1, 2, 3] * 200]
        threading.excepthook = lambda args: None
        for _ in range(6):
            threading.Thread(target=read, daemon=True).start()
        time.sleep(0.05)
        """,
        STORE=str(store),
    )


def test_exit_during_a_job_of_a_daemon_thread(tmp_path):
    run_python(
        """
        import os, threading, time
        import numpy as np
        from loaderx.zrecord import Zrecord
        noise = np.random.default_rng(0).integers(0, 256, 24 << 20, dtype=np.uint8)
        offsets = np.arange(0, noise.size, 1 << 20, dtype=np.uint64)
        store = Zrecord(os.environ["STORE"], codec="zstd", level=19)
        threading.excepthook = lambda args: None
        threading.Thread(target=store.append, args=(noise, offsets), daemon=True).start()
        time.sleep(0.2)
        """,
        STORE=str(tmp_path / "s"),
    )


def test_calls_after_the_engine_has_ended_say_so():
    run_python("""
        import atexit
        def late():
            import loaderx._engine as e
            from loaderx.errors import ClosedError
            try:
                e.lib.NumHandles()
            except ClosedError as exc:
                assert "shutting down" in str(exc)
            else:
                raise SystemExit("no error")
        atexit.register(late)
        import loaderx._engine as e
        e.lib.NumHandles()
    """)
