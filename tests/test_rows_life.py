"""NativeRows over forks, pickles, threads, closing, replaced and shortened files, and long calls."""

import ctypes
import gc
import mmap
import multiprocessing
import os
import pickle
import threading
import time

import numpy as np
import pytest

from loaderx import _engine, errors
from ngram_store import NativeRows, pack_native
from ngram_store._plain import PlainRows
from tests.processes import in_child, run_python
from tests.tables import RAW, SHUFFLE, ZLIB, forge, some_rows, sparse


@pytest.fixture(scope="module")
def rows():
    return some_rows(np.random.default_rng(6), 3000, 64)


@pytest.fixture(params=[RAW, ZLIB], ids=["raw", "zlib"])
def table(request, rows, tmp_path):
    return forge(tmp_path / "t.men", rows, 16, request.param, mapped=False)


def test_a_forked_child_opens_it_anew(table, rows):
    with NativeRows(table, 1 << 20) as native:
        ids = [5, 2999, 5]
        np.testing.assert_array_equal(native.gather(ids), rows[ids])
        for _ in range(20):
            in_child(lambda: np.testing.assert_array_equal(native.gather(ids), rows[ids]))

        def closes():
            native.close()
            with pytest.raises(errors.ClosedError):
                native.gather(ids)

        in_child(closes)
        np.testing.assert_array_equal(native.gather(ids), rows[ids])


def test_a_forked_child_refuses_another_table_in_its_place(table, rows):
    with NativeRows(table) as native:
        other = forge(table.with_name("other"), rows[:10])
        os.replace(other, table)

        def work():
            with pytest.raises(errors.StoreFormatError, match="replaced"):
                native.gather([1])

        in_child(work)
        np.testing.assert_array_equal(native.gather([2999]), rows[[2999]])


@pytest.fixture(params=["1 raw", "1 zlib", "2 xor", "3 raw", "3 zstd", "plain"])
def any_sort(request):
    """A function that writes rows at a path in some form, and one that opens what it wrote."""
    name = request.param

    def write(rows, path):
        if name == "plain":
            path.write_bytes(rows.tobytes())
            return
        version, codec = name.split()
        predictor, codec = (codec, "zlib") if codec == "xor" else (None, codec)
        pack_native(rows, path, version=int(version), codec=codec, predictor=predictor)

    return write, (lambda path: PlainRows(path, 64)) if name == "plain" else NativeRows


def replace_alike(write, path, rows):
    """Put a table of other rows, but of the same shape, in a table's place."""
    write(rows[::-1].copy(), path.with_name("other"))
    os.replace(path.with_name("other"), path)


def said(native, ids):
    """Return what a table in another process says."""
    try:
        return native.gather(ids).tobytes()
    except errors.StoreFormatError as error:
        return str(error)


def test_a_forked_child_refuses_a_table_of_the_same_shape_in_its_place(any_sort, rows, tmp_path):
    write, open_ = any_sort
    path = tmp_path / "t.men"
    write(rows, path)
    with open_(path) as native:
        in_child(lambda: np.testing.assert_array_equal(native.gather([1]), rows[[1]]))
        replace_alike(write, path, rows)

        def work():
            for _ in range(2):
                with pytest.raises(errors.StoreFormatError, match="replaced by another table"):
                    native.gather([1])

        in_child(work)
        np.testing.assert_array_equal(native.gather([1]), rows[[1]])


def test_a_forked_child_refuses_a_table_that_was_written_over(any_sort, rows, tmp_path):
    write, open_ = any_sort
    path = tmp_path / "t.men"
    write(rows, path)
    with open_(path) as native:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\xff")
        os.utime(path, ns=(0, 0))  # whatever the grain of its times

        def work():
            with pytest.raises(errors.StoreFormatError, match="changed or replaced"):
                native.gather([1])

        in_child(work)


