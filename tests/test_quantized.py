"""Quantised tables: torch's bits, whatever the table is kept in, and refusals of what can't be encoded."""

import hashlib
import itertools
import json
import pickle

import ml_dtypes
import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import (
    NativeRows,
    QuantizedRows,
    pack_quantized,
    pack_quantized_file,
)
from tests.bags import matrix_of, some_bags
from tools import quantized_memory

KINDS = ["fp32", "fp16", "bf16", "int8", "uint8_rowwise", "int4_rowwise"]
CODED = ["int8", "uint8_rowwise", "int4_rowwise"]
OPS = torch.ops.quantized


def encoded_by_torch(matrix, kind):
    """Return the encoded rows as torch has them, or NumPy where torch has none."""
    tensor = torch.from_numpy(matrix)
    match kind:
        case "uint8_rowwise":
            return OPS.embedding_bag_byte_prepack(tensor).numpy()
        case "int4_rowwise":
            if matrix.shape[1] % 2 == 0:
                return OPS.embedding_bag_4bit_prepack(tensor).numpy()
            # torch takes even widths only: a column that is there twice changes neither bounds nor the other codes
            rows = OPS.embedding_bag_4bit_prepack(torch.cat([tensor, tensor[:, -1:]], 1)).numpy().copy()
            rows[:, matrix.shape[1] // 2] &= 15
            return rows
        case "int8":
            scale = np.abs(matrix).max(1, keepdims=True) / np.float32(127)
            codes = np.divide(matrix, scale, where=scale > 0, out=np.zeros_like(matrix)).round().astype(np.int8)
            return np.hstack([codes.view(np.uint8), scale.view(np.uint8)])
        case "bf16":
            return tensor.bfloat16().view(torch.uint8).numpy()
    return matrix.astype({"fp32": "<f4", "fp16": "<f2"}[kind]).view(np.uint8)


def decoded_of(encoded, kind, dim):
    """Return encoded rows as numbers."""
    match kind:
        case "uint8_rowwise":
            return OPS.embedding_bag_byte_unpack(torch.from_numpy(encoded.copy())).numpy()
        case "int4_rowwise":
            return OPS.embedding_bag_4bit_unpack(torch.from_numpy(encoded.copy())).numpy()[:, :dim]
        case "int8":
            return encoded[:, :dim].view(np.int8) * encoded[:, dim:].copy().view("<f4")
    dtype = {"fp32": "<f4", "fp16": "<f2", "bf16": ml_dtypes.bfloat16}[kind]
    return np.ascontiguousarray(encoded).view(dtype).astype(np.float32)


def encoded_in(rows):
    """Return the encoded rows of a whole table."""
    scratch = np.empty((len(rows), rows.width), np.uint8)
    rows.gather_into(np.arange(len(rows)), np.empty(rows.shape, np.float32), scratch)
    return scratch


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


@pytest.mark.parametrize("native", [True, False, "auto"])
@pytest.mark.parametrize("dim", [1, 2, 3, 8, 33, 128, 1025, 2048])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_torchs_bits(tmp_path, rng, kind, dim, native):
    matrix = matrix_of(rng, 70, dim)
    matrix.tofile(tmp_path / "source.bin")
    report = pack_quantized_file(tmp_path / "source.bin", tmp_path / "q", dim, kind, native, chunk_rows=32)
    expected = encoded_by_torch(matrix, kind)
    decoded = decoded_of(expected, kind, dim)
    with QuantizedRows(tmp_path / "q", query_chunk_rows=17) as rows:
        assert (rows.dim, rows.width, len(rows), rows.kind) == (dim, expected.shape[1], 70, kind)
        assert rows.native == report.native == (native if native != "auto" else rows.native)
        np.testing.assert_array_equal(encoded_in(rows), expected)
        ids = rng.integers(0, 70, (5, 40))
        got = rows.gather(ids)
        np.testing.assert_array_equal(got, rows.gather(np.arange(70))[ids])
        # Decoded with one rounding, where torch and NumPy have two.
        np.testing.assert_allclose(got, decoded[ids], rtol=3e-7, atol=1e-5 if kind in CODED else 0)
        out = torch.full((5, 40, dim), float("nan"))
        rows.gather_into(torch.from_numpy(ids), out)
        assert out.numpy().tobytes() == got.tobytes()
        out.fill_(float("nan"))
        rows.gather_into(ids.astype(np.int32), out, bytearray(200 * rows.width + 3))
        assert out.numpy().tobytes() == got.tobytes()
        rows.verify()
        assert rows.report() == report
        everything = rows.gather(np.arange(70)).astype(np.float64)
    distance = np.abs(everything - matrix)
    assert report.source_sha256 == sha256(matrix) == hashlib.sha256((tmp_path / "source.bin").read_bytes()).hexdigest()
    assert report.decoded_sha256 == sha256(everything.astype(np.float32))
    assert report.max_error == distance.max()
    assert report.mean_error == pytest.approx(distance.mean())
    assert 0.97 < report.cosine <= 1 or dim < 4
    if kind == "fp32":
        assert report.max_error == report.mean_error == 0 and report.decoded_sha256 == report.source_sha256


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dim", [2, 16, 64, 130])
def test_bags_are_those_of_torch(tmp_path, rng, dim, native):
    matrix = matrix_of(rng, 90, dim)
    ids, offsets = some_bags(rng, 90, 40)
    weights = torch.from_numpy(rng.standard_normal(len(ids)).astype(np.float32))
    for kind, bag in (
        ("uint8_rowwise", OPS.embedding_bag_byte_rowwise_offsets),
        ("int4_rowwise", OPS.embedding_bag_4bit_rowwise_offsets),
    ):
        pack_quantized(matrix, tmp_path / kind, kind, native)
        packed = torch.from_numpy(encoded_by_torch(matrix, kind))
        with QuantizedRows(tmp_path / kind) as rows:
            for factors in (None, weights):
                expected = bag(
                    packed, ids, offsets, mode=0, per_sample_weights=factors, include_last_offset=True
                ).numpy()
                got = rows.embedding_bag(ids, offsets, weights=factors, include_last_offset=True)
                np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_bags_are_reductions_of_what_gather_returns(tmp_path, rng, kind):
    matrix = rng.integers(-8, 8, (50, 7)).astype(np.float32)
    pack_quantized(matrix, tmp_path / "q", kind)
    ids, offsets = some_bags(rng, 50, 20)
    with QuantizedRows(tmp_path / "q") as rows:
        whole = rows.gather(ids.numpy()).astype(np.float64)
        for mode, reduce in (("sum", np.sum), ("mean", np.mean), ("max", np.max)):
            got = np.asarray(rows.embedding_bag(ids, offsets[:-1], mode)).astype(np.float64)
            for i, (a, b) in enumerate(itertools.pairwise(offsets)):
                want = reduce(whole[a:b], axis=0) if b > a else np.zeros(7)
                np.testing.assert_allclose(got[i], want, rtol=1e-2 if kind in ("fp16", "bf16") else 1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", CODED)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("native", [True, False, "auto"])
def test_numbers_without_a_code_are_refused(tmp_path, rng, kind, number, native):
    matrix = matrix_of(rng, 50, 9)
    matrix[41, 5] = number
    with pytest.raises(errors.ArgumentError, match=r"row 41 .*column 5"):
        pack_quantized(matrix, tmp_path / "q", kind, native, chunk_rows=7)
    assert list(tmp_path.iterdir()) == []


def test_floats_keep_what_is_no_number(tmp_path):
    matrix = np.array([[np.nan, np.inf], [1, 0], [0, 0]], np.float32)
    for kind in ("fp32", "fp16", "bf16"):
        report = pack_quantized(matrix, tmp_path / kind, kind)
        assert (report.max_error, report.mean_error, report.cosine) == (0, 0, None)
        with QuantizedRows(tmp_path / kind) as rows:
            np.testing.assert_array_equal(rows.gather([0, 1, 2]), matrix)
        json.loads((tmp_path / kind / "bundle.json").read_text(), parse_constant=pytest.fail)
    assert pack_quantized(matrix[1:] * 1e6, tmp_path / "over", "fp16").max_error is None


def test_the_smaller_table_is_kept(tmp_path, rng):
    alike, noise = np.ones((3000, 16), np.float32), rng.integers(0, 1 << 32, (3000, 16), np.uint32).view(np.float32)
    for matrix, native in ((alike, True), (noise, False)):
        report = pack_quantized(matrix, tmp_path / str(native), "fp32")
        assert report.native is native and report.plain_bytes == 3000 * 64
        assert report.file_bytes == min(report.plain_bytes, report.native_bytes)
        files = {file.name: file.stat().st_size for file in (tmp_path / str(native)).iterdir()}
        assert files.pop("bundle.json")
        assert files == {"table.men" if native else "rows.bin": report.file_bytes}
    assert pack_quantized(alike, tmp_path / "p", "fp32", False).native_bytes is None
    assert pack_quantized(noise, tmp_path / "n", "fp32", True, max_block_bytes=640).plain_bytes is None
    with NativeRows(tmp_path / "n" / "table.men") as rows:
        assert rows.info()["block_rows"] == 10


def test_sources_of_every_sort(tmp_path, rng):
    matrix = matrix_of(rng, 60, 6)
    np.save(tmp_path / "m.npy", matrix)
    wide = np.repeat(matrix, 2, axis=1)
    sources = {
        "numpy": matrix,
        "fortran": np.asfortranarray(matrix),
        "strided": wide[:, ::2],
        "big": matrix.astype(">f4"),
        "double": matrix.astype(np.float64),
        "mapped": np.load(tmp_path / "m.npy", mmap_mode="r"),
        "torch": torch.nn.Parameter(torch.from_numpy(matrix)),
        "transposed": torch.from_numpy(matrix.T.copy()).T,
    }
    found = {name: pack_quantized(source, tmp_path / name, "int8", chunk_rows=11) for name, source in sources.items()}
    assert {report.source_sha256 for report in found.values()} == {sha256(matrix)}
    assert len({report.sha256 for report in found.values()}) == 1
    half = pack_quantized(torch.from_numpy(matrix).bfloat16(), tmp_path / "half", "bf16")
    assert half.max_error == 0
    same = pack_quantized(matrix.astype(ml_dtypes.bfloat16), tmp_path / "half2", "bf16")
    assert same.source_sha256 == half.source_sha256


def test_a_table_without_rows(tmp_path):
    for native in (True, False, "auto"):
        report = pack_quantized(np.empty((0, 5), np.float32), tmp_path / str(native), "int4_rowwise", native)
        assert (report.rows, report.width, report.max_error, report.cosine) == (0, 7, 0, None)
        with QuantizedRows(tmp_path / str(native)) as rows:
            assert rows.gather([]).shape == (0, 5)
            with pytest.raises(errors.RecordIndexError):
                rows.gather([0])


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"kind": "int9"}, errors.ArgumentError, "int4_rowwise"),
        ({"kind": 8}, errors.ArgumentError, "kind must be"),
        ({"native": "yes"}, errors.ArgumentError, "native"),
        ({"native": 1}, errors.ArgumentError, "native"),
        ({"chunk_rows": 0}, errors.ArgumentError, "chunk_rows"),
        ({"matrix": np.zeros((3, 4), np.int32)}, errors.DtypeError, "int32"),
        ({"matrix": np.zeros(4, np.float32)}, errors.ArgumentError, "shape"),
        ({"matrix": np.zeros((4, 0), np.float32)}, errors.ArgumentError, "shape"),
        ({"matrix": [[1.0]]}, errors.DtypeError, "list"),
        ({"matrix": torch.zeros(2, 2).to_sparse()}, errors.DtypeError, "dense"),
        ({"matrix": torch.zeros(2, 2, device="meta")}, errors.DtypeError, "meta"),
    ],
)
def test_wrong_arguments(tmp_path, change, error, text):
    arguments = {"matrix": np.zeros((3, 4), np.float32), "out_dir": tmp_path / "q", "kind": "int8", **change}
    with pytest.raises(error, match=text):
        pack_quantized(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_wrong_files(tmp_path):
    with pytest.raises(errors.StoreNotFoundError):
        pack_quantized_file(tmp_path / "none", tmp_path / "q", 4, "int8")
    (tmp_path / "odd").write_bytes(bytes(17))
    with pytest.raises(errors.ArgumentError, match="17 bytes"):
        pack_quantized_file(tmp_path / "odd", tmp_path / "q", 4, "int8")
    with pytest.raises(errors.ArgumentError, match="dim"):
        pack_quantized_file(tmp_path / "odd", tmp_path / "q", 0, "int8")


def test_bundles_are_replaced_only_when_told(tmp_path, rng):
    matrix = matrix_of(rng, 20, 4)
    pack_quantized(matrix, tmp_path / "q", "int8")
    with pytest.raises(errors.StoreExistsError):
        pack_quantized(matrix, tmp_path / "q", "fp16")
    with QuantizedRows(tmp_path / "q") as old:
        before = old.gather([3])
        pack_quantized(matrix + 1, tmp_path / "q", "fp16", overwrite=True)
        np.testing.assert_array_equal(old.gather([3]), before)
        state = pickle.dumps(old)
    with pytest.raises(errors.CorruptRecordError, match="replaced"):
        pickle.loads(state)


def test_the_documented_names():
    assert quantized_memory.QuantizedRows is QuantizedRows
    assert quantized_memory.pack_quantized_file is pack_quantized_file
