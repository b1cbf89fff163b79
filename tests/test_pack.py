"""`ngram_store.pack_native`: what it takes, what it writes, what it refuses."""

import hashlib
import os
import stat

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import ngram_store
from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset
from loaderx.errors import (
    ArgumentError,
    DtypeError,
    StoreExistsError,
    StoreFormatError,
    StoreIOError,
    StoreNotFoundError,
    ZrecordError,
)
from ngram_store import pack_native
from tests.processes import run_python
from tests.reference_table import assert_holds, read_table


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


def test_everything_that_a_source_may_be(path, floats, tmp_path):
    raw = floats.tobytes()
    file = tmp_path / "raw"
    file.write_bytes(raw)
    np.save(tmp_path / "rows.npy", floats)
    from_numpy(tmp_path / "store", floats)
    data_set = DenseDataset(tmp_path / "store")
    sources = {
        "str": str(file),
        "path": file,
        "bytes": raw,
        "bytearray": bytearray(raw),
        "memoryview": memoryview(raw),
        "array": floats,
        "flat array": floats.reshape(-1),
        "three dimensions": floats.reshape(3000, 6, 4),
        "read-only": np.frombuffer(raw, np.float32).reshape(3000, 24),
        "mapped": np.load(tmp_path / "rows.npy", mmap_mode="r"),
        "Fortran": np.asfortranarray(floats),
        "strided": np.repeat(floats, 2, axis=0)[::2],
        "tensor": torch.from_numpy(floats),
        "tensor with a gradient": torch.from_numpy(floats).requires_grad_(),
        "transposed tensor": torch.from_numpy(np.asfortranarray(floats)),
        "chunks of arrays": (floats[i : i + 7] for i in range(0, 3000, 7)),
        "chunks of bytes": [raw[i : i + 96 * 1000] for i in range(0, len(raw), 96 * 1000)],
        "rows": iter(floats),
        "chunks of tensors": torch.from_numpy(floats).split(500),
        "chunks, some empty": [floats[:0], floats[:1000], b"", floats[1000:]],
        "data set": data_set,
    }
    for name, source in sources.items():
        report = pack_native(source, path, row_bytes=96)
        header = assert_holds(path, floats)
        assert (report.rows, report.version, header["version"]) == (3000, 3, 3), name
        assert report.file_bytes == path.stat().st_size and report.identity, name
    data_set.close()


def test_rows_of_every_dtype_are_their_bytes(path):
    values = torch.arange(600).reshape(100, 6)
    names = "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 bool float8_e4m3fn"
    for name in names.split():
        tensor = values.to(getattr(torch, name))
        report = pack_native(tensor, path, predictor="shuffle")
        header, rows = read_table(path)
        np.testing.assert_array_equal(rows, tensor.view(torch.uint8).numpy())
        want = {1: 2, 16: 8}.get(tensor.element_size(), tensor.element_size())
        if name == "complex64":
            want = 4
        assert report.element_bytes == header["element"] and header["element"] in (0, want), name
    conjugate = torch.full((10, 2), 3 + 4j).conj()
    pack_native(conjugate, path)
    np.testing.assert_array_equal(read_table(path)[1].view(np.complex64), np.full((10, 2), 3 - 4j, np.complex64))


def test_jax_arrays_are_sources(path, floats):
    pack_native(jnp.asarray(floats), path)
    assert_holds(path, floats)
    pack_native(jnp.asarray(floats, jnp.bfloat16), path)
    assert read_table(path)[0]["row_bytes"] == 48


def test_versions_come_from_what_is_in_the_table(path, floats, rng):
    noise = rng.integers(0, 256, (500, 32), dtype=np.uint8)
    steps = noise[:1] ^ (np.arange(500)[:, None] == np.arange(32)[None, :] + 100).astype(np.uint8)
    steps = np.bitwise_xor.accumulate(steps ^ (rng.random((500, 32)) < 0.02), axis=0).astype(np.uint8)
    for data, options, version, encodings in [
        (floats, {"version": 1}, 1, {(1, 0)}),
        (noise, {"version": 2, "predictor": "xor"}, 1, {(0, 0)}),
        (steps, {"version": 2, "predictor": "xor"}, 2, {(1, 1)}),
        (steps, {"version": 2, "predictor": "auto"}, 2, {(1, 1)}),
        (steps, {"version": 1, "predictor": "auto"}, 1, None),
        (noise, {"codec": "raw", "version": 1}, 1, {(0, 0)}),
        (floats, {}, 3, {(1, 0)}),
        (floats, {"predictor": "shuffle"}, 3, {(1, 2)}),
    ]:
        report = pack_native(data, path, **options)
        header = assert_holds(path, data)
        assert header["version"] == report.version == version, options
        assert encodings is None or header["encodings"] == encodings, options
        assert bool(header["flags"] & 1) == (version == 3) == report.identity
        assert sum(e.blocks for e in report.encodings) == report.blocks == header["blocks"]
        assert sum(e.bytes for e in report.encodings) == report.block_bytes


