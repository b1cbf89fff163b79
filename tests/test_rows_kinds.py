"""What rows consist of, recorded in the table: packing, reading, and what does not agree."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    NativeRows,
    QuantizedRows,
    cli,
    export_embedding,
    export_embedding_bag,
    open_embedding_bag,
    pack_native,
    pack_quantized,
)
from ngram_store.quantizer import QUANTIZED
from tests.reference_table import read_table
from tests.tables import RAW, crc32c, forge

#: By name: the number of FORMAT.md, and the dtype of NumPy's that is the same.
KINDS = {
    "fp32": (1, np.float32),
    "fp64": (2, np.float64),
    "fp16": (3, np.float16),
    "bf16": (4, ml_dtypes.bfloat16),
    "int8": (5, None),
    "uint8_rowwise": (6, None),
    "int4_rowwise": (7, None),
}
FLOATS = {name: dtype for name, (_, dtype) in KINDS.items() if dtype}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.men"


def numbers(dtype, shape=(50, 8)):
    return np.random.default_rng(3).integers(-9, 9, shape).astype(dtype)


# --- packing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
def test_arrays_and_tensors_tell_it(path, name):
    array = numbers(FLOATS[name])
    tensor = torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))
    sources = [array, tensor, np.asfortranarray(array), tensor.T.contiguous().T, iter(array), list(tensor.split(7))]
    if name != "bf16":
        sources.append(memoryview(array))
    for source in sources:
        assert pack_native(source, path, row_bytes=8 * array.itemsize).dtype == name
        assert read_table(path)[0]["kind"] == KINDS[name][0]
        with NativeRows(path) as rows:
            assert rows.dtype == rows.info()["dtype"] == name


def test_sources_that_do_not_tell_it_record_nothing(path, tmp_path):
    array = numbers(np.float32)
    array.tofile(tmp_path / "raw")
    sources = [
        array.tobytes(), tmp_path / "raw", [array.tobytes()], array.view(np.uint8), array.view("V16"),
        torch.from_numpy(array.view(np.uint8)), bytearray(array), [array.view(np.uint8)],
    ]  # fmt: skip
    for source in sources:
        assert pack_native(source, path, row_bytes=None if hasattr(source, "shape") else 32).dtype is None
        assert read_table(path)[0]["kind"] == 0
        with NativeRows(path) as rows:
            assert rows.dtype is None
    # Rows that cut elements in two, and versions that have no place for it.
    assert pack_native(array.reshape(-1), path, row_bytes=2).dtype is None
    for version in (1, 2):
        assert pack_native(array, path, version=version).dtype is None
        assert read_table(path)[0]["kind"] == 0


def test_numbers_of_no_kind_are_never_read_as_floats(path):
    array = numbers(np.float32)
    sources = [
        array.view(np.int32), array.view(np.int8), array.astype(">f4"), array.view(np.complex64),
        np.zeros((4, 8), bool), array.view([("a", "<f4"), ("b", "<f4")]), numbers(np.longdouble),
        [array.view(np.int32)], torch.from_numpy(array).to(torch.float8_e5m2), torch.from_numpy(array).int(),
    ]  # fmt: skip
    for source in sources:
        assert pack_native(source, path).dtype == "other"
        assert read_table(path)[0]["kind"] == 255
        with NativeRows(path) as rows:
            assert rows.dtype == "other" and rows.gather([1]).dtype == np.uint8
            for dtype in (None, "fp32"):
                for call in (rows.embedding_bag, rows.gather_floats):
                    with pytest.raises(errors.DtypeError, match=r"records that its rows are (of none|other)"):
                        call([[1, 2]], dtype=dtype)
            for dtype in ("f4", "fp16", torch.bfloat16):
                with pytest.raises(errors.DtypeError, match="records that its rows are other"):
                    rows.gather([1], dtype=dtype)
            with pytest.raises(errors.DtypeError, match="records that its rows are other, and out is of float32"):
                rows.gather_into([1], np.empty(rows.row_bytes // 4, np.float32))
        with pytest.raises(errors.DtypeError, match="records that its rows are other"):
            MappedEmbedding(path, dtype="float32")
    pack_native(array.astype(">f4"), path)
    with NativeRows(path) as rows:
        np.testing.assert_array_equal(rows.gather([4, 0], dtype=">f4"), array[[4, 0]])
    with pytest.raises(errors.DtypeError, match="is of fp32, and the table's rows are to be other"):
        pack_native(iter([array.view(np.int32), array]), path)
    assert pack_native(array.view(np.int32), path, version=2).dtype is None


@pytest.mark.parametrize("name", KINDS)
def test_it_may_be_stated(path, tmp_path, name):
    raw = numbers(np.int8, (50, 64)).view(np.uint8)
    raw.tofile(tmp_path / "raw")
    same = [name] if KINDS[name][1] is None else [name, np.dtype(KINDS[name][1]), np.dtype(KINDS[name][1]).name]
    sources = [tmp_path / "raw", raw, raw.tobytes(), [raw.tobytes(), raw], raw.view("V4"), torch.from_numpy(raw)]
    if KINDS[name][1] is not None:  # the bits as numbers of the same width
        sources.append(raw.view(f"u{np.dtype(KINDS[name][1]).itemsize}"))
    for source in sources:
        for dtype in same:
            assert pack_native(source, path, row_bytes=64, dtype=dtype).dtype == name
            assert read_table(path)[0]["kind"] == KINDS[name][0]


def test_what_is_stated_and_does_not_fit_is_refused(path):
    floats = numbers(np.float32)
    for source, options, error, text in (
        (floats, {"dtype": "fp64"}, errors.DtypeError, "the source is of fp32, and the table's rows are to be fp64"),
        (floats.astype(">f4"), {"dtype": "fp32"}, errors.DtypeError, ">f4"),
        (torch.ones(3, 4), {"dtype": "int8"}, errors.DtypeError, "of float32, and int8 rows are encoded"),
        (b"x" * 12, {"dtype": "fp64", "row_bytes": 12}, errors.ArgumentError, "rows of 12 bytes are no fp64"),
        (b"x" * 8, {"dtype": "uint8_rowwise", "row_bytes": 8}, errors.ArgumentError, "no uint8_rowwise"),
        (b"x" * 8, {"dtype": "fp32", "row_bytes": 8, "version": 2}, errors.ArgumentError, "from version 3 on"),
        (b"x" * 8, {"dtype": "int32", "row_bytes": 8}, errors.DtypeError, "dtype must be one of"),
        (b"x" * 8, {"dtype": 4, "row_bytes": 8}, errors.DtypeError, "dtype must be one of"),
        ([floats, floats.astype(np.float64)[:, :4]], {}, errors.DtypeError, "chunk 1 is of fp64, .* to be fp32"),
        ([floats, floats.astype(">f4")], {}, errors.DtypeError, "chunk 1 is of >f4, .* to be fp32"),
        ([b"x" * 32, floats], {"row_bytes": 32, "dtype": "fp16"}, errors.DtypeError, "chunk 1 is of fp32, .* fp16"),
        (numbers(np.int64), {"dtype": "fp64"}, errors.DtypeError, "the source is of int64, .* to be fp64"),
        (torch.ones(3, 4, dtype=torch.int64), {"dtype": "fp64"}, errors.DtypeError, "of int64, .* to be fp64"),
        (numbers(np.int32), {"dtype": "fp32"}, errors.DtypeError, "the source is of int32, .* to be fp32"),
        (numbers(bool), {"dtype": "fp32"}, errors.DtypeError, "the source is of bool, .* to be fp32"),
        (numbers(np.uint16), {"dtype": "fp32"}, errors.DtypeError, "the source is of uint16, .* to be fp32"),
        ([floats, numbers(np.int32)], {}, errors.DtypeError, "chunk 1 is of int32, .* to be fp32"),
        ([numbers(np.int32), numbers(np.uint32)], {}, errors.DtypeError, "of uint32, and those before it of int32"),
        ([floats.astype(">f4"), floats], {}, errors.DtypeError, "chunk 1 is of fp32, .* to be other"),
        ([floats, np.repeat(floats, 2, 1).astype("f2")], {"version": 2}, errors.DtypeError, "float16, .* float32"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            pack_native(source, path, **options)
        assert not path.exists()


@pytest.mark.parametrize("name", [name for name, (_, dtype) in KINDS.items() if dtype is None])
def test_numbers_are_no_encoded_rows(path, name):
    """Elements of int8 look like the codes, and have no scale."""
    for dtype in ("i1", "i2", "u2", "u4", "i8", "?", "c8", "f4", ml_dtypes.float8_e5m2, ml_dtypes.int4):
        array = numbers(dtype)
        tensor = torch.from_numpy(array) if array.dtype.isbuiltin == 1 else iter([array])
        for source in (array, tensor, [array], np.asfortranarray(array)):
            with pytest.raises(errors.DtypeError, match=rf"is of {array.dtype.name}, and {name} rows .*pack_quantized"):
                pack_native(source, path, dtype=name)
    assert not path.exists()


def test_a_predictor_needs_a_codec(path):
    for predictor in ("xor", "shuffle", "xor+shuffle"):
        with pytest.raises(errors.ArgumentError, match=r"predictor .* needs a codec"):
            pack_native(numbers(np.float32), path, codec="raw", predictor=predictor)
    pack_native(numbers(np.float32), path, codec="raw", predictor="auto")


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantised_tables_record_it(tmp_path, kind):
    pack_quantized(numbers(np.float32, (50, 7)), tmp_path / "q", kind, native=True)
    assert read_table(tmp_path / "q" / "table.men")[0]["kind"] == KINDS[kind][0]
    with QuantizedRows(tmp_path / "q") as decoded, NativeRows(tmp_path / "q" / "table.men") as rows:
        ids = [3, 49, 3]
        np.testing.assert_array_equal(rows.gather_floats(ids)[:, :7], decoded.gather(ids))
        np.testing.assert_array_equal(rows.embedding_bag([ids], dim=7), decoded.embedding_bag([ids]))


@pytest.mark.parametrize("name", FLOATS)
def test_exporters_record_it(tmp_path, name):
    weight = torch.ones(9, 4, dtype=getattr(torch, np.dtype(FLOATS[name]).name))
    export_embedding(torch.nn.Embedding.from_pretrained(weight), tmp_path / "e")
    with NativeRows(tmp_path / "e" / "table.men") as rows:
        assert rows.dtype == name


# --- reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
def test_rows_are_read_as_what_is_recorded(path, name):
    """Also by default: a table of float64 was once reduced as if it were of float32."""
    array = numbers(FLOATS[name])
    pack_native(array, path, codec="zstd")
    ids = [[1, 2], [49, 1]]
    with NativeRows(path) as rows:
        for dtype in (None, name, np.dtype(FLOATS[name]), getattr(torch, array.dtype.name)):
            bags = rows.embedding_bag(ids, dtype=dtype)
            assert bags.dtype == array.dtype
            np.testing.assert_array_equal(bags.astype(float), array[ids].astype(float).sum(1))
            np.testing.assert_array_equal(rows.gather_floats(ids, dtype), array[ids].astype(np.float32))
        for other in KINDS.keys() - {name}:
            for call in (
                lambda kind=other: rows.embedding_bag(ids, dtype=kind),
                lambda kind=other: rows.gather_floats(ids, kind),
            ):
                with pytest.raises(errors.DtypeError, match=f"its rows are {name}, and dtype says {other}"):
                    call()


def test_bytes_and_integers_are_always_possible(path):
    array = numbers(np.float64)
    pack_native(array, path)
    with NativeRows(path) as rows:
        ids = [4, 0]
        np.testing.assert_array_equal(rows.gather(ids), array[ids].view(np.uint8))
        for dtype in (np.uint8, np.int16, "uint64", "complex128", "float64", "V16"):
            assert rows.gather(ids, dtype=dtype).tobytes() == array[ids].tobytes()
        for dtype in (np.float32, "float16", "bfloat16", ">f8", np.longdouble, "complex64", ">c16", "float8_e5m2"):
            with pytest.raises(
                errors.DtypeError, match=r"its rows are fp64, and dtype says .*: gather_floats converts"
            ):
                rows.gather(ids, dtype=dtype)
        with pytest.raises(errors.DtypeError, match=r"int4_rowwise rows do not .* gather_floats"):
            rows.gather(ids, dtype="int4_rowwise")
        for dtype in ("u1", "i8", "c16", "f8", "V16", "i4,f4"):
            out = np.empty(128 // np.dtype(dtype).itemsize, dtype)
            for memory in (out, out.view(np.uint8).data, bytearray(128)):
                assert rows.gather(ids, out=memory) is memory
                assert bytes(memory) == array[ids].tobytes()


@pytest.mark.parametrize("name", FLOATS)
def test_memory_for_rows_of_other_numbers_is_refused(path, name):
    """It took the bytes as they are, which are other numbers there."""
    array = numbers(FLOATS[name])
    outs = [np.empty(8 * array.itemsize // np.dtype(kind).itemsize, kind) for kind in ("f2", "f4", "f8", ">f4", "c8")]
    outs += [np.empty(4 * array.itemsize, ml_dtypes.bfloat16), torch.empty(4 * array.itemsize, dtype=torch.bfloat16)]
    outs += [torch.empty(8 * array.itemsize, dtype=torch.float8_e5m2), outs[1].data.cast("B").cast("d")]
    part = {"complex64": "float32"}
    pack_native(array, path)
    with NativeRows(path) as rows:
        for _ in range(2):
            for out in outs:
                kind = str(getattr(out, "dtype", "float64")).removeprefix("torch.")
                if part.get(kind, kind) == array.dtype.name:
                    rows.gather_into([7], out)
                    raw = torch.uint8 if isinstance(out, torch.Tensor) else np.uint8
                    assert bytes(out if isinstance(out, memoryview) else out.view(raw)) == array[7].tobytes()
                    continue
                for call in (lambda out=out: rows.gather_into([7], out), lambda out=out: rows.gather([7], out=out)):
                    with pytest.raises(errors.DtypeError, match=f"are {name}, and out is of .*{kind}: gather_floats"):
                        call()


SPELLINGS = {
    "fp16": ["fp16", "float16", "half", "f2", "<f2", "torch.half", "torch.float16", np.float16, torch.float16],
    "bf16": ["bf16", "bfloat16", "torch.bfloat16", ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), torch.bfloat16],
    "fp32": ["fp32", "float32", "single", "f4", "torch.float", np.float32, np.dtype("=f4"), torch.float],
    "fp64": ["fp64", "float64", "double", "f8", "torch.double", np.float64, np.dtype("f8"), torch.double, float],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_call_takes_every_spelling(path, tmp_path, name, capfd):
    array = numbers(FLOATS[name])
    array.tofile(tmp_path / "raw")
    weight = torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))
    export_embedding(torch.nn.Embedding.from_pretrained(weight), tmp_path / "e")
    for dtype in SPELLINGS[name]:
        assert pack_native(tmp_path / "raw", path, row_bytes=8 * array.itemsize, dtype=dtype).dtype == name
        with NativeRows(path) as rows:
            np.testing.assert_array_equal(rows.gather([3], dtype=dtype), array[[3]])
            np.testing.assert_array_equal(rows.gather_floats([3], dtype), array[[3]].astype(np.float32))
            np.testing.assert_array_equal(rows.embedding_bag([[3]], dtype=dtype), array[[3]])
        for place in (path, tmp_path / "e"):
            with MappedEmbedding(place, dtype=dtype) as mapped:
                assert torch.equal(mapped(torch.tensor([3])), weight[[3]])
            with MappedEmbeddingBag(place, mode="sum", dtype=dtype) as bag:
                assert torch.equal(bag(torch.tensor([[3]])), weight[[3]])
        if isinstance(dtype, str):
            where = [str(tmp_path / "raw"), str(tmp_path / dtype), "--row-bytes", str(8 * array.itemsize)]
            assert cli.main(["pack", *where, "--dtype", dtype, "--json"]) == 0
            assert json.loads(capfd.readouterr().out)["dtype"] == name


def test_what_is_no_spelling_is_shown_as_it_is_written(path):
    pack_native(numbers(np.float32), path)
    with NativeRows(path) as rows:
        for given, shown in ((np.int8, "numpy.int8"), (torch.int8, "torch.int8"), ("fp8", "'fp8'"), (4, "4")):
            with pytest.raises(errors.DtypeError, match=rf"dtype must be one of .*, got {shown}$"):
                rows.gather_floats([1], given)
    with pytest.raises(SystemExit):
        cli.main(["pack", "a", "b", "--dtype", "fp8"])


@pytest.mark.parametrize("mapped", [False, True])
def test_tables_that_record_nothing_are_read_as_they_were(path, mapped):
    array = numbers(np.float32)
    forge(path, array, mapped=mapped)
    with NativeRows(path) as rows:
        assert rows.dtype is None and rows.info()["version"] == (1 if mapped else 3)
        np.testing.assert_array_equal(rows.embedding_bag([[1, 2]]), array[[1]] + array[[2]])
        np.testing.assert_array_equal(rows.gather_floats([1]), array[[1]])
        assert rows.embedding_bag([[1]], dtype="fp64").shape == (1, 4)
        assert rows.gather_floats([1], "int8").shape == (1, 28)
        assert rows.gather([1], dtype="float16").shape == (1, 16)


@pytest.mark.parametrize(
    ("version", "kind", "width", "error", "text"),
    [
        (3, 8, 16, errors.StoreFormatError, "kind 8, which this build does not know"),
        (3, 2**32 - 1, 16, errors.StoreFormatError, "kind 4294967295"),
        (3, 2, 12, errors.CorruptRecordError, "rows of 12 bytes are no fp64 rows"),
        (3, 7, 4, errors.CorruptRecordError, "rows of 4 bytes are no int4_rowwise rows"),
        (1, 1, 16, errors.CorruptRecordError, "kind 1 in version 1"),
    ],
)
def test_headers_with_a_kind_that_can_not_be_are_refused(path, version, kind, width, error, text):
    forge(path, np.zeros((20, width), np.uint8), codec=RAW, mapped=version == 1)
    content = bytearray(path.read_bytes())
    content[96:100] = kind.to_bytes(4, "little")
    content[124:128] = crc32c(content[:124]).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(error, match=text):
        NativeRows(path)


def test_a_bundle_and_its_table_must_agree(tmp_path):
    weight = torch.ones(9, 8)
    export_embedding(torch.nn.Embedding.from_pretrained(weight), tmp_path / "e")
    pack_quantized(weight, tmp_path / "q", "fp16", native=True)
    for folder, member, other, open_ in (
        ("e", "float32", ("float64", 4), MappedEmbedding), ("q", "fp16", ("bf16", 8), QuantizedRows),
    ):  # fmt: skip
        file = tmp_path / folder / "bundle.json"
        meta = json.loads(file.read_text())
        assert meta["dtype"] == member
        meta["dtype"], meta["embedding_dim"] = other
        file.write_text(json.dumps(meta))
        with pytest.raises(errors.CorruptRecordError, match=f"fp.. rows, and its bundle says {other[0]}"):
            open_(tmp_path / folder)
        assert cli.main(["verify", str(tmp_path / folder)]) == 1


def test_bags_of_modules_are_of_the_bundles_kind(tmp_path):
    weight = torch.from_numpy(numbers(np.float64))
    export_embedding_bag(torch.nn.EmbeddingBag.from_pretrained(weight, mode="sum"), tmp_path / "b")
    with open_embedding_bag(tmp_path / "b") as bag:
        assert torch.equal(bag(torch.tensor([[1, 2]])), weight[[1]] + weight[[2]])


# --- the command line ------------------------------------------------------------------------


def test_the_command_shows_it(path, tmp_path, capfd):
    def run(*args):
        assert cli.main([*map(str, args), "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    numbers(np.float16).tofile(tmp_path / "raw")
    np.save(tmp_path / "a.npy", numbers(np.float64))
    packed = run("pack", tmp_path / "raw", path, "--row-bytes", 16, "--dtype", "fp16")
    assert packed["dtype"] == "fp16"
    for command in ("info", "verify"):
        assert run(command, path)["dtype"] == "fp16"
    assert run("bench", path, "--seconds", "0.01")["dtype"] == "fp16"
    assert run("pack", tmp_path / "a.npy", tmp_path / "b.men")["dtype"] == "fp64"
    assert run("pack", tmp_path / "raw", tmp_path / "c.men", "--row-bytes", 16)["dtype"] is None
    assert run("info", tmp_path / "c.men")["dtype"] is None
    export_embedding(torch.nn.Embedding(5, 4), tmp_path / "e")
    for command in ("info", "verify"):
        assert run(command, tmp_path / "e")["dtype"] == "float32"
    with pytest.raises(SystemExit):
        cli.main(
            ["pack", str(tmp_path / "raw"), str(tmp_path / "q"), "--kind", "int8", "--dim", "8", "--dtype", "fp16"]
        )
    assert "--dtype has no meaning with --kind" in capfd.readouterr().err
