"""Closing, threads, forks and pickles of the record store."""

import contextlib
import copy
import os
import pickle
import threading

import numpy as np
import pytest

from loaderx.errors import ClosedError, DtypeError, RecordIndexError
from loaderx.zrecord import Zrecord
from tests.stores import RECORDS, read, small_store


@pytest.fixture
def path(tmp_path):
    """A store of `RECORDS`."""
    return small_store(tmp_path / "store")


@pytest.mark.parametrize("mode", [None, "r", "a"])
def test_a_closed_store_raises(path, mode):
    store = Zrecord(path, mode=mode)
    store.close()
    store.close()
    assert store.closed
    assert "(closed)" in repr(store)
    for call in (
        lambda: len(store),
        lambda: store.gather([0], bytearray(5), [0]),
        lambda: store.gather([], bytearray(5), []),
        lambda: store.lengths([0]),
        lambda: store.has_dict(),
        lambda: store.append(b"abc", [0]),
        lambda: store.train_dict(b"abc", [3], 100),
        lambda: store.sync(),
        lambda: pickle.dumps(store),
        lambda: copy.copy(store),
    ):
        with pytest.raises(ClosedError):
            call()


def test_a_closed_store_that_was_never_written_stays_closed(tmp_path):
    with Zrecord(tmp_path / "none") as store:
        pass
    for call in (lambda: store.append(b"abc", [0]), lambda: len(store)):
        with pytest.raises(ClosedError):
            call()
    assert not (tmp_path / "none").exists()


def test_closing_while_others_read(path):
    for _ in range(20):
        store = Zrecord(path, mode="r")
        started = threading.Barrier(5)
        outcomes = []

        def work(store=store, started=started, outcomes=outcomes):
            started.wait()
            try:
                while True:
                    assert read(store, [2, 0]) == [RECORDS[2], RECORDS[0]]
            except ClosedError:
                outcomes.append("closed")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        store.close()
        for thread in threads:
            thread.join(30)
        assert outcomes == ["closed"] * 4


def test_a_reader_turns_into_a_writer_while_others_read(path):
    store = Zrecord(path)
    stop = threading.Event()
    failures = []

    def work():
        try:
            while not stop.is_set():
                assert read(store, [2, 0]) == [RECORDS[2], RECORDS[0]]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    store.append(b"new", [0])
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    store.close()


def test_readers_pickle_as_path_and_options(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    with Zrecord("store", codec="raw", mode="r") as store:
        raw = pickle.dumps(store)
        assert len(raw) < 300
        twin = copy.deepcopy(store)
    monkeypatch.chdir("/")
    for other in (pickle.loads(raw), twin):
        assert (other.codec, len(other)) == ("raw", len(RECORDS))
        assert read(other, [0]) == [RECORDS[0]]
        other.close()


def test_writers_do_not_pickle(path):
    for mode in ("a", None):
        with Zrecord(path, mode=mode) as store:
            store.append(b"abc", [0])
            for call in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(DtypeError, match="open for writing"):
                    call(store)


def test_reopening_does_not_depend_on_the_working_directory(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    store = Zrecord("store", mode="r")
    monkeypatch.chdir("/")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if read(store, [0]) == [RECORDS[0]] else 2
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_repr_says_what_it_is(path):
    assert repr(Zrecord(path, mode="r")) == f"Zrecord({str(path)!r}, codec='zstd', mode='r')"
    assert Zrecord(path, mode="r").path == str(path)


def test_leaving_by_an_exception_publishes_what_was_appended(tmp_path):
    with contextlib.suppress(KeyError), Zrecord(tmp_path / "s", mode="x") as store:
        store.append(b"abcde", [0, 3])
        raise KeyError
    with Zrecord(tmp_path / "s", mode="r") as store:
        assert len(store) == 2


def test_negative_indices_are_refused_by_all_methods(tmp_path):
    with Zrecord(tmp_path / "s", mode="x") as store:
        store.append(b"abcde", [0, 3])
        for call in (
            lambda: store.gather([-1], np.empty(5, np.uint8), [0]),
            lambda: store.lengths([-1]),
            lambda: store.delete([-1]),
        ):
            with pytest.raises(RecordIndexError, match="negative index -1: a Zrecord counts from 0 only"):
                call()
        assert len(store) == 2
