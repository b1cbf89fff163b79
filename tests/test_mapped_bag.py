"""MappedEmbeddingBag: nn.EmbeddingBag's bits, its rules for arguments, and its classes of errors."""

import warnings

import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import MappedEmbeddingBag, export_embedding_bag, open_embedding_bag
from tests.mapped import DTYPES, assert_same_bits, fill_results

N, D = 200, 20
STRATEGIES = ["fused", "unique", "chunked"]
MODES = ["sum", "mean", "max"]
EMPTY = torch.empty(0, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _results_begin_as_nan(monkeypatch):
    fill_results(monkeypatch)


def long(*ids):
    return torch.tensor(ids, dtype=torch.int64)


@pytest.fixture(scope="module")
def weight():
    torch.manual_seed(3)
    weight = torch.randn(N, D)
    weight[5] = 0.0
    weight[6] = -0.0
    weight[8, ::3] = float("nan")
    weight[9, ::2] = float("inf")
    weight[10] = -weight[9]
    weight[11] = 1e-40
    return weight


@pytest.fixture(scope="module")
def path(weight, tmp_path_factory):
    path = tmp_path_factory.mktemp("bag") / "rows"
    export_embedding_bag(torch.nn.EmbeddingBag.from_pretrained(weight), path)
    return path


@pytest.fixture(params=STRATEGIES)
def bag(request, path, weight):
    """Make a mapped bag and the original of the same options."""
    opened = []

    def make(**options):
        opened.append(MappedEmbeddingBag(path, strategy=request.param, chunk_rows=4, **options))
        return opened[-1], torch.nn.EmbeddingBag(*weight.shape, _weight=weight, **options)

    yield make
    for module in opened:
        module.close()


def fits(rng, n, bags):
    """Return offsets of bags that cover n ids, some of them empty."""
    return torch.from_numpy(np.sort(np.append(0, rng.integers(0, n + 1, bags - 1))))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 3, 16, 128, 1025, 2048])
