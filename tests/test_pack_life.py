"""Packing in a process's life: interrupts, bars, memory, threads and kills."""

import os
import signal
import threading

import numpy as np
import pytest

from ngram_store import pack_native
from tests.processes import drawn, run_python
from tests.reference_table import as_bytes, assert_holds, read_table


@pytest.fixture
def path(tmp_path):
    """Where a table may be written, alone in its directory."""
    folder = tmp_path / "tables"
    folder.mkdir()
    return folder / "rows.men"


@pytest.fixture
def floats(rng):
    """Rows like those of an embedding."""
    return rng.normal(scale=0.05, size=(3000, 24)).astype(np.float32)


@pytest.mark.parametrize("source", ["rows", "(rows[i : i + 4096] for i in range(0, len(rows), 4096))"])
def test_ctrl_c_ends_it_and_leaves_the_old_table(interrupted, path, source):
    path.write_bytes(b"old")
    out, err = interrupted(
        f"""
        import os, sys
        import numpy as np
        from ngram_store import pack_native
        rows = np.random.default_rng(0).normal(size=(1 << 16, 128)).astype(np.float32)
        def work():
            while True:
                print("begin", flush=True)
                pack_native({source}, sys.argv[1] + ".next", row_bytes=512, codec="zstd", level=22, predictor="auto")
        try:
            work()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        path,
    )
    assert out.endswith("interrupted\n"), err
    assert path.read_bytes() == b"old" and set(os.listdir(path.parent)) <= {path.name, path.name + ".next"}


def test_a_bar_is_drawn_on_a_terminal_while_a_table_is_packed(path):
    code = """
        import sys, time, numpy as np, tqdm
        from ngram_store import pack_native
        def source():
            for _ in range(14):
                time.sleep(0.1)
                yield np.zeros((10, 8), np.float32)
        plain = tqdm.tqdm
        if sys.argv[2] == "buffer":  # which is packed in no time, so it shall not wait for a second
            tqdm.tqdm = lambda **options: plain(**{**options, "delay": 0})
            pack_native(np.zeros((140, 8), np.float32), sys.argv[1])
        else:
            pack_native(source(), sys.argv[1])
    """
    for source in ("iterator", "buffer"):
        assert "packing" in drawn(code, path, source)
        assert read_table(path)[0]["rows"] == 140


def test_no_bar_is_drawn_without_a_terminal(path, capfd):
    pack_native(np.zeros((10, 8)), path)
    assert capfd.readouterr() == ("", "")


def test_memory_is_bounded_while_an_iterator_is_packed(path):
    # 1 GiB goes through; the bound is for two threads and some room for what Python and Go keep.
    out = run_python(
        """
        import resource, sys
        import numpy as np
        from ngram_store import pack_native
        chunk = np.random.default_rng(0).integers(0, 256, (8192, 512), dtype=np.uint8)
        pack_native([chunk], sys.argv[1], row_bytes=512, threads=2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = pack_native((chunk for _ in range(256)), sys.argv[1], row_bytes=512, level=1, threads=2)
        assert report.raw_bytes == 1 << 30
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        path,
    )
    assert int(out) < 32 << 10, f"{out} KiB"


def test_a_mapped_source_does_not_fill_the_memory(path, tmp_path):
    file = tmp_path / "rows"
    with open(file, "wb") as f:
        f.truncate(512 << 20)
    out = run_python(
        """
        import resource, sys
        import numpy as np
        from ngram_store import pack_native
        rows = np.memmap(sys.argv[2], np.float32, "r").reshape(-1, 128)
        pack_native(rows[:1000], sys.argv[1])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for source in (rows, sys.argv[2]):
            assert pack_native(source, sys.argv[1], row_bytes=512, codec="zstd").raw_bytes == 512 << 20
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        path,
        file,
    )
    assert int(out) < 128 << 10, f"{out} KiB"


def test_tables_are_packed_side_by_side(path, floats):
    wrong = []

    def work(number):
        try:
            for _ in range(5):
                pack_native(floats + number, path.with_name(f"{number % 2}.men"), predictor="auto")
        except BaseException as exc:
            wrong.append(exc)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and sorted(os.listdir(path.parent)) == ["0.men", "1.men"]
    for number in (0, 1):
        _, rows = read_table(path.with_name(f"{number}.men"))
        assert any((rows == as_bytes(floats + n)).all() for n in (number, number + 2))


def test_a_killed_pack_leaves_the_old_table(path, floats):
    pack_native(floats, path)
    asked, tell = os.pipe()

    def chunks():
        for number in range(1 << 60):
            if number == 20:
                os.write(tell, b".")
            yield floats

    pid = os.fork()
    if pid == 0:
        pack_native(chunks(), path, row_bytes=96)
        os._exit(1)
    os.close(tell)
    with open(asked, "rb") as pipe:
        assert pipe.read(1) == b"."  # in the midst of it
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    pack_native(floats[:5], path.with_name("other.men"))
    path.with_name("other.men").unlink()
    assert_holds(path, floats)


def test_packing_leaves_nothing_behind(path):
    run_python(
        """
        import sys
        import numpy as np
        from ngram_store import pack_native
        from tests.processes import assert_no_growth
        rows = np.arange(2048, dtype=np.uint8).reshape(-1, 32)
        def work():
            pack_native(rows, sys.argv[1], predictor="auto", deduplicate=True)
            pack_native(iter(rows), sys.argv[1], row_bytes=32, codec="zstd", deduplicate=True)
            try:
                pack_native([b"x" * 32, b"x"], sys.argv[1], row_bytes=32)
            except ValueError:
                return
            raise SystemExit("no error")
        assert_no_growth(work, 50, 150, kib=16384)
        """,
        path,
    )
