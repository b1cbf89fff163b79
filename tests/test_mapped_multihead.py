"""MappedMultiHeadEmbedding: Engram's module output, and errors where it reads the next head."""

import copy

import pytest
import torch

from loaderx import errors
from ngram_store import (
    MappedMultiHeadEmbedding,
    export_demo_embedding,
    export_embedding,
    export_multihead,
    pack_native,
)
from tests.mapped import DTYPES, Engram, MultiHeadEmbedding, assert_same_bits, fill_results

SIZES = [53, 59, 61, 67]


@pytest.fixture(autouse=True)
def _results_begin_as_nan(monkeypatch):
    fill_results(monkeypatch)


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(2)
    return MultiHeadEmbedding(SIZES, 16)


@pytest.fixture(scope="module")
def path(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("heads") / "rows"
    export_multihead(original, path)
    return path


@pytest.fixture
def mapped(path):
    with MappedMultiHeadEmbedding(path) as module:
        yield module


def some_ids(*shape):
    return torch.stack([torch.randint(size, shape) for size in SIZES], -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", ["native", "python"])
def test_output_has_the_originals_bits(tmp_path, backend, dtype):
    original = MultiHeadEmbedding(SIZES, 24, dtype)
    export_multihead(original, tmp_path / "m", backend)
    with MappedMultiHeadEmbedding(tmp_path / "m", cache_bytes=1 << 16) as mapped:
        for shape in [(), (5,), (2, 7), (0,), (3, 0, 2)]:
            ids = some_ids(*shape)
            got = mapped(ids)
            assert got.is_contiguous() and got.shape == (*shape, 4, 24)
            assert_same_bits(got, original(ids))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.int16])
def test_ids_of_any_integer_dtype_and_strides(mapped, original, dtype):
    ids = some_ids(6, 8).to(dtype)
    for picked in (ids, ids[::2, ::3], ids.transpose(0, 1), ids[..., :1].expand(6, 8, 4)):
        assert_same_bits(mapped(picked), original(picked.long()))