def test_pickles_refuse_a_table_of_the_same_shape_in_its_place(any_sort, rows, tmp_path):
    write, open_ = any_sort
    path = tmp_path / "t.men"
    write(rows, path)
    with open_(path) as native, multiprocessing.get_context("spawn").Pool(1) as workers:
        assert workers.apply(said, (native, [1, 2])) == rows[[1, 2]].tobytes()
        pickled = pickle.dumps(native)
        again = pickle.dumps(pickle.loads(pickled))  # of one that was never opened
        replace_alike(write, path, rows)
        for one in (pickled, again):
            with pickle.loads(one) as other, pytest.raises(errors.StoreFormatError, match="replaced by another table"):
                other.gather([1])
        assert "replaced by another table" in workers.apply(said, (native, [1, 2]))


def test_a_pickle_takes_a_copy_of_a_table_if_that_has_checksums(any_sort, rows, tmp_path):
    write, open_ = any_sort
    path = tmp_path / "t.men"
    write(rows, path)
    with open_(path) as native:
        version = native.info()["version"]
        pickled = pickle.dumps(native)
    path.with_name("copy").write_bytes(path.read_bytes())
    os.replace(path.with_name("copy"), path)
    with pickle.loads(pickled) as other:
        if version == 3:
            np.testing.assert_array_equal(other.gather([1]), rows[[1]])
        else:
            with pytest.raises(errors.StoreFormatError, match="replaced"):
                other.gather([1])


def test_pickles_from_before_there_was_an_identity_are_taken(table, rows):
    with NativeRows(table) as native:
        state = native.__getstate__()
    del state["opened"]
    again = NativeRows.__new__(NativeRows)
    again.__setstate__(state)
    np.testing.assert_array_equal(again.gather([3]), rows[[3]])
    again.close()


def read_rows(native, ids):
    return native.gather(ids).tobytes()


def test_it_is_pickled_as_path_and_options(table, rows, monkeypatch):
    monkeypatch.chdir(table.parent)
    with NativeRows("t.men", 1 << 20, "rows", threads=1, query_chunk_rows=None) as native:
        pickled = pickle.dumps(native)
        monkeypatch.chdir("/")
        with pickle.loads(pickled) as again:
            assert again.__getstate__() == native.__getstate__()
            assert len(again) == 3000
            np.testing.assert_array_equal(again.gather([7]), rows[[7]])
        with multiprocessing.get_context("spawn").Pool(1) as workers:
            assert workers.apply(read_rows, (native, [1, 2])) == rows[[1, 2]].tobytes()
    with pytest.raises(errors.ClosedError):
        pickle.dumps(native)
    closed = pickle.loads(pickled)
    closed.close()
    with pytest.raises(errors.ClosedError):
        closed.gather([1])


def test_a_closed_table_says_so(table):
    native = NativeRows(table)
    native.close()
    native.close()
    assert native.closed and "closed" in repr(native)
    for call in (lambda: native.gather([1]), lambda: native.gather_into([], b""), lambda: native.prefetch([1]),
                 native.stats, native.verify, native.checksum, lambda: native.set_cache(0)):  # fmt: skip
        with pytest.raises(errors.ClosedError, match=r"t\.men"):
            call()


def test_it_is_closed_when_nobody_refers_to_it(table):
    gc.disable()
    try:
        before = _engine.lib.NumHandles()
        NativeRows(table).gather([1])
        assert _engine.lib.NumHandles() == before
    finally:
        gc.enable()


def test_a_replaced_file_keeps_its_bytes_for_who_has_it_open(table, rows):
    with NativeRows(table) as native:
        os.replace(forge(table.with_name("new"), rows[::-1]), table)
        np.testing.assert_array_equal(native.gather(np.arange(3000)), rows)
        with NativeRows(table) as new:
            np.testing.assert_array_equal(new.gather(np.arange(3000)), rows[::-1])
        os.unlink(table)
        np.testing.assert_array_equal(native.gather(np.arange(3000)), rows)


def test_a_table_takes_no_descriptor(table):
    before = len(os.listdir("/proc/self/fd"))
    opened = [NativeRows(table) for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) == before
    for native in opened:
        native.close()


