"""The boundary: errors, memory, signals, waiting, closing."""

import json
import os
import re
import threading
import time

import numpy as np
import pytest

import loaderx
from loaderx import _engine, errors
from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset
from tests.processes import run_python

# ---- errors


def test_python_and_the_engine_list_the_same_errors():
    listed = {row["name"]: row["code"] for row in json.loads(_engine.text(_engine.lib.ErrorList))}
    classes = {c.kind: c for c in vars(errors).values() if "kind" in getattr(c, "__dict__", ())}
    classes["internal"] = errors.EngineError
    assert set(listed) == set(classes)
    for name, code in listed.items():
        assert classes[name].code == code


def test_every_class_has_zrecord_error_and_a_builtin_among_its_bases():
    for name in errors.__all__:
        cls = getattr(errors, name)
        if name.endswith("Warning"):
            assert issubclass(cls, UserWarning)
            continue
        assert issubclass(cls, errors.ZrecordError) and issubclass(cls, RuntimeError)
        assert cls.__doc__
    assert issubclass(errors.RecordIndexError, IndexError)
    assert issubclass(errors.StoreNotFoundError, FileNotFoundError)
    assert issubclass(errors.DtypeError, TypeError)


def test_errors_of_the_system_carry_errno(tmp_path):
    with pytest.raises(FileNotFoundError) as info:
        DenseDataset(tmp_path / "missing")
    assert info.value.errno == 2 and isinstance(info.value, errors.ZrecordError)


def test_an_overwritten_message_is_said_to_be_lost():
    ticket = -_engine.lib.JobWait(1 << 40, 0)
    for _ in range(5000):
        _engine.lib.JobWait(1 << 40, 0)
    with pytest.raises(errors.EngineError, match="was lost"):
        _engine.check(-ticket)


@pytest.mark.parametrize("bad", ["", b"", "a\0b"])
def test_paths_that_are_none_are_refused(bad):
    with pytest.raises(errors.ArgumentError, match="not a path"):
        _engine.path_arg(bad)


def test_paths_need_not_be_utf8(tmp_path, rows):
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9")
    from_numpy(path, rows)
    with DenseDataset(path) as ds:
        np.testing.assert_array_equal(ds[:], rows)


# ---- memory


def test_pin_takes_any_contiguous_buffer():
    import torch

    for obj, size in [
        (b"abc", 3),
        (bytearray(5), 5),
        (memoryview(b"abcd"), 4),
        (np.zeros((2, 3), ">f4"), 24),
        (np.zeros(0), 0),
        (torch.zeros(3, dtype=torch.bfloat16), 6),
        (torch.tensor(1.5), 4),
    ]:
        address, nbytes, owner = _engine.pin(obj)
        assert nbytes == size and (address or not size) and owner is not None


@pytest.mark.parametrize(
    "bad, error",
    [
        (np.zeros((4, 4))[:, ::2], errors.ArgumentError),
        (np.array([object()]), errors.DtypeError),
        ("text", errors.DtypeError),
        (3, errors.DtypeError),
        (None, errors.DtypeError),
        (memoryview(b"abcdef")[::2], errors.ArgumentError),
    ],
)
def test_pin_refuses_what_has_no_plain_memory(bad, error):
    with pytest.raises(error):
        _engine.pin(bad)


def test_pin_never_writes_through_read_only_memory():
    locked = np.zeros(4)
    locked.flags.writeable = False
    for obj in (locked, b"abcd"):
        with pytest.raises(errors.ArgumentError, match="read-only"):
            _engine.pin(obj, writable=True)


def test_subnormals_survive_the_import():
    out = run_python("""
        import sys
        import numpy as np
        import loaderx._engine as e
        e.lib.NumHandles()
        assert sys.float_info.min / 2 > 0
        assert np.float32(1e-40) * np.float32(0.5) > 0
        print("ok")
    """)
    assert out == "ok\n"


