"""What signal handlers raise, at whatever instant, loses nothing and leaves nothing running."""

import os
import signal

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset
from loaderx.errors import LockedError
from loaderx.zrecord import Zrecord
from tests.processes import in_child, run_python

STORM = """
    import atexit, contextlib, gc, itertools, os, random, signal, sys, time
    import numpy as np
    from loaderx import _engine
    from loaderx.zrecord import Zrecord

    class Stop(BaseException):
        pass

    kinds = itertools.cycle([KeyboardInterrupt, Stop])
    armed = False

    def raising(*_):
        if armed:  # a thread of the engine may have got the signal, and pass it on late
            raise next(kinds)

    signal.signal(signal.SIGALRM, raising)
    # Python's end gives signals their default back, and one that comes late would kill the process.
    atexit.register(signal.signal, signal.SIGALRM, signal.SIG_IGN)
    path, seconds = os.environ["STORE"], float(os.environ["SECONDS"])

    def interrupted(work):
        '''Do work until something raises at a random instant; say whether it did.'''
        global armed
        hit = True
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 3e-3), 2e-4)
            work()
            armed = hit = False
        except (KeyboardInterrupt, Stop):
            armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        return hit
"""


def test_interrupted_appends_store_whole_calls_of_the_callers_bytes(tmp_path):
    run_python(
        STORM
        + """
    end = time.monotonic() + seconds
    with Zrecord(path, codec="raw", mode="a") as store:
        offsets = np.arange(0, 256 * 4096, 4096, dtype=np.uint64)
        handles = _engine.lib.NumHandles()
        value = 0
        while time.monotonic() < end:
            value = value % 250 + 1
            src = np.full(256 * 4096, value, np.uint8)
            interrupted(lambda: store.append(src, offsets))
            assert _engine.lib.NumHandles() == handles, "a job is left"
            src[:] = 255  # an append that still read it would store this
        assert len(store) % 256 == 0
        n = len(store)
        for i in range(0, n, 256):
            out = store.gather(np.arange(i, i + 256), np.empty((256, 4096), np.uint8), offsets)
            assert (out == out[0, 0]).all() and out[0, 0] != 255, "a mixture, or bytes written later"
    """,
        STORE=str(tmp_path / "s"),
        SECONDS="2",
    )


def test_an_interrupted_open_leaves_no_lock_and_no_handle(tmp_path):
    run_python(
        STORM
        + """
    end = time.monotonic() + seconds
    handles = _engine.lib.NumHandles()
    descriptors = len(os.listdir("/proc/self/fd"))
    while time.monotonic() < end:
        kept = []
        interrupted(lambda: kept.append(Zrecord(path, mode="a")))
        interrupted(lambda: kept.append(Zrecord(path, mode="r")))
        for store in kept:
            interrupted(store.close)
            store.close()
        del kept
        gc.collect()
        Zrecord(path, mode="a").close()
    for _ in range(1000):
        if _engine.lib.NumHandles() == handles:
            break
        time.sleep(0.01)
    assert _engine.lib.NumHandles() == handles
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1
    """,
        STORE=str(tmp_path / "s"),
        SECONDS="2",
    )


def test_interrupted_conversions_leave_a_store_that_opens(tmp_path):
    run_python(
        STORM
        + """
    from loaderx.converter import from_numpy
    from loaderx.dataset import DenseDataset
    end = time.monotonic() + seconds
    rows = np.arange(200 * 64, dtype=np.int64).reshape(200, 64)
    handles = _engine.lib.NumHandles()
    while time.monotonic() < end:
        interrupted(lambda: from_numpy(path, rows, codec="zstd"))
        if os.path.exists(path):
            with DenseDataset(path) as ds:
                assert len(ds) % 200 == 0
                assert all((ds[i : i + 200] == rows).all() for i in range(0, len(ds), 200))
    gc.collect()
    assert _engine.lib.NumHandles() == handles
    with contextlib.suppress(FileNotFoundError):
        DenseDataset(path).close()
    from_numpy(path, rows)
    """,
        STORE=str(tmp_path / "s"),
        SECONDS="3",
    )


@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "raise SystemExit"])
def test_records_appended_before_a_normal_exit_are_kept(tmp_path, ending):
    path = tmp_path / "s"
    run_python(
        f"""
        import os, sys
        from loaderx.zrecord import Zrecord
        store = Zrecord(os.environ["STORE"], codec="raw")
        store.append(b"abcdef", [0, 3])
        {ending}
        """,
        STORE=str(path),
    )
    with Zrecord(path, mode="r") as store:
        assert len(store) == 2


def test_a_dropped_writer_keeps_its_records(tmp_path):
    store = Zrecord(tmp_path / "s", codec="raw")
    store.append(b"abc", [0])
    del store
    with Zrecord(tmp_path / "s", mode="r+") as again:
        assert len(again) == 1