@pytest.mark.parametrize("codec", [RAW, ZLIB])
def test_a_file_shortened_under_a_gather_is_an_error(rows, tmp_path, codec):
    path = forge(tmp_path / "t.men", np.tile(rows, (8, 4)), 64, codec, mapped=False)
    with NativeRows(path, 1 << 16, "rows") as native:
        ids = np.random.default_rng(1).integers(0, len(native), 100_000)
        native.gather(ids[:100])
        cut = threading.Timer(0.01, os.truncate, (path, 4096))
        cut.start()

        def gather_on():
            for _ in range(10_000):
                native.gather(ids)

        with pytest.raises(errors.FileFaultError, match=r"t\.men"):
            gather_on()
        cut.join()
        with pytest.raises(errors.FileFaultError):
            native.gather([len(native) - 1, 23_000])
        assert native.verify()
        native.prefetch(ids)


@pytest.mark.parametrize("policy", ["blocks", "rows"])
def test_many_threads_on_one_table_while_others_open_and_close(rows, tmp_path, policy):
    path = forge(tmp_path / "t.men", rows, 16, predictor=SHUFFLE, element=4)
    failures = []
    with NativeRows(path, 60_000, policy) as native:

        def read(seed):
            rng = np.random.default_rng(seed)
            try:
                for _ in range(40):
                    ids = rng.integers(0, rng.integers(1, 3000), rng.integers(1, 500))
                    np.testing.assert_array_equal(native.gather(ids), rows[ids])
                    if seed % 8 == 0:
                        native.prefetch(ids)
                        with NativeRows(path, 1 << 16, policy) as other:
                            np.testing.assert_array_equal(other.gather(ids), rows[ids])
                    if seed == 1:
                        native.set_cache(int(rng.integers(0, 100_000)))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def test_closing_while_others_gather_is_safe(table, rows):
    for _ in range(10):
        native, failures = NativeRows(table, 1 << 16), []

        def read(native=native, failures=failures):
            ids = np.arange(3000)
            try:
                while True:
                    np.testing.assert_array_equal(native.gather(ids), rows)
            except errors.ClosedError:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        native.close()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]


def resident_pages(path):
    """Return how many pages of a file are in the system's cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-view.size // mmap.PAGESIZE), np.uint8)
        size, out = ctypes.c_size_t(view.size), ctypes.c_void_p(pages.ctypes.data)
        assert libc.mincore(ctypes.c_void_p(view.ctypes.data), size, out) == 0
        del view
    return int((pages & 1).sum())


@pytest.mark.parametrize("codec", [RAW, ZLIB])
def test_prefetch_brings_rows_into_the_systems_cache(tmp_path, codec):
    noise = np.random.default_rng(1).integers(0, 255, (4000, 4096)).astype(np.uint8) & 15
    path = forge(tmp_path / "t.men", noise, 16, codec, mapped=codec != RAW, checked=False)
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with NativeRows(path) as native:
        before, deadline = resident_pages(path), time.monotonic() + 20
        native.prefetch(np.arange(0, 4000, 40))
        while (now := resident_pages(path)) < min(before + 90, path.stat().st_size // 4096):
            assert time.monotonic() < deadline, f"{before} pages before, {now} after"
            time.sleep(0.01)


LONG = """
    import os
    import numpy as np
    from ngram_store import NativeRows
    from tests.tables import forge, sparse
    path = os.environ["FOLDER"] + "/t.men"
    {make}
    rows = NativeRows(path, query_chunk_rows={chunk})
    ids = np.zeros({n}, np.int64)
    ids[:] = np.arange(len(ids)) % len(rows)
    out = np.empty((len(ids), rows.row_bytes), np.uint8)
    rows.gather_into(ids[:10], out[:10])
    try:
        print("ready", flush=True)
        while True:
            rows.gather_into(ids, out)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize(
    ("make", "chunk", "n"),
    [
        ("sparse(path, 1 << 20, 4096)", 65536, 200_000),
        ("forge(path, np.zeros((64, 1 << 21), np.uint8), 8)", "None", 300),
    ],
)
def test_ctrl_c_ends_a_long_gather(interrupted, tmp_path, monkeypatch, make, chunk, n):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    out, err = interrupted(LONG.format(make=make, chunk=chunk, n=n), timeout=20)
    assert out == "interrupted\n", err