def test_shuffle_makes_floats_smaller(path, floats):
    sizes = {p: pack_native(floats, path, predictor=p).block_bytes / floats.nbytes for p in (None, "xor", "shuffle")}
    assert sizes["shuffle"] < 0.87 < sizes[None] < 0.96
    assert sizes["xor"] <= sizes[None]
    assert pack_native(floats, path, predictor="auto").block_bytes <= sizes["shuffle"] * floats.nbytes


def test_zstd_tables(path, floats):
    report = pack_native(floats, path, codec="zstd", predictor="auto", level=1)
    assert report.version == 3 and report.block_bytes < 0.95 * floats.nbytes
    assert {e.codec for e in report.encodings} <= {"zstd", "raw"}


@pytest.mark.parametrize("kind", ["array", "file", "chunks", "mapped", "strided"])
@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("deduplicate", [False, True])
def test_order_and_sharing_keep_row_numbers(path, tmp_path, rng, kind, order, deduplicate):
    rows = rng.integers(0, 4, (5000, 6), dtype=np.uint8)
    rows[:3] = 9
    file = tmp_path / "rows"
    rows.tofile(file)
    source = {
        "array": rows,
        "file": file,
        "chunks": np.array_split(rows, 17),
        "mapped": np.memmap(file, np.uint8, "r", shape=rows.shape),
        "strided": np.asfortranarray(rows),
    }[kind]
    permutation = rng.permutation(5000).astype(rng.choice(["int16", "uint32", "int64", ">i8"])) if order else None
    report = pack_native(
        source, path, row_bytes=6, block_rows=100, row_order=permutation, deduplicate=deduplicate, sha256=True
    )
    header = assert_holds(path, rows)
    distinct = len(np.unique(rows, axis=0)) if deduplicate else 5000
    assert header["stored"] == report.stored_rows == distinct and report.shared_rows == 5000 - distinct
    assert bool(header["flags"] & 1) == (not order and not deduplicate)
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    if order and not deduplicate:
        places = np.frombuffer(path.read_bytes(), "<u8", 5000, 128)
        np.testing.assert_array_equal(places[permutation.astype(np.int64)], np.arange(5000))


def test_blocks_keep_to_both_bounds(path):
    rows = np.zeros((1000, 24), np.uint8)
    for block_rows, most, want in [(256, None, 256), (256, 240, 10), (256, 1, 1), (3, 10**9, 3), (10**30, 2**80, None)]:
        if want is None:
            with pytest.raises(ArgumentError, match="62 bits"):
                pack_native(rows, path, block_rows=block_rows, max_block_bytes=most)
            continue
        report = pack_native(rows, path, block_rows=block_rows, max_block_bytes=most)
        assert report.block_rows == want == read_table(path)[0]["block_rows"]
    assert pack_native(rows, path, block_rows=(1 << 62) - 1).block_rows == (1 << 28) // 24


@pytest.mark.parametrize("source", [b"", [], np.empty((0, 8), np.float32), iter([b"", b""])])
@pytest.mark.parametrize("options", [{}, {"deduplicate": True}, {"row_order": []}, {"version": 1, "codec": "raw"}])
def test_no_rows_make_a_table(path, source, options):
    report = pack_native(source, path, row_bytes=32, **options)
    header, rows = read_table(path)
    assert rows.shape == (0, 32) and report.rows == header["blocks"] == report.ratio == 0


class Plain:
    """Nothing that rows can come from."""


