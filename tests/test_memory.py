"""How much memory stores take: bounds that do not depend on their size."""

import numpy as np
import pytest

from tests.processes import run_python

STATUS = """
    import os, resource, sys
    import numpy as np
    from loaderx.converter import from_iterator, from_numpy
    from loaderx.dataset import DenseDataset
    from loaderx.zrecord import Zrecord

    def kib(*names):
        with open("/proc/self/status") as f:
            values = dict(line.split(":", 1) for line in f)
        return sum(int(values[name].split()[0]) for name in names)

    folder = os.environ["FOLDER"]
"""


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_converting_a_gigabyte_takes_a_bounded_amount(tmp_path, codec):
    # Two blocks of chunk_bytes (one contiguous copy at most, and what the engine holds) and room
    # for the run-times. The source is a file with a hole, whose pages are given back.
    run_python(
        STATUS
        + f"""
    rows = np.lib.format.open_memmap(folder + "/x.npy", mode="w+", dtype=np.uint8, shape=(1 << 15, 1 << 15))
    from_numpy(folder + "/warm", rows[:4], codec={codec!r})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from_numpy(folder + "/s", rows, codec={codec!r}, chunk_bytes=32 << 20)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 128 << 10, f"peak grew by {{grown}} KiB"
    os.unlink(folder + "/x.npy")
    """,
        FOLDER=str(tmp_path),
        timeout=300,
    )


def test_converting_many_small_records_takes_a_bounded_amount(tmp_path):
    run_python(
        STATUS
        + """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    from_iterator(folder + "/s", (b"ab" for _ in range(1_500_000)), codec="raw")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 << 10, f"peak grew by {grown} KiB"
    """,
        FOLDER=str(tmp_path),
        timeout=300,
    )


def test_random_reading_takes_no_memory_beside_the_page_cache(tmp_path):
    # Mapped pages count as resident while the system keeps them, and are given up at need; what
    # must not grow is the process's own memory.
    run_python(
        STATUS
        + """
    rows = np.random.default_rng(0).integers(0, 256, (1 << 14, 1 << 13), dtype=np.uint8)
    for codec in ("raw", "zstd"):
        from_numpy(f"{folder}/{codec}", rows[: 1 << 13], codec=codec)
    rng = np.random.default_rng(1)
    for codec in ("raw", "zstd"):
        with DenseDataset(f"{folder}/{codec}") as ds:
            out = np.empty((256, 1 << 13), np.uint8)
            for _ in range(20):
                ds.gather(rng.integers(0, len(ds), 256), out=out)
            before = kib("RssAnon")
            for _ in range(400):
                ds.gather(rng.integers(0, len(ds), 256), out=out)
            grown = kib("RssAnon") - before
            assert grown < 4 << 10, f"{codec}: own memory grew by {grown} KiB"
    """,
        FOLDER=str(tmp_path),
    )


def test_opening_a_full_store_takes_next_to_nothing(tmp_path):
    run_python(
        STATUS
        + """
    path = folder + "/s"
    from_numpy(path, np.arange(4))
    DenseDataset(path).close()  # the run-time's own memory
    with open(path + "/meta.zr", "r+b") as f:
        f.seek(12)
        f.write((1 << 24).to_bytes(4, "little"))
    before = kib("RssAnon", "RssFile", "RssShmem")
    ds = DenseDataset(path)
    assert len(ds) == 1 << 24 and ds[3] == 3
    grown = kib("RssAnon", "RssFile", "RssShmem") - before
    assert grown < 5 << 10, f"{grown} KiB"
    """,
        FOLDER=str(tmp_path),
    )


def test_reading_never_writes(tmp_path):
    """Opening and reading leave every file as it was, also its times."""
    from loaderx.converter import from_numpy
    from loaderx.dataset import DenseDataset

    from_numpy(tmp_path / "s", np.arange(1000), codec="zstd")
    before = {f.name: (f.stat().st_mtime_ns, f.stat().st_size) for f in (tmp_path / "s").iterdir()}
    for _ in range(3):
        with DenseDataset(tmp_path / "s") as ds:
            assert ds[:].sum() == 499500
            assert ds.store.verify() == []
            ds.store.stats()
    assert before == {f.name: (f.stat().st_mtime_ns, f.stat().st_size) for f in (tmp_path / "s").iterdir()}