def test_the_users_signal_handlers_are_unchanged_by_the_import(tmp_path):
    run_python(
        """
        import faulthandler, os, signal, threading
        faulthandler.enable()
        def mine(*_): pass
        def caught():
            # What the system will really do, which Python's own table need not show.
            with open("/proc/self/status") as f:
                mask = int(next(line.split()[1] for line in f if line.startswith("SigCgt:")), 16)
            names = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGCHLD")
            return {name: bool(mask >> getattr(signal, name) - 1 & 1) for name in names}
        signals = [s for s in signal.valid_signals() if s not in (signal.SIGKILL, signal.SIGSTOP)]
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(s, mine)
        before, caught_before = {s: signal.getsignal(s) for s in signals}, caught()
        assert caught_before == {"SIGINT": True, "SIGTERM": True, "SIGUSR1": True, "SIGCHLD": False}
        import loaderx._engine as e
        e.lib.NumHandles()
        assert before == {s: signal.getsignal(s) for s in signals}
        assert caught() == caught_before
        hit = []
        signal.signal(signal.SIGUSR1, lambda *_: hit.append(1))
        signal.raise_signal(signal.SIGUSR1)
        assert hit == [1]

        import numpy as np
        from loaderx.zrecord import Zrecord
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert caught() == {**caught_before, "SIGTERM": False}
        # Far more to do than the signal takes to come.
        noise = np.random.default_rng(0).integers(0, 256, 48 << 20, dtype=np.uint8)
        offsets = np.arange(0, noise.size, 1 << 20, dtype=np.uint64)
        store = Zrecord(os.environ["STORE"], codec="zstd", level=19)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            store.append(noise, offsets)
        except KeyboardInterrupt:
            assert len(store) == 0
        else:
            raise SystemExit("not interrupted")
        assert caught() == {**caught_before, "SIGTERM": False}
        """,
        STORE=str(tmp_path / "store"),
    )


def test_two_copies_in_one_process_are_refused(tmp_path):
    out = run_python(
        """
        import os, shutil, sys
        import loaderx, loaderx._engine as e
        e.lib.NumHandles()
        target = os.environ["COPY"]
        shutil.copytree(os.path.dirname(loaderx.__file__), os.path.join(target, "loaderx"))
        for name in [n for n in sys.modules if n.partition(".")[0] == "loaderx"]:
            del sys.modules[name]
        sys.path.insert(0, target)
        import loaderx._engine as second
        assert second.__file__.startswith(target)
        try:
            second.lib.NumHandles()
        except ImportError as exc:
            print(exc)
        """,
        COPY=str(tmp_path),
    )
    assert "two copies of the engine in one process" in out


# ---- waiting and closing


def test_ctrl_c_during_a_job_cancels_it_and_ends_the_wait(tmp_path):
    out = run_python(
        """
        import os, signal, threading, time
        import numpy as np
        from loaderx.zrecord import Zrecord
        from loaderx import _engine
        noise = np.random.default_rng(0).integers(0, 256, 48 << 20, dtype=np.uint8)
        offsets = np.arange(0, noise.size, 1 << 20, dtype=np.uint64)
        store = Zrecord(os.environ["STORE"], codec="zstd", level=19)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            store.append(noise, offsets)
        except KeyboardInterrupt:
            assert _engine.lib.NumHandles() == 1
            print(len(store))
        store.close()
        """,
        STORE=str(tmp_path / "store"),
    )
    assert out == "0\n"


def test_closing_while_other_threads_read_gives_data_or_a_clear_error(store, rows):
    for _ in range(20):
        ds = DenseDataset(store)
        wrong = []

        def read(ds=ds, wrong=wrong):
            rng = np.random.default_rng()
            try:
                while True:
                    idx = rng.integers(0, len(rows), 64)
                    if not np.array_equal(ds[idx], rows[idx]):
                        wrong.append(idx)
            except errors.ClosedError:
                pass
            except BaseException as exc:
                wrong.append(exc)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(0.01)
        ds.close()
        for t in threads:
            t.join(20)
            assert not t.is_alive()
        assert wrong == []
    with pytest.raises(errors.ClosedError):
        ds[0]


def test_the_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", loaderx.__version__)
