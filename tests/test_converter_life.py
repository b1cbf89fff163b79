"""Where conversions write, and what is left of those that fail, are interrupted or are killed."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import RaggedDataset
from loaderx.errors import StoreExistsError
from tests.processes import drawn
from tests.stores import back, left_in


class Broken(Exception):
    """Raised by a source of records."""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def broken_source():
    """Give one record, then fail."""
    yield np.zeros(3)
    raise Broken


def test_a_failed_append_leaves_the_old_store(path):
    def source():
        for number in range(40):
            yield np.full(number + 1, number, np.int64)
        raise Broken

    from_iterator(path, [np.arange(3)])
    before = left_in(path)
    for _ in range(3):
        with pytest.raises(Broken):
            from_iterator(path, source(), chunk_bytes=100)
        assert [r.tolist() for r in back(path, RaggedDataset)] == [[0, 1, 2]]
    assert left_in(path) == before
    assert left_in(path.parent) == ["store"]
    assert from_iterator(path, [np.arange(2)]) == 1
    assert [r.tolist() for r in back(path, RaggedDataset)] == [[0, 1, 2], [0, 1]]


def test_a_failed_conversion_leaves_nothing(path):
    for place in (path, path / "deep" / "er"):
        with pytest.raises(Broken):
            from_iterator(place, broken_source())
        assert left_in(path.parent) == []
    path.mkdir(mode=0o750)
    with pytest.raises(Broken):
        from_iterator(path, broken_source())
    assert left_in(path) == []
    assert left_in(path.parent) == ["store"]
    from_iterator(path, [np.zeros(3)])
    assert path.stat().st_mode & 0o777 == 0o750
    assert left_in(path.parent) == ["store"]


def test_a_child_that_the_source_forks_does_not_roll_back(path):
    def source():
        yield np.zeros(3)
        pid = os.fork()
        if pid == 0:
            raise Broken
        assert os.waitpid(pid, 0)[1] == 0
        yield np.ones(3)

    try:
        assert from_iterator(path, source()) == 2
    except Broken:
        os._exit(0)
    assert [r.tolist() for r in back(path, RaggedDataset)] == [[0, 0, 0], [1, 1, 1]]


def test_a_directory_with_other_files_is_written_in_place(path):
    path.mkdir()
    (path / "README").write_text("mine")

    with pytest.raises(Broken):
        from_iterator(path, broken_source(), chunk_bytes=1)
    assert (path / "README").read_text() == "mine"
    assert from_numpy(path, np.arange(3)) == 3
    assert back(path).tolist() == [0, 1, 2]
    assert (path / "README").read_text() == "mine"


def test_the_working_directory_can_be_the_store(path, monkeypatch):
    path.mkdir()
    monkeypatch.chdir(path)
    from_numpy(".", np.arange(3))
    assert back(".").tolist() == [0, 1, 2]
    assert Path.cwd() == path


def test_a_link_is_followed(path):
    path.symlink_to(path.with_name("real"))
    from_numpy(path, np.arange(3))
    assert path.is_symlink()
    assert back(path.with_name("real")).tolist() == [0, 1, 2]


def test_a_file_is_not_a_place(path):
    path.write_text("mine")
    with pytest.raises(StoreExistsError):
        from_numpy(path, np.arange(3))
    with pytest.raises(OSError):  # noqa: PT011
        from_numpy(path / "below", np.arange(3))
    assert path.read_text() == "mine"
    assert left_in(path.parent) == ["store"]


def test_a_store_that_someone_else_creates_meanwhile_is_kept(path):
    def source():
        yield np.zeros(3)
        from_numpy(path, np.arange(5))
        yield np.zeros(3)

    with pytest.raises(StoreExistsError, match="created by someone else"):
        from_iterator(path, source())
    assert back(path).tolist() == [0, 1, 2, 3, 4]
    assert left_in(path.parent) == ["store"]


def test_memory_stays_bounded_for_a_mapped_source(tmp_path, python):
    np.lib.format.open_memmap(tmp_path / "big.npy", "w+", np.uint8, (48_000, 4096)).flush()
    code = """
        import sys, resource, threading, time
        import numpy as np
        from pathlib import Path
        from loaderx.converter import from_numpy
        array = np.load(sys.argv[1], mmap_mode="r")
        from_numpy(sys.argv[2] + "/warm", array[:10])
        peak, done = [0], threading.Event()
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        start = resident()
        def watch():
            while not done.wait(0.005):
                peak[0] = max(peak[0], resident())
        watcher = threading.Thread(target=watch)
        watcher.start()
        from_numpy(sys.argv[2] + "/big", array, chunk_bytes=4 << 20)
        done.set()
        watcher.join()
        print((peak[0] - start) >> 20)
    """
    assert int(python(code, tmp_path / "big.npy", tmp_path)) < 64


LONG = """
    import sys, os, numpy as np
    from loaderx.converter import from_iterator, from_numpy
    record = np.random.default_rng(0).integers(0, 9, 1 << 20, dtype=np.uint8)
    def source():
        for number in range(10**9):
            yield record
            if number == 5:
                print("ready", flush=True)
    try:
        if sys.argv[2] == "ragged":
            from_iterator(sys.argv[1], source(), chunk_bytes=1 << 21, level=12)
        else:
            print("ready", flush=True)
            from_numpy(sys.argv[1], np.broadcast_to(record, (1 << 20, 1 << 20)), level=12)
        print("finished")
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize("kind", ["dense", "ragged"])
def test_ctrl_c_ends_a_conversion_and_leaves_nothing(path, interrupted, kind):
    out, err = interrupted(LONG, path, kind)
    assert out.replace("ready\n", "") == "interrupted\n", err
    assert left_in(path.parent) == []


def test_a_killed_conversion_leaves_the_old_store_or_a_named_directory(path):
    for existing in (False, True):
        if existing:
            from_iterator(path, [np.arange(3, dtype=np.uint8)])
        command = [sys.executable, "-c", textwrap.dedent(LONG), str(path), "ragged"]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGKILL)
        if existing:
            assert [r.tolist() for r in back(path, RaggedDataset)] == [[0, 1, 2]]
            assert from_iterator(path, [np.arange(2, dtype=np.uint8)]) == 1
            assert len(back(path, RaggedDataset)) == 2
        else:
            (litter,) = left_in(path.parent)
            assert litter.startswith(".store.loaderx-")
            assert litter.endswith(".tmp")
            (path.parent / litter).rename(path.parent / "aside")


def test_no_bar_is_drawn_without_a_terminal(path, capfd):
    from_numpy(path, np.arange(3))
    assert capfd.readouterr() == ("", "")


def test_a_bar_is_drawn_on_a_terminal_for_long_work(path):
    code = """
        import sys, time, numpy as np
        from loaderx.converter import from_iterator
        def source():
            for _ in range(14):
                time.sleep(0.1)
                yield np.zeros(10)
        from_iterator(sys.argv[1], source(), chunk_bytes=1)
    """
    assert "converting" in drawn(code, path)
    assert len(back(path, RaggedDataset)) == 14
