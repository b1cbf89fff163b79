"""Calls of NativeRows by the hundred thousand leave the process as it was."""

import textwrap

import numpy as np
import pytest

from tests.processes import run_python
from tests.tables import RAW, ZLIB, forge

MEASURE = """
    import pickle, sys
    import numpy as np
    from loaderx import errors
    from ngram_store import NativeRows
    from tests.processes import assert_no_growth

    path = sys.argv[1]
    ids, out = np.array([3, 499, 3]), np.empty((3, 24), np.uint8)

    def raises(kind, call):
        try:
            call()
        except kind:
            return
        raise SystemExit("no error")
"""


def measure(code, *args):
    run_python(textwrap.dedent(MEASURE) + textwrap.dedent(code), *args, timeout=600)


@pytest.fixture(scope="module", params=[RAW, ZLIB], ids=["raw", "zlib"])
def table(request, tmp_path_factory):
    rows = np.random.default_rng(5).integers(0, 9, (500, 24)).astype(np.uint8)
    return forge(tmp_path_factory.mktemp("growth") / "t.men", rows, codec=request.param, mapped=False)


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ("rows.gather_into(ids, out)", 1_000_000),
        ("rows.gather(ids)", 100_000),
        ("small.gather(ids)", 100_000),
        ("rows.prefetch(ids)", 100_000),
        ("(len(rows), rows.info(), rows.stats(), rows.last_decoded_bytes)", 20_000),
        ("rows.verify()", 2_000),
        ("rows.set_cache(1 << 16, 'rows')", 20_000),
    ],
)
def test_good_calls_do_not_grow_the_process(table, call, count):
    measure(
        f"""
        rows, small = NativeRows(path, 1 << 20, "rows"), NativeRows(path, 2000)
        assert_no_growth(lambda: {call}, {count // 4}, {count}, kib=4096)
        """,
        table,
    )


@pytest.mark.parametrize("policy", ["blocks", "rows"])
def test_64_threads_on_one_handle_with_a_cache_leave_nothing_behind(table, policy):
    measure(
        f"""
        import threading
        # The cache holds a part of the rows, so that entries come and go all the time.
        rows = NativeRows(path, 8000, "{policy}", threads=2, query_chunk_rows=64)
        expected, failures = NativeRows(path).gather(np.arange(500)), []

        def read(seed):
            try:
                rng = np.random.default_rng(seed)
                for _ in range(4):
                    ids = rng.integers(0, rng.integers(1, 501), rng.integers(1, 200))
                    assert np.array_equal(rows.gather(ids), expected[ids])
            except BaseException as error:
                failures.append(error)

        def work():
            threads = [threading.Thread(target=read, args=(seed,)) for seed in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not failures, failures[0]

        assert_no_growth(work, 15, 30, kib=4096)
        stats = rows.stats()
        assert stats["decoded_bytes"] == 0 or stats["cache_hits"] and stats["cache_misses"], stats
        """,
        table,
    )


def test_failing_calls_do_not_grow_the_process(table):
    measure(
        """
        rows = NativeRows(path)
        def fail():
            raises(IndexError, lambda: rows.gather([1, 500]))
            raises(errors.BufferSizeError, lambda: rows.gather_into([1], out))
            raises(errors.DtypeError, lambda: rows.gather([1.5]))
            raises(errors.StoreNotFoundError, lambda: NativeRows(path + ".none"))
            raises(errors.ZrecordError, lambda: NativeRows(__file__ if "__file__" in globals() else sys.executable))
        assert_no_growth(fail, 3000, 10_000)
        """,
        table,
    )


def test_opening_and_closing_leaves_nothing_behind(table):
    measure(
        """
        def work():
            with NativeRows(path, 1 << 20, "rows") as rows:
                rows.gather(ids)
            NativeRows(path, 1 << 20).gather(ids)  # dropped, not closed
            pickle.loads(pickle.dumps(NativeRows(path))).gather(ids)
        assert_no_growth(work, 300, 3000, kib=8192)
        """,
        table,
    )


def test_a_query_that_runs_as_a_job_leaves_nothing_behind(table):
    measure(
        """
        rows = NativeRows(path, query_chunk_rows=1000)
        rows._short = 0
        assert_no_growth(lambda: rows.gather_into(ids, out), 3000, 30_000)
        """,
        table,
    )