BAD = [
    (b"x" * 12, {"row_bytes": 0}, ArgumentError, "row_bytes must be at least 1, got 0"),
    (b"x" * 12, {"row_bytes": -4}, ArgumentError, "row_bytes must be at least 1, got -4"),
    (b"x" * 12, {"row_bytes": 2**30 + 1}, ArgumentError, "rows of 1073741825 bytes"),
    (b"x" * 12, {"row_bytes": 2**70}, ArgumentError, "fit into 62 bits"),
    (b"x" * 12, {"row_bytes": 4.0}, DtypeError, "row_bytes must be an int, got float"),
    (b"x" * 12, {}, ArgumentError, "row_bytes is needed"),
    (b"x" * 12, {"row_bytes": 5}, ArgumentError, "12 bytes, which are not whole rows of 5"),
    (np.zeros(3), {}, ArgumentError, "row_bytes is needed"),
    (np.zeros((3, 4)), {"row_bytes": 48}, ArgumentError, "has rows of 32 bytes"),
    (np.zeros((3, 0)), {}, ArgumentError, "row_bytes must be at least 1, got 0"),
    (np.array([{}]), {"row_bytes": 8}, DtypeError, "Python objects"),
    (np.ma.zeros((2, 4)), {}, DtypeError, "mask"),
    (3, {"row_bytes": 4}, DtypeError, "got builtins.int"),
    (None, {"row_bytes": 4}, DtypeError, "got builtins.NoneType"),
    (Plain(), {"row_bytes": 4}, DtypeError, "Plain"),
    ([b"x" * 8, b"x" * 7], {"row_bytes": 4}, ArgumentError, "chunk 1 has 7 bytes, which are not whole rows of 4"),
    ([b"x" * 8, "text"], {"row_bytes": 4}, DtypeError, "chunk 1: expected an array or a buffer, got builtins.str"),
    (
        [[1, 2], [3, 4]],
        {"row_bytes": 4},
        DtypeError,
        "a list that begins with a list; pass numpy.asarray",
    ),
    ([b"x" * 4, np.array([{}])], {"row_bytes": 4}, DtypeError, "chunk 1: dtype object"),
    (b"x" * 12, {"row_bytes": 4, "block_rows": 0}, ArgumentError, "block_rows must be at least 1, got 0"),
    (b"x" * 12, {"row_bytes": 4, "block_rows": None}, DtypeError, "block_rows must be an int"),
    (b"x" * 12, {"row_bytes": 4, "max_block_bytes": 0}, ArgumentError, "max_block_bytes must be at least 1"),
    (b"x" * 12, {"row_bytes": 4, "codec": "lz4"}, ArgumentError, 'unknown codec "lz4"'),
    (b"x" * 12, {"row_bytes": 4, "codec": None}, DtypeError, "codec must be a str"),
    (b"x" * 12, {"row_bytes": 4, "predictor": "up"}, ArgumentError, 'unknown predictor "up"'),
    (b"x" * 12, {"row_bytes": 4, "predictor": 1}, DtypeError, "predictor must be a str"),
    (b"x" * 12, {"row_bytes": 4, "level": 10}, ArgumentError, "level 10: want 1 to 9"),
    (b"x" * 12, {"row_bytes": 4, "level": 23, "codec": "zstd"}, ArgumentError, "level 23: want 1 to 22"),
    (b"x" * 12, {"row_bytes": 4, "element_bytes": 3}, ArgumentError, "elements of 3 bytes in rows of 4"),
    (b"x" * 12, {"row_bytes": 4, "version": 4}, ArgumentError, "version 4: want 1 to 3"),
    (b"x" * 12, {"row_bytes": 4, "version": 2, "codec": "zstd"}, ArgumentError, "zstd needs version 3"),
    (b"x" * 12, {"row_bytes": 4, "version": 2, "predictor": "shuffle"}, ArgumentError, "does not go with version 2"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [0, 1]}, ArgumentError, "names 2 rows, and there are 3"),
    (b"x" * 12, {"row_bytes": 4, "row_order": []}, ArgumentError, "names 0 rows, and there are 3"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [0, 1, 3]}, ArgumentError, "row 3 at place 2: want 0 to 2"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [0, -1, 2]}, ArgumentError, "row -1 at place 1"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [2, 1, 2]}, ArgumentError, "row 2 at places 0 and 2"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [0.0, 1.0, 2.0]}, DtypeError, "row_order must be integers, got float64"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [True, False, True]}, DtypeError, "row_order must be integers, got bool"),
    (b"x" * 12, {"row_bytes": 4, "row_order": [[0, 1, 2]]}, ArgumentError, "one dimension"),
    (b"x" * 12, {"row_bytes": 4, "row_order": np.array([0, 1, 2**63], np.uint64)}, ArgumentError, "at place 2"),
    (b"x" * 12, {"row_bytes": 4, "row_order": 5}, ArgumentError, "one dimension"),
]