def test_a_sparse_table_of_64_gib_takes_the_memory_of_scratch_and_cache(tmp_path):
    path = tmp_path / "t.men"
    first = sparse(path, 1 << 27, 512)
    marked = np.random.default_rng(3).integers(0, 1 << 27, 100)
    with open(path, "r+b") as file:
        for row in marked:
            file.seek(first + int(row) * 512)
            file.write(int(row).to_bytes(8, "little"))
    run_python(
        """
        import sys, time
        import numpy as np
        from ngram_store import NativeRows
        from tests.test_memory import STATUS
        exec(__import__("textwrap").dedent(STATUS).split("folder =")[0])
        NativeRows(sys.argv[1]).gather([0])  # the run-time's own memory
        marked = np.random.default_rng(3).integers(0, 1 << 27, 100)
        rng = np.random.default_rng(4)
        out = np.zeros((4096, 512), np.uint8)
        before, mapped = kib("RssAnon"), kib("RssFile")
        rows = NativeRows(sys.argv[1], cache_bytes=1 << 30)
        assert len(rows) == 1 << 27
        opened = kib("RssAnon") - before, kib("RssFile") - mapped
        assert opened[0] < 2 << 10 and opened[1] < 1 << 10, f"opening took {opened} KiB: it reads more than the header"
        assert rows.gather(marked, dtype="u8")[:, 0].tolist() == marked.tolist()
        want = np.zeros((4096, 64), np.uint64)
        for _ in range(30):
            ids = rng.integers(0, 1 << 27, 4096)
            out[:] = 0xEE
            rows.gather_into(ids, out)
            want[:, 0] = np.where(np.isin(ids, marked), ids, 0)
            assert (out.view(np.uint64) == want).all()
        rows.prefetch(marked)
        grown = kib("RssAnon") - before
        assert grown < 8 << 10, f"own memory grew by {grown} KiB"
        # What was read of the mapped file is page cache: a page a row, or two.
        grown = kib("RssFile") - mapped
        assert grown < 130_000 * 2 * 4, f"mapped memory grew by {grown} KiB"
        """,
        path,
    )


def test_without_memory_for_a_block_there_is_an_exception(tmp_path):
    for number, options in enumerate([{}, {"predictor": "shuffle", "element_bytes": 4}]):
        pack_native(np.zeros((2, 200 << 20), np.uint8), tmp_path / f"{number}", codec="zstd", block_rows=1, **options)
    run_python(
        """
        import resource, sys
        import numpy as np
        from loaderx import errors
        from ngram_store import NativeRows, pack_native

        tables = [NativeRows(f"{sys.argv[1]}/{number}") for number in range(2)]
        wide = np.zeros((300, 1 << 20), np.uint8)
        out = np.empty(200 << 20, np.uint8)
        calls = [lambda table=table: table.gather_into([1], out) for table in tables]
        calls += [lambda table=table: table.embedding_bag([[1]], dtype="fp32") for table in tables]
        calls.append(lambda: pack_native(wide, f"{sys.argv[1]}/new", block_rows=200))
        small = f"{sys.argv[1]}/small"
        pack_native(wide[:, :64], small, codec="zstd", block_rows=2)  # starts what the packer needs
        limits = resource.getrlimit(resource.RLIMIT_AS)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), limits[1]))
        for call in calls:
            try:
                call()
            except (errors.OutOfMemoryError, MemoryError) as error:
                assert not isinstance(error, errors.OutOfMemoryError) or "memory" in str(error)
            else:
                raise SystemExit("there was enough memory")
        assert not NativeRows(small).gather([5]).any()
        resource.setrlimit(resource.RLIMIT_AS, limits)
        for table in tables:
            out[:] = 1
            table.gather_into([1], out)
            assert not out.any()
        """,
        tmp_path,
    )
