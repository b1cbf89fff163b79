"""NativeRows of damaged files: exceptions of the package, and bounded memory."""

import contextlib
import os
import struct
import zlib

import numpy as np
import pytest

from loaderx import errors
from ngram_store import NativeRows
from tests.processes import run_python
from tests.tables import NONE, RAW, SHUFFLE, XOR, XOR_SHUFFLE, ZLIB, crc32c, forge, header, some_rows

DAMAGED = (errors.CorruptRecordError, errors.StoreFormatError)


def seal(content):
    """Give a header the checksum that fits, so that what is wrong with it must be found otherwise."""
    content[124:128] = struct.pack("<I", crc32c(content[:124]))


@contextlib.contextmanager
def damage_names(path):
    """Let errors about damage pass that name the file."""
    try:
        yield
    except DAMAGED as error:
        if os.fspath(path) not in str(error):
            raise


def exercise(path):
    """Do with a file whatever one can do; return whether it opened."""
    native = None
    with damage_names(path):
        native = NativeRows(path, 1 << 16, "rows")
    if native is None:
        return False
    with native:
        n = min(len(native), 100, (1 << 22) // native.row_bytes)
        for ids in (np.arange(n), len(native) - 1 - np.arange(n), np.zeros(min(n, 1), int)):
            with damage_names(path):
                assert native.gather(ids).shape == (len(ids), native.row_bytes)
        native.prefetch(np.arange(n))
        assert all(-1 <= fault.block < native.info()["blocks"] for fault in native.verify())
    return True


@pytest.mark.parametrize("seed", range(64))
def test_mutated_files_give_errors_or_rows(tmp_path, seed):
    rng = np.random.default_rng(seed)
    rows = some_rows(rng, 60, 16)
    how = {"codec": int(rng.choice([RAW, ZLIB])), "predictor": int(rng.choice([NONE, XOR, SHUFFLE, XOR_SHUFFLE]))}
    path = forge(tmp_path / "t.men", rows, element=4, mapped=bool(rng.integers(2)), **how)
    original = path.read_bytes()
    opened = 0
    for _ in range(40):
        content = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            content[rng.integers(len(content) if rng.random() < 0.5 else 128)] ^= 1 << rng.integers(8)
        if rng.random() < 0.1:
            del content[rng.integers(len(content)) :]
        if len(content) >= 128 and rng.random() < 0.8:
            seal(content)
        path.write_bytes(content)
        opened += exercise(path)
    assert opened


def test_every_truncation_is_refused(tmp_path):
    path = forge(tmp_path / "t.men", some_rows(np.random.default_rng(1), 20, 8))
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(DAMAGED, match=r"t\.men"):
            NativeRows(path)


@pytest.mark.parametrize("place", [16, 20, 24, 32, 40, 48, 56, 64, 72, 80, 88])
def test_hostile_numbers_in_the_header(tmp_path, place):
    path = forge(tmp_path / "t.men", some_rows(np.random.default_rng(2), 20, 8))
    original = path.read_bytes()
    for value in (0, 1, 1 << 31, 1 << 32, 1 << 40, (1 << 60) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        content = bytearray(original)
        size = 4 if place < 24 else 8
        content[place : place + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
        seal(content)
        path.write_bytes(content)
        exercise(path)


def test_a_bomb_is_refused_without_taking_memory(tmp_path):
    # 128 MiB of zeros as one block of 1 MiB, and as one that claims to be of 128 MiB in too few bytes.
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(1 << 7)) + packer.flush()
    for name, rows, content in (("more", 1024, packed), ("less", 1 << 17, packed[:1000])):
        index = struct.pack("<QQIBBHII", 160, len(content), rows, ZLIB, NONE, 0, crc32c(content), 0)
        numbers = rows, rows, 1024, 1, rows, 0, 128, 160, len(content)
        (tmp_path / name).write_bytes(header(3, 1, 0, *numbers, index_sum=crc32c(index)) + index + content)
    run_python(
        """
        import resource, sys
        from loaderx.errors import CorruptRecordError
        from ngram_store import NativeRows
        NativeRows(sys.argv[1] + "/more").close()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for name in ("more", "less"):
            for work in (lambda rows: rows.gather([0]), lambda rows: rows._check()):
                with NativeRows(f"{sys.argv[1]}/{name}") as rows:
                    try:
                        work(rows)
                    except CorruptRecordError as error:
                        assert "block 0" in str(error)
                    else:
                        raise SystemExit("no error")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 16 << 10, f"{grown} KiB"
        """,
        tmp_path,
    )
