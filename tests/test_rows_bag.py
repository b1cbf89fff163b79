"""NativeRows.embedding_bag and gather_floats: torch's bits."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import NativeRows, pack_native
from tests.bags import ENCODINGS, FLOATS, as_tensor, embedding_bag, nans, same_bits, some_bags, table_of, weight_of


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", FLOATS)
def test_random_bags_have_torchs_bits(tmp_path, name, encoding):
    dtype = FLOATS[name]
    rng = np.random.default_rng(len(encoding) * 10 + len(name))
    for round_, threads in itertools.product(range(3), (1, 2)):
        n, dim = int(rng.integers(1, 300)), int(rng.choice([1, 3, 8, 33, 64, 128]))
        weight = weight_of(rng, n, dim, dtype)
        options = {
            "threads": threads,
            "query_chunk_rows": [None, 1, 7, 100, 65536][rng.integers(5)],
            "cache_bytes": int(rng.choice([0, 4096, 1 << 22])),
            "cache_policy": str(rng.choice(["blocks", "rows"])),
        }
        with table_of(tmp_path / f"{round_}{threads}.men", weight, encoding, **options) as rows:
            for mode, padded, weighted in itertools.product(("sum", "mean", "max"), (0, 1), (0, 1)):
                if weighted and mode != "sum":
                    continue
                ids, offsets = some_bags(rng, n, int(rng.integers(1, 120)))
                weights = torch.from_numpy(rng.standard_normal(len(ids))).to(dtype) if weighted else None
                padding = int(rng.integers(-n, n)) if padded else None
                if padded:
                    ids[torch.from_numpy(rng.random(len(ids)) < 0.3)] = padding % n
                expected = embedding_bag(
                    ids, weight, offsets, mode=mode, padding_idx=padding, per_sample_weights=weights,
                    include_last_offset=True,
                )  # fmt: skip
                common = {"mode": mode, "padding_idx": padding, "weights": weights, "dtype": name}
                out = nans(len(offsets) - 1, dim, dtype=dtype)
                assert rows.embedding_bag(ids, offsets, out=out, **common) is out
                same_bits(out, expected)
                got = rows.embedding_bag(ids.int(), offsets[:-1].numpy(), **{**common, "dtype": dtype})
                same_bits(as_tensor(got), expected)


@pytest.mark.parametrize("dim", [1, 3, 128, 1025, 2048])
@pytest.mark.parametrize("encoding", ["raw", "shuffled"])
def test_rows_of_any_width(tmp_path, dim, encoding):
    rng = np.random.default_rng(dim)
    for name, dtype in FLOATS.items():
        weight = weight_of(rng, 60, dim, dtype)
        with table_of(tmp_path / f"{name}.men", weight, encoding, query_chunk_rows=50) as rows:
            for mode in ("sum", "mean", "max"):
                ids, offsets = some_bags(rng, 60, 30)
                out = nans(30, dim, dtype=dtype)
                rows.embedding_bag(ids, offsets, mode, out=out, dtype=dtype)
                same_bits(out, embedding_bag(ids, weight, offsets, mode=mode, include_last_offset=True))


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_long_bags_have_torchs_bits(tmp_path, encoding, mode):
    """Longer than what a goroutine takes at once, a chunk, and what runs without a job."""
    rng = np.random.default_rng(8)
    for name, dtype in FLOATS.items():
        weight = weight_of(rng, 1000, 5, dtype)
        with table_of(tmp_path / f"{name}.men", weight, encoding, query_chunk_rows=1000, threads=2) as rows:
            for sizes in ([3, 2049, 0, 5], [2048, 2048], [0, 5000, 5000, 0], [40_000, 1]):
                offsets = torch.tensor(np.concatenate([[0], np.cumsum(sizes)]))
                ids = torch.from_numpy(rng.integers(0, 1000, sum(sizes)))
                expected = embedding_bag(ids, weight, offsets, mode=mode, include_last_offset=True, padding_idx=3)
                out = nans(len(sizes), 5, dtype=dtype)
                rows.embedding_bag(ids, offsets, mode, out=out, dtype=name, padding_idx=3)
                same_bits(out, expected)


def test_lines_of_ids_are_bags(tmp_path):
    weight = weight_of(np.random.default_rng(2), 50, 16, torch.float32)
    with table_of(tmp_path / "t.men", weight) as rows:
        ids = torch.from_numpy(np.random.default_rng(3).integers(0, 50, (9, 4)))
        weights = torch.rand(9, 4)
        for given, factors in (
            (ids, weights),
            (ids.numpy()[::-1, ::2], weights.numpy()[::-1, ::2]),
            (ids.T, weights.T),
        ):
            tensors = [torch.from_numpy(np.ascontiguousarray(np.asarray(x))) for x in (given, factors)]
            expected = embedding_bag(tensors[0], weight, mode="sum", per_sample_weights=tensors[1])
            same_bits(as_tensor(rows.embedding_bag(given, weights=factors)), expected)
        for shape in ((0, 4), (5, 0), (0, 0)):
            got = rows.embedding_bag(np.empty(shape, np.int64), mode="mean")
            assert got.shape == (shape[0], 16) and not got.any()
        got = rows.embedding_bag([[1, 2], [3, 1]], mode="max")
        same_bits(as_tensor(got), embedding_bag(torch.tensor([[1, 2], [3, 1]]), weight, mode="max"))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("encoding", ["raw", "zlib"])
def test_empty_and_all_padding_bags_are_zeros(tmp_path, mode, encoding):
    weight = weight_of(np.random.default_rng(2), 50, 16, torch.float32) - 100
    with table_of(tmp_path / "t.men", weight, encoding) as rows:
        for ids, offsets, bags in (
            ([], [0], 1), ([], [], 0), ([7, 7, 7], [0, 0, 2], 3), ([7] * 3000, [0, 0, 2900], 3), ([], [0] * 5000, 5000),
            ([7], [0], 1), ([], [0, 0, 0], 2),
        ):  # fmt: skip
            out = np.full((bags, 16), np.nan, np.float32)
            rows.embedding_bag(ids, offsets, mode, padding_idx=7, out=out)
            assert not out.any() and not np.signbit(out).any()
        assert rows.embedding_bag([], [0], mode, include_last_offset=True).shape == (0, 16)


@pytest.mark.parametrize("name", FLOATS)
def test_weights_are_of_the_rows_dtype(tmp_path, name):
    dtype = FLOATS[name]
    weight = weight_of(np.random.default_rng(2), 50, 4, dtype)
    ids, offsets = torch.arange(12), torch.tensor([0, 5])
    weights = torch.linspace(-2, 2, 12).to(dtype)
    expected = embedding_bag(ids, weight, offsets, mode="sum", per_sample_weights=weights)
    own = ml_dtypes.bfloat16 if name == "bf16" else None
    array = weights.view(torch.int16).numpy().view(own) if own else weights.numpy()
    strided = np.repeat(array, 2)[::2]
    strided.flags.writeable = False
    with table_of(tmp_path / "t.men", weight) as rows:
        for given in (
            weights,
            weights.clone().requires_grad_(),
            array,
            strided,
            weights.tolist(),
            tuple(weights.tolist()),
        ):
            same_bits(as_tensor(rows.embedding_bag(ids, offsets, weights=given, dtype=name)), expected)
        for wrong in (weights.to(torch.float32 if name != "fp32" else torch.float64), np.arange(12)):
            with pytest.raises(errors.DtypeError, match="weights of"):
                rows.embedding_bag(ids, offsets, weights=wrong, dtype=name)
        with pytest.raises(errors.ArgumentError, match="shape"):
            rows.embedding_bag(ids, offsets, weights=weights[:5], dtype=name)
        for mode in ("mean", "max"):
            with pytest.raises(errors.ArgumentError, match="weights go with"):
                rows.embedding_bag(ids, offsets, mode, weights=weights, dtype=name)


def test_the_weight_of_a_padding_id_does_not_matter(tmp_path):
    weight = weight_of(np.random.default_rng(2), 50, 8, torch.float32)
    ids, weights = torch.tensor([1, 49, 2, 49]), torch.tensor([1.0, float("nan"), 2.0, float("inf")])
    for encoding in ("raw", "zlib"):
        with table_of(tmp_path / f"{encoding}.men", weight, encoding) as rows:
            got = rows.embedding_bag(ids, [0], weights=weights, padding_idx=-1)
        offsets = torch.tensor([0])
        same_bits(
            as_tensor(got),
            embedding_bag(ids, weight, offsets, mode="sum", per_sample_weights=weights, padding_idx=-1),
        )


def test_sums_in_float64_are_rounded_once(tmp_path):
    rng = np.random.default_rng(4)
    for name, dtype in FLOATS.items():
        weight = torch.from_numpy(rng.standard_normal((300, 9))).to(dtype)
        ids, offsets = some_bags(rng, 300, 50)
        weights = torch.from_numpy(rng.standard_normal(len(ids))).to(dtype)
        for encoding in ("raw", "zstd"):
            with table_of(tmp_path / f"{name}{encoding}.men", weight, encoding, query_chunk_rows=90) as rows:
                for mode, factors in (("sum", None), ("mean", None), ("sum", weights)):
                    out = nans(50, 9, dtype=dtype)
                    rows.embedding_bag(ids, offsets, mode, factors, out=out, accumulate="f64", dtype=name)
                    exact = embedding_bag(
                        ids, weight.double(), offsets, mode=mode, include_last_offset=True,
                        per_sample_weights=None if factors is None else factors.double(),
                    )  # fmt: skip
                    same_bits(out, exact.to(dtype))


def test_numbers_that_are_none(tmp_path):
    special = torch.tensor([[1, float("nan")], [2, 5], [float("inf"), -0.0], [-float("inf"), 0.0], [-0.0, 1e-40]])
    for name, dtype in FLOATS.items():
        weight = special.to(dtype)
        with table_of(tmp_path / f"{name}.men", weight) as rows:
            for mode, ids in itertools.product(("sum", "mean", "max"), itertools.permutations(range(5), 3)):
                got = rows.embedding_bag([list(ids)], mode=mode, dtype=name)
                same_bits(as_tensor(got), embedding_bag(torch.tensor([ids]), weight, mode=mode))


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
@pytest.mark.parametrize("dim", [2, 8, 64, 130])
def test_quantised_rows_have_torchs_bits(tmp_path, dim, encoding):
    rng = np.random.default_rng(dim)
    weight = torch.from_numpy(rng.standard_normal((200, dim), np.float32))
    ids, offsets = some_bags(rng, 200, 60)
    weights = torch.from_numpy(rng.random(len(ids), np.float32))
    ops = torch.ops.quantized
    for name, pack, unpack, reduce in (
        (
            "uint8_rowwise",
            ops.embedding_bag_byte_prepack,
            ops.embedding_bag_byte_unpack,
            ops.embedding_bag_byte_rowwise_offsets,
        ),
        (
            "int4_rowwise",
            ops.embedding_bag_4bit_prepack,
            ops.embedding_bag_4bit_unpack,
            ops.embedding_bag_4bit_rowwise_offsets,
        ),
    ):
        packed = pack(weight)
        with table_of(tmp_path / f"{name}.men", packed, encoding, query_chunk_rows=100) as rows:
            for factors in (None, weights):
                out = nans(60, dim, dtype=torch.float32)
                rows.embedding_bag(ids, offsets, weights=factors, out=out, dtype=name)
                same_bits(out, reduce(packed, ids, offsets, per_sample_weights=factors, include_last_offset=True))
            decoded = unpack(packed)
            same_bits(as_tensor(rows.gather_floats(ids.reshape(1, -1), name))[0], decoded[ids])
            out = nans(60, dim, dtype=torch.float32)
            rows.embedding_bag(ids, offsets, "max", out=out, dtype=name)
            same_bits(out, embedding_bag(ids, decoded, offsets, mode="max", include_last_offset=True))
            mean = rows.embedding_bag(ids, offsets, "mean", dtype=name, include_last_offset=True)
            expected = embedding_bag(ids, decoded, offsets, mode="mean", include_last_offset=True)
            np.testing.assert_allclose(mean, expected, atol=1e-5)


def test_int8_rows_carry_a_scale(tmp_path):
    rng = np.random.default_rng(5)
    codes = rng.integers(-127, 128, (100, 12)).astype(np.int8)
    scale = rng.random(100, np.float32)
    packed = np.concatenate([codes.view(np.uint8), scale.view(np.uint8).reshape(100, 4)], 1)
    decoded = codes * scale[:, None]
    pack_native(packed, tmp_path / "t.men")
    ids = rng.integers(0, 100, (30, 7))
    with NativeRows(tmp_path / "t.men") as rows:
        np.testing.assert_array_equal(rows.gather_floats(ids, "int8"), decoded[ids])
        exact = decoded.astype(np.float64)[ids]
        for mode, expected in (("sum", exact.sum(1)), ("mean", exact.mean(1)), ("max", exact.max(1))):
            np.testing.assert_allclose(rows.embedding_bag(ids, mode=mode, dtype="int8"), expected, rtol=1e-5, atol=1e-4)


def test_four_bit_rows_of_an_odd_number_of_columns(tmp_path):
    scale = np.array([0.5, 1.0], np.float16).view(np.uint8)
    pack_native(np.concatenate([[0x21, 0x03], scale])[None].astype(np.uint8), tmp_path / "t.men")
    with NativeRows(tmp_path / "t.men") as rows:
        assert rows.gather_floats(0, "int4_rowwise").tolist() == [1.5, 2.0, 2.5, 1.0]
        assert rows.gather_floats(0, "int4_rowwise", dim=3).tolist() == [1.5, 2.0, 2.5]
        assert rows.embedding_bag([[0, 0]], dtype="int4_rowwise", dim=3).tolist() == [[3.0, 4.0, 5.0]]
        for dim in (2, 5, 0, -1):
            with pytest.raises(errors.ArgumentError):
                rows.gather_floats(0, "int4_rowwise", dim=dim)


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_rows_decode_to_float32(tmp_path, encoding):
    rng = np.random.default_rng(6)
    for name, dtype in FLOATS.items():
        weight = weight_of(rng, 100, 9, dtype)
        with table_of(tmp_path / f"{name}.men", weight, encoding, query_chunk_rows=77) as rows:
            for shape in ((), (0,), (5, 0), (3000,), (4, 5)):
                ids = rng.integers(0, 100, shape)
                got = rows.gather_floats(ids, name)
                assert got.dtype == np.float32
                same_bits(torch.from_numpy(got), weight[torch.from_numpy(np.asarray(ids))].float())
                out = nans(*shape, 9, dtype=torch.float32)
                assert rows.gather_floats(ids, dtype, out=out) is out
                np.testing.assert_array_equal(out, got)
            with pytest.raises(errors.DtypeError):
                rows.gather_floats([1], name, out=np.empty((1, 9), np.float64))
            with pytest.raises(errors.ArgumentError):
                rows.gather_floats([1], name, out=np.empty((9, 1), np.float32))