def test_a_writer_killed_beside_a_forked_child_blocks_nobody(tmp_path):
    path = tmp_path / "s"
    ready, child_ends = os.pipe(), os.pipe()
    writer = os.fork()
    if writer == 0:
        store = Zrecord(path, codec="raw", mode="a")
        store.append(b"abc", [0])
        store.sync()
        if os.fork() == 0:
            os.close(child_ends[1])
            os.write(ready[1], b"x")  # only once its after-fork hooks are over
            os.read(child_ends[0], 1)  # lives until the test ends
            os._exit(0)
        signal.pause()
    os.read(ready[0], 1)
    with pytest.raises(LockedError, match="writing"):
        Zrecord(path, mode="r+")
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    with Zrecord(path, mode="r+") as store:
        assert len(store) == 1
    for fd in (*ready, *child_ends):
        os.close(fd)


def test_indices_in_a_truncated_file_are_an_error(tmp_path):
    run_python(
        """
        import os
        import numpy as np
        from loaderx.converter import from_numpy
        from loaderx.dataset import DenseDataset
        from loaderx.errors import FileFaultError
        store, name = os.environ["STORE"], os.environ["STORE"] + ".idx"
        from_numpy(store, np.arange(1000).reshape(500, 2), codec="raw")
        np.arange(100_000, dtype=np.int64).tofile(name)
        idx = np.memmap(name, dtype=np.int64, mode="r+")
        idx[:] %= 500
        with DenseDataset(store) as ds:
            os.truncate(name, 8)
            for call in (lambda: ds[idx], lambda: ds.store.lengths(idx.view(np.uint64))):
                try:
                    call()
                except FileFaultError:
                    continue
                raise SystemExit("no error")
        """,
        STORE=str(tmp_path / "s"),
    )


def test_a_lock_held_at_the_fork_does_not_hang_the_child(tmp_path):
    store = Zrecord(tmp_path / "s")
    with store._lock():

        def work():
            assert len(store) == 0
            store.append(b"abc", [0])
            store.close()

        in_child(work, 10)
    assert len(store) == 1


def test_a_first_write_beside_readers_stays_a_writer(tmp_path):
    run_python(
        """
        import os, sys, threading
        from loaderx.zrecord import Zrecord
        sys.setswitchinterval(1e-6)
        for i in range(60):
            store = Zrecord(os.path.join(os.environ["STORE"], str(i)), codec="raw")
            wrong, done = [], threading.Event()
            def poll():
                while not done.is_set():
                    try:
                        len(store)
                    except BaseException as exc:
                        wrong.append(exc)
                        return
            threads = [threading.Thread(target=poll) for _ in range(3)]
            for t in threads:
                t.start()
            for k in range(2):
                store.append(b"abc", [0])
            done.set()
            for t in threads:
                t.join()
            assert not wrong, wrong
            assert len(store) == 2
            store.close()
        """,
        STORE=str(tmp_path / "many"),
    )


def test_a_relative_path_is_that_of_the_opening(tmp_path, monkeypatch):
    import copy
    import pickle

    monkeypatch.chdir(tmp_path)
    from_numpy("rel", np.arange(5))
    (tmp_path / "sub").mkdir()
    ds = DenseDataset("rel")
    monkeypatch.chdir("sub")
    for again in (copy.deepcopy(ds), pickle.loads(pickle.dumps(ds))):
        assert again[4] == 4
        again.close()
    ds.close()


def test_a_failed_append_to_a_store_publishes_nothing(tmp_path):
    from_numpy(tmp_path / "s", np.arange(5))
    for schema in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises(TypeError):
            from_numpy(tmp_path / "s", np.arange(5), schema=schema)
        with DenseDataset(tmp_path / "s") as ds:
            assert len(ds) == 5


def test_a_process_without_descriptors_can_try_again():
    run_python("""
        import os, resource
        from loaderx import _engine
        from loaderx.errors import ZrecordError
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        failures = 0
        while True:
            try:
                assert _engine.lib.NumHandles() == 0
                break
            except (OSError, ImportError, ZrecordError):
                failures += 1
                os.close(taken.pop())
        assert 0 < failures < 20
    """)


def test_few_descriptors_are_an_error_not_the_end():
    run_python("""
        import os, resource, tempfile
        import numpy as np
        from loaderx import _engine
        from loaderx.converter import from_numpy
        from loaderx.dataset import DenseDataset
        path = os.path.join(tempfile.mkdtemp(), "s")
        _engine.lib.NumHandles()
        from_numpy(path, np.arange(5))
        taken = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        for free in range(4):
            try:
                DenseDataset(path)[0]
            except OSError as exc:
                assert exc.errno == 24, exc
            os.close(taken.pop())
        assert DenseDataset(path)[4] == 4
    """)