def test_random_bags_have_torchs_bits(tmp_path, dim, dtype, threads):
    rng = np.random.default_rng(dim + threads)
    rows = int(rng.integers(2, 400))
    weight = torch.from_numpy(rng.standard_normal((rows, dim)) * 3).to(dtype)
    original = torch.nn.EmbeddingBag.from_pretrained(weight)
    compressed = {"codec": "zstd"} if threads == 2 else {}
    export_embedding_bag(original, tmp_path / "b", block_rows=16, **compressed)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for case in range(9):
            mode = MODES[case % 3]
            padding = [None, int(rng.integers(-rows, rows)), None][case // 3]
            last = bool(rng.random() < 0.5)
            original = torch.nn.EmbeddingBag(
                rows, dim, _weight=weight, mode=mode, padding_idx=padding, include_last_offset=last
            )
            n = int(rng.integers(0, 300))
            ids = torch.from_numpy(rng.integers(0, rows, n))
            if padding is not None:
                ids[rng.random(n) < 0.3] = padding % rows
            if rng.random() < 0.3:
                ids = ids[: n // 7 * 7].view(-1, 7)
                offsets, last = None, False
            else:
                offsets = fits(rng, n, int(rng.integers(1, 40)))
                offsets = torch.cat([offsets, long(n)]) if last else offsets
            weights = None
            if mode == "sum" and rng.random() < 0.6:
                weights = torch.from_numpy(rng.standard_normal(ids.shape)).to(dtype)
            expected = original(ids, offsets, weights)
            for strategy in STRATEGIES:
                options = {
                    "chunk_rows": int(rng.integers(1, 50)),
                    "unique_method": ["auto", "sort"][rng.integers(2)],
                    "threads": threads,
                    "query_chunk_rows": int(rng.integers(1, 400)),
                }
                with MappedEmbeddingBag(tmp_path / "b", mode, padding, last, strategy, **options) as mapped:
                    torch.empty(expected.shape, dtype=dtype).fill_(float("nan"))  # what the allocator gives next
                    assert_same_bits(mapped(ids, offsets, weights), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_long_bags_of_halves_are_rounded_once(tmp_path, mode, dtype):
    torch.manual_seed(4)
    weight = torch.randn(300, 33).to(dtype)
    export_embedding_bag(torch.nn.EmbeddingBag.from_pretrained(weight), tmp_path / "b")
    ids, offsets = torch.randint(300, (5000,)), long(0, 1491, 1491, 4000)
    for padding in (None, 7):
        expected = torch.nn.EmbeddingBag(300, 33, _weight=weight, mode=mode, padding_idx=padding)(ids, offsets)
        for strategy in STRATEGIES:
            with MappedEmbeddingBag(tmp_path / "b", mode, padding, strategy=strategy, chunk_rows=100) as mapped:
                assert_same_bits(mapped(ids, offsets), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_padding_index_that_occurs_nowhere_decides_on_bits_as_in_torch(tmp_path, dtype):
    torch.manual_seed(5)
    weight = torch.randn(300, 33).to(dtype)
    export_embedding_bag(torch.nn.EmbeddingBag.from_pretrained(weight), tmp_path / "b")
    ids, offsets, weights = torch.randint(1, 300, (900,)), long(0, 100, 107, 500), torch.randn(900).to(dtype)
    differ = []
    for padding in (None, 0):
        original = torch.nn.EmbeddingBag(300, 33, _weight=weight, mode="sum", padding_idx=padding)
        differ.append(torch.cat([original(ids, offsets), original(ids, offsets, weights)]))
        for strategy in STRATEGIES:
            with MappedEmbeddingBag(tmp_path / "b", "sum", padding, strategy=strategy, chunk_rows=150) as mapped:
                assert_same_bits(mapped(ids, offsets), original(ids, offsets))
                assert_same_bits(mapped(ids, offsets, weights), original(ids, offsets, weights))
    if dtype in (torch.float32, torch.bfloat16):  # or the test would show nothing
        assert not torch.equal(*differ)


@pytest.mark.parametrize("mode", MODES)
def test_special_numbers(bag, mode):
    for padding in (None, 6):
        mapped, original = bag(mode=mode, padding_idx=padding)
        ids = long(5, 6, 6, 5, 6, 8, 1, 1, 8, 9, 10, 10, 9, 9, 11, 11, 8, 6)
        for step in (1, 2, 3, 6, 9, 18):
            expected, got = original(ids.view(-1, step)), mapped(ids.view(-1, step))
            nan = expected.isnan()  # which of them an operation gives is the processor's choice
            assert torch.equal(got.isnan(), nan)
            assert_same_bits(got.masked_fill(nan, 0), expected.masked_fill(nan, 0))


def test_max_of_nan_depends_on_the_order_as_in_torch(bag, weight):
    mapped, original = bag(mode="max")
    assert original(long(8, 1), long(0)).isnan().any() and not original(long(1, 8), long(0)).isnan().any()
    for ids in (long(8, 1), long(1, 8), long(1, 2, 3, 4, 5, 8), long(8, 1, 2, 3, 4, 5)):
        torch.testing.assert_close(mapped(ids, long(0)), original(ids, long(0)), rtol=0, atol=0, equal_nan=True)


# ---- the rules, one by one ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("ids", "offsets", "last"),
    [
        (long(1, 2, 3).view(1, 3), None, False),
        (EMPTY.view(0, 3), None, False),
        (EMPTY, EMPTY, False),
        (EMPTY, long(0), False),
        (EMPTY, long(0, 0), False),
        (EMPTY, long(0), True),
        (EMPTY, long(0, 0), True),
        (long(1, 2), long(0, 2), False),
        (long(1, 2), long(0, 0, 2, 2), False),
        (long(1, 2), long(0, 1, 2), True),
        (long(1, 2, 3, 4)[::2], long(0, 9, 1, 9)[::2], False),
        (long(1, 2, 3, 4).view(2, 2).T, None, False),
    ],
    ids=lambda value: str(getattr(value, "tolist", lambda: value)()) if value is not None else "None",
)
def test_accepted_arguments_give_what_torch_gives(bag, mode, ids, offsets, last):
    for padding in (None, 1):
        mapped, original = bag(mode=mode, include_last_offset=last, padding_idx=padding)
        assert_same_bits(mapped(ids, offsets), original(ids, offsets))


@pytest.mark.parametrize(
    ("ids", "offsets", "kind"),
    [
        (long(1, 2), None, ValueError),
        (long(1, 2).view(1, 2), long(0), ValueError),
        (long(1, 2).view(1, 1, 2), None, ValueError),
        (long(1)[0], long(0), ValueError),
        (long(1, 2), long(0, 1).view(1, 2), ValueError),
        (EMPTY.view(0, 0), None, RuntimeError),
        (EMPTY.view(3, 0), None, RuntimeError),
        (long(1, 2), long(1, 2), RuntimeError),
        (long(1, 2), long(0, 3), RuntimeError),
        (long(1, 2, 3), long(0, 2, 1), RuntimeError),
        (long(1, N), long(0), RuntimeError),
        (long(-1, 1), long(0), RuntimeError),
        (torch.ones(2), long(0), RuntimeError),
        (long(1, 2), torch.zeros(1), RuntimeError),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_refused_arguments_raise_torchs_classes(bag, mode, ids, offsets, kind):
    mapped, original = bag(mode=mode)
    falling = offsets is not None and offsets.tolist() == [0, 2, 1]
    for module in [mapped] if falling and mode == "max" else [mapped, original]:  # torch does not see it
        with pytest.raises(kind):
            module(ids, offsets)
    with pytest.raises(errors.ZrecordError):
        mapped(ids, offsets)


@pytest.mark.parametrize(
    ("ids", "offsets", "last"),
    [
        (long(1, 2, 3), long(0, 2), True),  # torch counts the third id in means only
        (long(1, 2, 3), long(0), True),
        (long(1, 2, 3), EMPTY, False),  # torch leaves all ids out, and crashes in the mode max
        (EMPTY, EMPTY, True),
        (long(1, 2), long(0, 1, 3), True),
        (long(1, 2), long(-1, 1), False),
        (long(1, 2), torch.tensor([0, 2**63], dtype=torch.uint64), False),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_offsets_must_cover_all_ids(bag, mode, ids, offsets, last):
    mapped, _original = bag(mode=mode, include_last_offset=last)
    with pytest.raises(errors.ArgumentError, match="offset"):
        mapped(ids, offsets)


def test_ids_outside_are_named(bag):
    mapped, _original = bag()
    for ids in (long(3, -1, 7), torch.tensor([3, 2**63, 1], dtype=torch.uint64), torch.tensor([3, 200, 900])):
        with pytest.raises(IndexError, match=rf"id {ids[1].item()} at position 1.*0 to 199") as caught:
            mapped(ids, long(0))
        assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("offset_dtype", ["uint8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_all_pairs_of_dtypes(bag, dtype, offset_dtype):
    mapped, original = bag(mode="sum", padding_idx=3)
    rng = np.random.default_rng(6)
    ids, offsets = rng.integers(0, 120, 60), np.array([0, 0, 10, 11, 59])
    expected = original(torch.from_numpy(ids), torch.from_numpy(offsets))
    ids, offsets = torch.from_numpy(ids.astype(dtype)), torch.from_numpy(offsets.astype(offset_dtype))
    assert_same_bits(mapped(ids, offsets), expected)
    strided = torch.stack([ids, ids], 1)[:, 0], torch.stack([offsets, offsets], 1)[:, 1]
    assert_same_bits(mapped(*strided), expected)
    fixed = ids.numpy().copy(), offsets.numpy().copy()
    for array in fixed:
        array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of arrays that are read-only
        assert_same_bits(mapped(*map(torch.from_numpy, fixed)), expected)


def test_padding_counts_from_the_end_and_must_be_inside(path, bag):
    for padding in (-1, -N, 0, N - 1, True):
        mapped, original = bag(padding_idx=padding)
        assert mapped.padding_idx == original.padding_idx
    for padding in (N, -N - 1, 2**70):
        with pytest.raises(AssertionError) as caught:
            MappedEmbeddingBag(path, padding_idx=padding)
        assert isinstance(caught.value, errors.PaddingIndexError) and isinstance(caught.value, ValueError)
    with pytest.raises(errors.DtypeError, match="padding_idx must be an int"):
        MappedEmbeddingBag(path, padding_idx=1.0)


@pytest.mark.parametrize("mode", MODES)
def test_bags_of_nothing_but_padding_are_zeros(bag, mode):
    mapped, _original = bag(mode=mode, padding_idx=8)
    zeros = torch.zeros(3, D)
    assert_same_bits(mapped(long(8, 8, 8, 8), long(0, 0, 3)), zeros)
    assert_same_bits(mapped(long(8, 8, 8, 8, 8, 8).view(3, 2)), zeros)
    assert_same_bits(mapped(EMPTY, long(0, 0, 0)), zeros)


def test_weights(bag):
    mapped, original = bag(mode="sum", padding_idx=4)
    ids, offsets = long(1, 4, 2, 3, 4, 1), long(0, 2, 2)
    weights = torch.tensor([0.1, float("nan"), -3.0, float("inf"), 2.0, 1e-30])
    assert_same_bits(mapped(ids, offsets, weights), original(ids, offsets, weights))
    assert_same_bits(mapped(ids, offsets, per_sample_weights=weights), original(ids, offsets, weights))
    square = weights.view(3, 2)
    assert_same_bits(mapped(ids.view(3, 2), None, square), original(ids.view(3, 2), None, square))
    strided = torch.stack([weights, weights], 1)[:, 0]
    assert_same_bits(mapped(ids, offsets, strided), original(ids, offsets, weights))
    assert_same_bits(
        mapped(ids.view(2, 3).T, None, weights.view(2, 3).T), original(ids.view(2, 3).T, None, weights.view(2, 3).T)
    )


def test_weights_and_rows_that_are_no_numbers_follow_ieee(bag):
    mapped, original = bag(mode="sum")
    ids = long(9, 1, 8, 2, 9, 10)  # infinities, and NaN
    for weights in (torch.tensor([0.0, float("inf"), 0.0, float("nan"), 1.0, 1.0]), torch.tensor([-1.0] * 6)):
        for step in (1, 2, 6):
            expected = original(ids.view(-1, step), None, weights.view(-1, step))
            got = mapped(ids.view(-1, step), None, weights.view(-1, step))
            assert torch.equal(got.isnan(), expected.isnan()) and expected.isnan().any()
            assert_same_bits(got.nan_to_num(0), expected.nan_to_num(0))


@pytest.mark.parametrize(
    ("mode", "weights", "kind"),
    [
        ("sum", torch.ones(3), ValueError),
        ("sum", torch.ones(2, 1), ValueError),
        ("sum", torch.ones(2).double(), RuntimeError),
        ("sum", torch.ones(2).half(), RuntimeError),
        ("sum", long(1, 1), RuntimeError),
        ("mean", torch.ones(2), NotImplementedError),
        ("max", torch.ones(2), NotImplementedError),
        ("mean", torch.ones(3), ValueError),
    ],
)
def test_refused_weights_raise_torchs_classes(bag, mode, weights, kind):
    mapped, original = bag(mode=mode)
    for module in (mapped, original):
        with pytest.raises(kind):
            module(long(1, 2), long(0), weights)
    with pytest.raises(errors.ZrecordError):
        mapped(long(1, 2), long(0), weights)


def test_gradients_are_refused_with_the_reason(bag):
    mapped, original = bag(mode="sum")
    weights = torch.ones(2, requires_grad=True)
    with pytest.raises(errors.UnsupportedError, match=r"require a gradient.*weights\.detach\(\)"):
        mapped(long(1, 2), long(0), weights)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert_same_bits(mapped(long(1, 2), long(0), weights), original(long(1, 2), long(0)))
    mapped.train()
    with pytest.raises(errors.UnsupportedError, match="training mode"):
        mapped(long(1, 2), long(0))


@pytest.mark.parametrize("mode", MODES)
def test_jagged_tensors(bag, mode):
    mapped, original = bag(mode=mode, padding_idx=2)
    ids = torch.nested.nested_tensor([long(1, 2), long(3), EMPTY, long(2, 2)], layout=torch.jagged)
    assert_same_bits(mapped(ids), original(ids))
    with pytest.raises(errors.ArgumentError, match="nested"):
        mapped(ids, long(0))
    with pytest.raises(errors.ArgumentError, match="per_sample_weights"):
        bag(mode="sum")[0](ids, None, torch.ones(5))
    with pytest.raises(ValueError, match="nested"):
        mapped(torch.nested.nested_tensor([torch.ones(2, 3, dtype=torch.int64)], layout=torch.jagged))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        strided = torch.nested.nested_tensor([long(1, 2), long(3)])
    with pytest.raises(errors.ArgumentError, match="jagged"):
        mapped(strided)
    if mode == "sum":
        weights = torch.nested.nested_tensor_from_jagged(torch.randn(5), ids.offsets())
        assert_same_bits(mapped(ids, None, weights), original(ids, None, weights))


def test_inference_mode_autocast_and_default_devices_leave_it_alone(bag):
    mapped, original = bag(mode="sum")
    for ids in (torch.randint(12, N, (9, 5)), torch.randint(12, N, (20_000, 2))):  # results of torch's, and the pool's
        weights = torch.randn(ids.shape)
        for context in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
            with context:
                got = mapped(ids), mapped(ids, None, weights)
            assert_same_bits(got[0], original(ids))
            assert_same_bits(got[1], original(ids, None, weights))
    with torch.inference_mode():
        assert mapped(ids).is_inference()


def test_its_state_is_empty_and_the_originals_has_a_weight_too_many(bag):
    mapped, original = bag()
    assert mapped.state_dict() == {} and not list(mapped.parameters())
    report = mapped.load_state_dict(original.state_dict(), strict=False)
    assert (report.missing_keys, report.unexpected_keys) == ([], ["weight"])
    with pytest.raises(AttributeError, match=r"no 'weight': the rows stay"):
        mapped.weight  # noqa: B018


@pytest.mark.parametrize("padding", [None, 3])
def test_chunked_holds_no_more_rows_than_it_may(path, weight, monkeypatch, padding):
    original = torch.nn.EmbeddingBag(*weight.shape, _weight=weight, mode="sum", padding_idx=padding)
    ids = torch.randint(12, N, (500,))
    with MappedEmbeddingBag(path, "sum", padding, strategy="chunked", chunk_rows=30) as mapped:
        fetch, held = mapped._table.fetch, []
        monkeypatch.setattr(mapped._table, "fetch", lambda rows: held.append(len(rows)) or fetch(rows))
        for offsets in (long(0), torch.arange(0, 500, 7), long(0, 3, 300, 310)):
            assert_same_bits(mapped(ids, offsets), original(ids, offsets))
        assert 20 < max(held) <= 30 + (padding is not None)  # the padding row comes on top


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_reader_in_python_gives_the_same_bags(tmp_path, dtype, mode):
    rng = np.random.default_rng(8)
    weight = torch.from_numpy(rng.standard_normal((60, 9))).to(dtype)
    original = torch.nn.EmbeddingBag(60, 9, _weight=weight, mode=mode, padding_idx=-3)
    export_embedding_bag(original, tmp_path / "b", backend="python")
    ids, offsets = torch.from_numpy(rng.integers(0, 60, 200)), fits(rng, 200, 30)
    weights = torch.from_numpy(rng.standard_normal(200)).to(dtype) if mode == "sum" else None
    for strategy in STRATEGIES:
        with open_embedding_bag(tmp_path / "b", strategy=strategy, chunk_rows=20) as mapped:
            assert_same_bits(mapped(ids, offsets, weights), original(ids, offsets, weights))
            with pytest.raises(IndexError, match=r"id 60 at position 1: want 0 to 59"):
                mapped(long(1, 60), long(0))


def test_what_is_no_tensor_is_refused(bag):
    mapped, _original = bag(mode="sum")
    for arguments in (([1, 2], long(0)), (long(1), [0]), (long(1), long(0), [1.0]), (np.ones(2, int), long(0))):
        with pytest.raises(errors.DtypeError, match="must be a tensor"):
            mapped(*arguments)


def test_attributes_may_be_set_as_torchs(bag):
    mapped, original = bag()
    ids = long(1, 2, 3, 4)
    for name, value in (("mode", "sum"), ("padding_idx", -N + 1), ("include_last_offset", True), ("mode", "max")):
        setattr(mapped, name, value)
        setattr(original, name, 1 if name == "padding_idx" else value)
        offsets = long(0, 2, 4) if mapped.include_last_offset else long(0, 2)
        assert_same_bits(mapped(ids, offsets), original(ids, offsets))
    for name, value in (("mode", "min"), ("strategy", "best"), ("padding_idx", N)):
        with pytest.raises(errors.ArgumentError, match=f"{name} must be"):
            setattr(mapped, name, value)


def test_arguments_are_checked(path):
    for options, kind in (
        ({"mode": "min"}, ValueError),
        ({"strategy": "quick"}, ValueError),
        ({"unique_method": "hash"}, ValueError),
        ({"accumulate": "f32"}, ValueError),
        ({"chunk_rows": 0}, ValueError),
        ({"chunk_rows": 1.5}, TypeError),
        ({"unique_index_bytes": -1}, ValueError),
    ):
        with pytest.raises(kind, match=next(iter(options))):
            MappedEmbeddingBag(path, **options)


def test_sums_in_float64(path, weight):
    ids = torch.randint(12, N, (300,))
    with MappedEmbeddingBag(path, "sum", accumulate="f64") as mapped:
        assert_same_bits(mapped(ids, long(0)), weight[ids].double().sum(0, keepdim=True).float())
    with (
        MappedEmbeddingBag(path, "sum", accumulate="f64", strategy="unique") as mapped,
        pytest.raises(errors.ArgumentError, match="fused"),
    ):
        mapped(ids, long(0))


def test_the_index_of_distinct_ids_is_bounded(path, bag):
    ids = torch.randint(12, N, (300,))
    expected = bag(mode="sum")[1](ids, long(0))
    for unique_index_bytes in (0, 4 * N - 1, 4 * N):
        with MappedEmbeddingBag(path, "sum", strategy="unique", unique_index_bytes=unique_index_bytes) as mapped:
            assert_same_bits(mapped(ids, long(0)), expected)
            rows = mapped.stats()["rows"]
            assert rows == len(ids.unique())
