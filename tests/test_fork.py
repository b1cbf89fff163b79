"""The engine over fork: a Go runtime does not survive it, so the child brings its own."""

import pickle
import threading

import numpy as np
import pytest

from loaderx import _engine, errors
from loaderx.dataset import DenseDataset
from tests.processes import in_child, run_python


def test_many_forks_read(store, rows):
    with DenseDataset(store) as ds:
        idx = [3, 1, 999]
        np.testing.assert_array_equal(ds[idx], rows[idx])
        for _ in range(200):
            in_child(lambda: np.testing.assert_array_equal(ds[idx], rows[idx]), 10)
        np.testing.assert_array_equal(ds[idx], rows[idx])


def test_nested_forks_read(store, rows):
    with DenseDataset(store) as ds:
        assert len(ds[:]) == len(rows)

        def descend(depth):
            np.testing.assert_array_equal(ds[5], rows[5])
            if depth:
                in_child(lambda: descend(depth - 1))
            np.testing.assert_array_equal(ds[6], rows[6])

        in_child(lambda: descend(5))


def test_a_fork_while_threads_are_inside_the_engine(store, rows):
    with DenseDataset(store) as ds:
        stop = threading.Event()

        def busy():
            rng = np.random.default_rng()
            while not stop.is_set():
                ds[rng.integers(0, len(rows), 500)]

        threads = [threading.Thread(target=busy) for _ in range(4)]
        for t in threads:
            t.start()
        try:
            for _ in range(20):
                in_child(lambda: np.testing.assert_array_equal(ds[7], rows[7]))
        finally:
            stop.set()
            for t in threads:
                t.join()


def test_a_forked_childs_threads_reopen_once(store, rows):
    with DenseDataset(store) as ds:
        assert len(ds) == 1000

        def work():
            results = []

            def read():
                results.append(np.array_equal(ds[9], rows[9]))

            threads = [threading.Thread(target=read) for _ in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            assert results == [True] * 8
            assert _engine.lib.NumHandles() == 1

        in_child(work)


def test_the_child_may_be_the_first_to_use_the_engine(store):
    run_python(
        """
        import os
        from loaderx.dataset import DenseDataset
        pid = os.fork()
        if pid == 0:
            assert DenseDataset(os.environ["STORE"])[4].tolist() == list(range(64, 80))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert DenseDataset(os.environ["STORE"])[0, 1] == 1
        """,
        STORE=str(store),
    )


def test_where_nothing_may_be_executed_the_error_says_what_to_do(store):
    with DenseDataset(store) as ds:
        len(ds)

        def work():
            from loaderx import _extension

            def refuse(depth):
                raise OSError("not allowed here")

            refuse.__name__ = "_anonymous_copy"
            _extension._anonymous_copy = _extension._temporary_copy = refuse
            with pytest.raises(errors.ForkError, match="spawn"):
                ds[0]

        in_child(work)


def test_without_anonymous_files_a_temporary_copy_serves(store, rows):
    with DenseDataset(store) as ds:
        len(ds)

        def work():
            from loaderx import _extension

            def refuse(depth):
                raise OSError("not allowed here")

            _extension._anonymous_copy = refuse
            np.testing.assert_array_equal(ds[8], rows[8])

        in_child(work)


def test_a_writer_does_not_follow_into_a_child(tmp_path):
    from loaderx.zrecord import Zrecord

    with Zrecord(tmp_path / "w", codec="raw") as store:
        store.append(b"abc", [0])

        def work():
            with pytest.raises(errors.ForkError, match="writing"):
                store.append(b"def", [0])

        in_child(work)
        assert store.append(b"ghi", [0]) == 1


def test_handles_are_pickled_as_path_and_options(store, rows):
    with DenseDataset(store) as ds:
        again = pickle.loads(pickle.dumps(ds))
        np.testing.assert_array_equal(again[:5], rows[:5])
        again.close()
        np.testing.assert_array_equal(ds[:5], rows[:5])
