"""Millions of calls leave the process as it was, and its end is quiet."""

import textwrap

import pytest

from loaderx.zrecord import Zrecord
from tests.processes import run_python

# Each measurement has a process of its own: what other tests left there would count, too.
MEASURE = """
    import sys
    import numpy as np
    from loaderx import errors
    from loaderx.converter import from_numpy
    from loaderx.dataset import DenseDataset
    from loaderx._plan import Plan
    from loaderx.dataloader import DataLoader
    from loaderx.sampler import Sampler
    from loaderx.zrecord import Zrecord
    from tests.processes import assert_no_growth

    path = sys.argv[1]

    def raises(kind, call):
        try:
            call()
        except kind:
            return
        raise SystemExit("no error")
"""


def measure(code, *args):
    run_python(textwrap.dedent(MEASURE) + textwrap.dedent(code), *args, timeout=600)


@pytest.mark.parametrize(
    "call",
    [
        "lambda: ds[3]",
        "lambda: ds[[1, 2, 3]]",
        "lambda: len(ds)",
        "lambda: Sampler(1000, 4, 2).next()",
        "lambda: ds.store.lengths([1, 2])",
        "lambda: ds.store.stats()",
        "lambda: Plan(1000, 4).indices(3)",
        "lambda: Plan(1000, 4, 2).position(3)",
        "lambda: next(loader)",
    ],
)
def test_good_calls_do_not_grow_the_process(store, call):
    measure(
        f"ds = DenseDataset(path)\nloader = DataLoader({{'x': ds}}, 1, 4)\nassert_no_growth({call}, 5000, 100_000)",
        store,
    )


def test_failing_calls_do_not_grow_the_process(store):
    measure(
        """
        ds = DenseDataset(path)
        def fail():
            raises(IndexError, lambda: ds[[1, 5000]])
            raises(errors.ZrecordError, lambda: DenseDataset(path + "/missing"))
        assert_no_growth(fail, 5000, 10_000)
        """,
        store,
    )


def test_opening_and_dropping_frees_everything(store):
    measure("assert_no_growth(lambda: DenseDataset(path)[0], 300, 3000, kib=8192)", store)


def test_syncing_a_directory_frees_everything(store):
    measure(
        """
        from loaderx import _engine
        raw, address, size = _engine.path_arg(path)
        sync = lambda: _engine.run(_engine.lib.DirSync, address, size, keep=(raw,))
        assert_no_growth(sync, 20_000, 10_000)
        """,
        store,
    )


@pytest.fixture
def small(tmp_path):
    """The path of a store of four records."""
    with Zrecord(tmp_path / "small") as store:
        store.append(b"first" + b"x" * 5000 + bytes(range(256)) + b"\0", [0, 5, 5005, 5261])
    return tmp_path / "small"


def test_gathers_leave_nothing_behind(small):
    measure(
        """
        idxs, offsets, dst = np.array([0], np.uint64), np.array([0], np.uint64), np.empty(5, np.uint8)
        store = Zrecord(path, mode="r")
        assert_no_growth(lambda: store.gather(idxs, dst, offsets), 20_000, 2_000_000)
        """,
        small,
    )


def test_failing_gathers_leave_nothing_behind(small):
    measure(
        """
        dst, store = np.empty(5, np.uint8), Zrecord(path, mode="r")
        assert_no_growth(lambda: raises(errors.RecordIndexError, lambda: store.gather([99], dst, [0])), 5_000, 200_000)
        """,
        small,
    )


def test_opening_and_closing_stores_leaves_nothing_behind(small):
    measure(
        """
        def work():
            for _ in range(4):
                with Zrecord(path, mode="r") as store:
                    len(store)
                Zrecord(path, mode="r")  # dropped, not closed
            raises(errors.StoreNotFoundError, lambda: Zrecord(path + "/none", mode="r"))
        assert_no_growth(work, 75, 250)
        """,
        small,
    )


def test_deleting_and_compacting_leaves_nothing_behind(tmp_path):
    measure(
        """
        rows = np.arange(250 * 40, dtype=np.uint8).reshape(250, 40)
        from_numpy(path, rows, codec="raw")
        store = Zrecord(path, mode="r+")
        def work():
            store.stats()
            store.verify()
            store.delete([0])
            raises(errors.RecordIndexError, lambda: store.delete([10**6]))
            store.compact()
        assert_no_growth(work, 100, 100, kib=4096)
        """,
        tmp_path / "s",
    )


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_bags_leave_nothing_behind(tmp_path, codec):
    measure(
        f"""
        from ngram_store import NativeRows, pack_native
        pack_native(np.ones((300, 8), np.float16), path, codec="{codec}")
        rows = NativeRows(path, cache_bytes=1 << 20, cache_policy="rows")
        ids, offsets, weights = np.arange(300), np.arange(0, 300, 3), np.ones(300, np.float16)
        out = np.empty((100, 8), np.float16)
        def work():
            rows.embedding_bag(ids, offsets, weights=weights, padding_idx=5, out=out, dtype="fp16")
            rows.embedding_bag(ids[:2], [0, 1], "max", dtype="fp16")
            rows.gather_floats(ids[:9], "fp16")
            raises(errors.RecordIndexError, lambda: rows.embedding_bag([[300]], dtype="fp16"))
        assert_no_growth(work, 3000, 30_000, kib=3072)
        """,
        tmp_path / "t.men",
    )


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
