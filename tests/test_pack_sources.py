"""Sources of tables that look like rows and are not."""

import json
import warnings

import numpy as np
import pytest
import torch

from loaderx.errors import ArgumentError, DtypeError
from ngram_store import pack_native, pack_quantized_file
from tests.processes import run_python


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.men"


def test_files_that_hold_more_than_rows_are_refused(path, tmp_path, rng):
    floats = rng.normal(size=(10, 4)).astype(np.float32)
    np.save(tmp_path / "w.npy", floats)
    np.savez(tmp_path / "w.npz", floats)
    pack_native(floats, tmp_path / "other.men")
    torch.save(torch.from_numpy(floats), tmp_path / "w.pt")
    safetensors(tmp_path / "w.safetensors", floats)
    for name, text, to in (
        ("w.npy", "a .npy file: pass numpy.load.*", " to pack_quantized"),
        ("w.npz", "a zip archive .* load it and pass the array", " to pack_quantized"),
        ("w.pt", "a zip archive .* load it and pass the array", " to pack_quantized"),
        ("w.safetensors", "a .safetensors file: load it and pass the tensor", " to pack_quantized"),
        ("other.men", "a table already", ""),
    ):
        with pytest.raises(ArgumentError, match=f"is no file of rows alone, but {text}$"):
            pack_native(tmp_path / name, path, row_bytes=4)
        with pytest.raises(ArgumentError, match=f"is no file of rows alone, but {text}{to}$"):
            pack_quantized_file(tmp_path / name, tmp_path / "q", 1, "int8")
    assert not path.exists() and not (tmp_path / "q").exists()


def safetensors(path, floats):
    """Write a file as the package of that name does."""
    entry = {"dtype": "F32", "shape": floats.shape, "data_offsets": [0, floats.nbytes]}
    header = json.dumps({"w": entry}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + floats.tobytes())


def test_rows_that_begin_like_a_header_are_rows(path, tmp_path):
    """Of int64, those of which the second is the two characters that an object of JSON begins with."""
    for first in (100, 2, 790, 793, 1 << 60):
        np.array([first, int.from_bytes(b'{"', "little"), *range(98)]).tofile(tmp_path / "raw")
        assert pack_native(tmp_path / "raw", path, row_bytes=8).rows == 100


def test_chunks_of_other_rows_are_refused(path):
    chunks = [np.zeros((10, 4), np.float32), np.zeros((3, 4))]
    with pytest.raises(ArgumentError, match=r"chunk 1 has the shape .3, 4. and rows of 32 bytes, not of 16"):
        pack_native(iter(chunks), path)
    with pytest.raises(DtypeError, match="chunk 0"):
        pack_native(iter([None, chunks[0]]), path, row_bytes=16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to remove them
        quantized = torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.quint8)
    for source in (quantized, iter([quantized])):
        with pytest.raises(DtypeError, match="quantized"):
            pack_native(source, path)
    assert not path.exists()


def test_a_forked_child_leaves_rows_that_are_reordered_alone(path):
    run_python(
        """
        import os, sys
        import numpy as np
        from loaderx.errors import ForkError
        from ngram_store import NativeRows, pack_native
        path, folder = sys.argv[1], os.path.dirname(sys.argv[1])
        rows = np.random.default_rng(0).integers(0, 256, (4096, 8), dtype=np.uint8)
        order = np.random.default_rng(1).permutation(4096)
        def ended(pid):
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        def chunks():
            for i, chunk in enumerate(np.array_split(rows, 300)):
                if i == 100:
                    pid = os.fork()
                    if pid == 0:
                        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                                if os.path.exists(f"/proc/self/fd/{fd}") or os.path.islink(f"/proc/self/fd/{fd}")]
                        assert not [name for name in held if name.startswith(folder)], held
                        sys.exit(0)  # goes up through the call, and writes what is buffered
                    ended(pid)
                if i == 200 and (pid := os.fork()):
                    ended(pid)
                yield chunk
        child = False
        parent = os.getpid()
        try:
            pack_native(chunks(), path, row_bytes=8, row_order=order)
        except ForkError as error:
            assert os.getpid() != parent and "child" in str(error), error
            sys.exit(0)
        assert os.getpid() == parent
        with NativeRows(path) as table:
            assert (table.gather(np.arange(4096)) == rows).all()
        assert os.listdir(folder) == [os.path.basename(path)]
        """,
        path,
    )


def test_a_full_disk_under_rows_that_are_reordered_names_the_folder(path):
    run_python(
        """
        import os, resource, sys
        import numpy as np
        from loaderx.errors import StoreIOError
        from ngram_store import pack_native
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        for size in 64, 1 << 14:  # what is collected first, and what is not
            rows = np.zeros(((4 << 20) // size, size), np.uint8)
            for pieces in 9, 1:
                try:
                    pack_native(iter(np.array_split(rows, pieces)), sys.argv[1], row_order=np.arange(len(rows)))
                except StoreIOError as error:
                    assert error.errno == 27 and os.path.dirname(sys.argv[1]) in str(error), error
                    assert "reordered" in str(error), error
                else:
                    raise SystemExit("no error")
        assert os.listdir(os.path.dirname(sys.argv[1])) == []
        """,
        path,
    )


def test_a_forked_child_leaves_a_bundle_that_is_written_alone(tmp_path):
    run_python(
        """
        import os, sys
        import numpy as np
        from ngram_store import QuantizedRows, pack_quantized
        numbers = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
        class Forking:
            shape, dtype = numbers.shape, numbers.dtype
            def __getitem__(self, index):
                if index.start == 500:
                    pid = os.fork()
                    if pid == 0:
                        sys.exit(0)
                    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                return numbers[index]
        for native in True, False:
            path = f"{sys.argv[1]}/{native}"
            pack_quantized(Forking(), path, "fp32", native=native, chunk_rows=10)
            with QuantizedRows(path, verify=True) as rows:
                assert (rows.gather(np.arange(1000)) == numbers).all()
        """,
        tmp_path,
    )
