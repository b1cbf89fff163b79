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