def test_ids_broadcast_over_heads_as_in_the_original(mapped, original):
    for ids in (torch.tensor(5), torch.tensor([5]), torch.tensor([[5], [52]]), torch.zeros(2, 3, 1, dtype=torch.int32)):
        assert_same_bits(mapped(ids), original(ids))
    for shape in [(3,), (4, 3), (2,), (4, 2)]:
        for module in (mapped, original):
            with pytest.raises(RuntimeError):
                module(torch.zeros(shape, dtype=torch.int64))
        with pytest.raises(errors.ArgumentError, match="the last dimension must be 4"):
            mapped(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("head", range(4))
def test_an_id_outside_its_head_is_an_error_and_no_row_of_the_next(mapped, original, head):
    ids = some_ids(3)
    ids[1, head] = SIZES[head]
    if head < 3:
        assert torch.equal(original(ids)[1, head], original.embedding.weight[sum(SIZES[: head + 1])])
    position = 4 + head
    message = rf"id {SIZES[head]} at position {position} is outside head {head}: want 0 to {SIZES[head] - 1}"
    with pytest.raises(IndexError, match=message):
        mapped(ids)
    for value in (-1, -(2**63), 2**63 - 1):
        ids[1, head] = value
        with pytest.raises(IndexError, match=f"id {value} at position {position}"):
            mapped(ids)
    large = torch.zeros(3, 4, dtype=torch.uint64)
    large[1, head] = 2**64 - 1
    with pytest.raises(IndexError, match=f"id {2**64 - 1} at position {position}"):
        mapped(large)


def test_ids_that_are_no_integers_are_refused(mapped):
    for ids in (torch.ones(4), torch.ones(4, dtype=torch.bool), [0, 0, 0, 0], None):
        with pytest.raises(errors.DtypeError, match="ids must be"):
            mapped(ids)


def test_it_has_the_attributes_and_the_state_of_the_original(mapped, original):
    assert (mapped.num_heads, mapped.embedding_dim, mapped.num_embeddings) == (4, 16, sum(SIZES))
    assert mapped.head_sizes == tuple(SIZES)
    assert_same_bits(mapped.offsets, original.offsets)
    assert list(mapped.state_dict()) == ["offsets"]
    assert dict(mapped.named_buffers()).keys() == {"offsets"}
    report = mapped.load_state_dict(original.state_dict(), strict=False)
    assert report.unexpected_keys == ["embedding.weight"] and not report.missing_keys
    mapped.load_state_dict(mapped.state_dict())
    report = copy.deepcopy(original).load_state_dict(mapped.state_dict(), strict=False)
    assert report.missing_keys == ["embedding.weight"]
    with pytest.raises(RuntimeError, match="offsets are"):
        mapped.load_state_dict({"offsets": original.offsets + 1})
    for name in ("weight", "embedding"):
        with pytest.raises(AttributeError, match="stay in the table's file"):
            getattr(mapped, name)


def test_training_and_moves_are_refused(mapped):
    mapped.train()
    with pytest.raises(errors.UnsupportedError, match="training mode"):
        mapped(some_ids(2))
    with pytest.raises(errors.UnsupportedError, match="can't be moved"):
        mapped.to("meta")
    assert mapped.offsets.device.type == "cpu"


@pytest.mark.parametrize("how", ["fresh", "compiled", "copied"])
def test_inside_engram_it_gives_the_same_output(tmp_path, how):
    torch.manual_seed(7)
    sizes = [101, 103, 107, 109, 113, 127, 131, 137]
    engram = Engram(sizes, 8).eval()
    hidden, tokens = torch.randn(3, 11, 2, 32), torch.randint(1000, (3, 11))
    with torch.no_grad():
        expected = engram(hidden, tokens)
        export_demo_embedding(engram.multi_head_embedding, sizes, tmp_path / "m", predictor="auto")
        engram.multi_head_embedding = MappedMultiHeadEmbedding(tmp_path / "m", cache_bytes=1 << 20)
        model = copy.deepcopy(engram) if how == "copied" else engram
        if how == "compiled":
            model = torch.compile(engram, backend="eager", fullgraph=True)
        assert_same_bits(model(hidden, tokens), expected)
    engram.train()
    with pytest.raises(errors.UnsupportedError, match="training mode"):
        engram(hidden, tokens)
    engram.multi_head_embedding.eval()
    engram(hidden, tokens).sum().backward()
    assert engram.value_proj.weight.grad is not None


def test_inference_mode_autocast_and_default_devices_leave_it_alone(mapped, original):
    sizes = torch.tensor(mapped.head_sizes)
    for n in (3, 30_000):  # results of torch's, and the pool's
        ids = torch.randint(1 << 30, (n, mapped.num_heads)) % sizes
        for context in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
            with context:
                got = mapped(ids)
            assert_same_bits(got, original(ids))


def test_a_bundle_without_heads_is_refused(tmp_path):
    export_embedding(torch.nn.Embedding(5, 3), tmp_path / "e")
    with pytest.raises(errors.StoreFormatError, match="no heads"):
        MappedMultiHeadEmbedding(tmp_path / "e")
    pack_native(torch.zeros(5, 3), tmp_path / "t.men")
    with pytest.raises(errors.StoreFormatError, match="a table and no bundle: it has no heads"):
        MappedMultiHeadEmbedding(tmp_path / "t.men")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([53, 59, 61, 66], "add up to 239"),
        ([53, 59, 61], "add up to 173"),
        ([53, 59, 61, 67, 0], "at least 1"),
        ([53, 59, 61, 68, -1], "at least 1"),
        ([], "at least 1"),
        ([59, 53, 61, 67], "offsets are"),
        ([112, 61, 67], "offsets are"),
        ([53.0, 59, 61, 67], "must be integers"),
        (240, "must be integers"),
        ("abc", "must be integers"),
    ],
)
def test_bad_head_sizes_are_refused_at_export(original, tmp_path, sizes, message):
    with pytest.raises(errors.ZrecordError, match=message):
        export_demo_embedding(original, sizes, tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_exports_of_other_shapes_of_originals(original, tmp_path):
    export_demo_embedding(original.embedding, SIZES, tmp_path / "a")
    export_multihead(original, tmp_path / "b", head_sizes=SIZES)
    for name in "ab":
        with MappedMultiHeadEmbedding(tmp_path / name, verify=True) as mapped:
            ids = some_ids(5)
            assert_same_bits(mapped(ids), original(ids))
    with pytest.raises(errors.ArgumentError, match="no offsets"):
        export_multihead(original.embedding, tmp_path / "c")
    with pytest.raises(errors.DtypeError, match="expected a torch"):
        export_demo_embedding(torch.nn.Linear(2, 2), [2], tmp_path / "c")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([0, 50], "expected torch.Tensor"),
        ("0", "expected torch.Tensor"),
        (torch.tensor([0, 51]), "offsets are"),
        (torch.tensor([0]), "size mismatch"),
        (torch.tensor(0), "size mismatch"),
        (torch.zeros(2, dtype=torch.long, device="meta"), "meta device"),
    ],
)
def test_offsets_that_are_none_are_refused_as_torch_does(tmp_path, given, message):
    export_multihead(MultiHeadEmbedding([50, 7], 4), tmp_path / "m")
    with MappedMultiHeadEmbedding(tmp_path / "m") as mapped:
        with pytest.raises(RuntimeError, match=message):
            mapped.load_state_dict({"offsets": given})
        mapped.load_state_dict({"offsets": torch.tensor([0, 50])})
        assert mapped.offsets.tolist() == [0, 50]