@pytest.mark.parametrize("source, options, kind, text", BAD, ids=[text for *_, text in BAD])
def test_bad_arguments_leave_the_old_table(path, source, options, kind, text):
    path.write_bytes(b"MEFTNAT1 old")
    with pytest.raises(kind) as caught:
        pack_native(source, path, **options)
    assert text in str(caught.value)
    assert os.listdir(path.parent) == [path.name] and path.read_bytes() == b"MEFTNAT1 old"


def test_bad_places_and_sources(path, tmp_path, floats):
    for place, kind in [(tmp_path, StoreIOError), (__file__ + "/none/x", StoreIOError), ("", ArgumentError)]:
        with pytest.raises(kind):
            pack_native(floats, place)
    with pytest.raises(OSError, match="directory") as caught:
        pack_native(floats, tmp_path)
    assert caught.value.errno == 21
    with pytest.raises(StoreNotFoundError):
        pack_native(tmp_path / "missing", path, row_bytes=4)
    with pytest.raises(StoreFormatError):
        pack_native(tmp_path, path, row_bytes=4)
    with open(__file__, "rb") as file, pytest.raises(DtypeError, match="pass its path"):
        pack_native(file, path, row_bytes=4)
    same = tmp_path / "same"
    same.write_bytes(b"abcd")
    with pytest.raises(StoreExistsError, match="no table"):
        pack_native(same, same, row_bytes=4)
    assert same.read_bytes() == b"abcd" and os.listdir(path.parent) == []


def test_what_an_iterator_raises_comes_through(path, floats):
    pack_native(floats[:10], path)

    def chunks():
        yield floats
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        pack_native(chunks(), path, row_bytes=96)
    assert_holds(path, floats[:10])


def test_permissions_and_links(path, floats, tmp_path):
    pack_native(floats, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    link = tmp_path / "link.men"
    link.symlink_to(path)
    with open(path, "rb") as reader:
        before = path.read_bytes()
        pack_native(floats[::-1], link)
        assert reader.read() == before
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert_holds(path, floats[::-1])


def test_a_write_error_leaves_the_old_table(path):
    run_python(
        """
        import os, resource, sys
        import numpy as np
        from loaderx.errors import StoreIOError
        from ngram_store import pack_native
        path = sys.argv[1]
        small = np.arange(64, dtype=np.uint8).reshape(8, 8)
        pack_native(small, path)
        before = open(path, "rb").read()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        large = np.random.default_rng(0).integers(0, 256, (1 << 16, 64), dtype=np.uint8)
        for source in (large, np.array_split(large, 9)):
            try:
                pack_native(source, path, row_bytes=64, codec="raw")
            except StoreIOError as error:
                assert error.errno == 27, error
            else:
                raise SystemExit("no error")
            assert open(path, "rb").read() == before and os.listdir(os.path.dirname(path)) == ["rows.men"]
        """,
        path,
    )


def test_a_read_only_folder_is_an_error(path):
    path.parent.chmod(0o500)
    run_python(
        """
        import os, sys
        from loaderx.errors import StorePermissionError
        from ngram_store import pack_native
        pack_native(b"abcd", sys.argv[2], row_bytes=4)
        if os.geteuid() == 0:
            os.setresuid(12345, 12345, 12345)  # root may write anywhere
        try:
            pack_native(b"abcd", sys.argv[1], row_bytes=4)
        except StorePermissionError as error:
            assert error.errno == 13, error
        else:
            raise SystemExit("no error")
        """,
        path,
        path.parent.parent / "elsewhere",
    )
    path.parent.chmod(0o700)
    assert os.listdir(path.parent) == []


def test_errors_are_the_packages_own():
    assert issubclass(ArgumentError, ZrecordError) and "pack_native" in ngram_store.__all__
