"""MappedEmbedding: nn.Embedding's rows bit for bit, and reasons for what it refuses."""

import warnings

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import ngram_store
from loaderx import errors
from ngram_store import MappedEmbedding, export_embedding, pack_native
from tests.mapped import DTYPES, assert_same_bits, fill_results
from tests.processes import run_python

N, D = 300, 24


@pytest.fixture(autouse=True)
def _results_begin_as_nan(monkeypatch):
    fill_results(monkeypatch)


@pytest.fixture(scope="module")
def original():
    torch.manual_seed(1)
    return torch.nn.Embedding(N, D, padding_idx=7)


@pytest.fixture(scope="module")
def path(original, tmp_path_factory):
    path = tmp_path_factory.mktemp("embedding") / "rows"
    export_embedding(original, path)
    return path


@pytest.fixture
def mapped(path):
    with MappedEmbedding(path) as module:
        yield module


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [1, 3, 128, 1025, 2048])
def test_rows_have_the_bits_of_the_weight(tmp_path, dim, dtype, backend):
    torch.manual_seed(dim)
    rng = np.random.default_rng(dim)
    bits = rng.integers(0, 256, (50, dim * dtype.itemsize)).astype(np.uint8)  # any number, NaN's and subnormals too
    original = torch.nn.Embedding.from_pretrained(torch.from_numpy(bits).view(dtype))
    how = {} if backend == "python" else {"predictor": [None, "auto"][dim % 2], "deduplicate": bool(dim % 2)}
    export_embedding(original, tmp_path / "e", backend, **how)
    with MappedEmbedding(tmp_path / "e", cache_bytes=1 << 16, query_chunk_rows=7) as mapped:
        assert (mapped.num_embeddings, mapped.embedding_dim, mapped.dtype) == (50, dim, dtype)
        for shape in [(), (0,), (5,), (2, 0, 3), (4, 3, 2)]:
            ids = torch.randint(50, shape)
            assert_same_bits(mapped(ids), original.weight[ids])


def test_large_results_have_the_bits_of_the_weight_and_their_own_memory(mapped, original):
    kept = []
    for seed in range(40):
        ids = torch.randint(N, (4000 + seed * 100,), generator=torch.Generator().manual_seed(seed))
        result = mapped(ids)
        assert_same_bits(result, original.weight[ids])
        # Views, arrays and storages keep the memory as the tensor does.
        holder = [result[5:9, 2:], result[3].numpy(), result.untyped_storage(), None][seed % 4]
        content = None if seed % 4 > 1 else torch.as_tensor(holder).clone()
        kept.append((holder, content, ids))
        result[:] = result  # writable
        del result
        for held, expected, at in kept:
            if expected is not None:
                assert torch.equal(torch.as_tensor(held), expected)
            elif held is not None:
                whole = torch.empty(0).set_(held)[: at.numel() * D].view(-1, D)
                assert_same_bits(whole, original.weight[at])


def test_the_memory_of_large_results_is_used_again(mapped):
    ids = torch.zeros(20_000, dtype=torch.int64)
    first = mapped(ids)
    place = first.data_ptr()
    assert place % 64 == 0
    second = mapped(ids)
    assert second.data_ptr() != place
    view = first[1:2, :1]
    del first
    assert mapped(ids).data_ptr() != place
    del view
    assert place in {r.data_ptr() for r in [mapped(ids) for _ in range(4)] + [mapped(ids)]}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_ids_of_any_integer_dtype_and_strides(mapped, original, dtype):
    ids = torch.from_numpy(np.arange(120).astype(dtype))
    for picked in (ids, ids[::3], ids.view(4, 30).T, ids.view(2, 60)[:, ::7], ids[3], ids[:1].expand(5, 2)):
        expected = original.weight[torch.from_numpy(picked.numpy().astype(np.int64))]
        assert_same_bits(mapped(picked), expected)
    array = np.arange(9)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once
        ids = torch.from_numpy(array)
    assert_same_bits(mapped(ids), original.weight[:9])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[0, 1], [2, -1]]), r"id -1 at position 3.*0 to 299.*table\.men"),
        (torch.tensor([N]), r"id 300 at position 0"),
        (torch.tensor([0, -(2**63)]), r"id -9223372036854775808 at position 1"),
        (torch.from_numpy(np.array([5, 2**63], np.uint64)), r"id 9223372036854775808 at position 1"),
        (torch.tensor([-1], dtype=torch.int8), r"id -1 at position 0"),
    ],
)
def test_ids_outside_are_named(mapped, ids, message):
    with pytest.raises(IndexError, match=message) as caught:
        mapped(ids)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize(
    "ids",
    [
        torch.ones(2),
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, dtype=torch.complex64),
        [1, 2],
        np.ones(2, np.int64),
        None,
        3,
    ],
    ids=str,
)
def test_what_is_no_tensor_of_integers_is_refused(mapped, ids):
    with pytest.raises(errors.DtypeError, match="ids must be") as caught:
        mapped(ids)
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, RuntimeError)


def test_ids_on_another_device_are_refused_with_the_reason(mapped):
    with FakeTensorMode(), pytest.raises(errors.DtypeError, match=r"cuda:0.*read by the CPU"):
        mapped(torch.empty(3, dtype=torch.int64, device="cuda:0"))
    assert mapped(torch.empty(3, dtype=torch.int64, device="meta")).shape == (3, D)


def test_it_has_the_attributes_of_the_original_but_no_weight(mapped, original, path):
    for name in ("num_embeddings", "embedding_dim", "padding_idx"):
        assert getattr(mapped, name) == getattr(original, name)
    assert not mapped.training and mapped.path == str(path) and "300, 24" in repr(mapped)
    assert not hasattr(mapped, "weight") and not list(mapped.parameters()) and mapped.state_dict() == {}
    with pytest.raises(AttributeError, match=r"no 'weight': the rows stay in the table's file"):
        mapped.weight  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'anything'"):
        mapped.anything  # noqa: B018
    with pytest.raises(errors.UnsupportedError, match="weight"):
        mapped.weight = original.weight
    report = mapped.load_state_dict(original.state_dict(), strict=False)
    assert report.unexpected_keys == ["weight"]


def test_training_is_refused_with_the_reason(mapped, original):
    ids = torch.tensor([1, 2])
    mapped.train()
    with pytest.raises(errors.UnsupportedError, match=r"training mode.*\.eval\(\)"):
        mapped(ids)
    with torch.no_grad():
        assert_same_bits(mapped(ids), original.weight[ids])
    mapped.eval()
    assert not mapped(ids).requires_grad


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda m: m.to("cuda"), r"can't be moved.*file that the CPU reads.*module\(ids.cpu\(\)\).to\(device\)"),
        (lambda m: m.cuda(), "can't be moved"),
        (lambda m: m.to("meta"), "can't be moved to meta"),
        (lambda m: m.to_empty(device="meta"), "can't be moved to meta"),
        (lambda m: torch.nn.Sequential(m).to("meta"), "can't be moved to meta"),
        (lambda m: m.half(), "holds torch.float32 and can't become torch.float16"),
        (lambda m: m.to(torch.float64), "can't become torch.float64"),
    ],
)
def test_other_devices_and_dtypes_are_refused_with_the_reason(mapped, move, message):
    with pytest.raises(errors.UnsupportedError, match=message):
        move(mapped)


def test_moves_to_where_it_is_are_fine(mapped, original):
    for moved in (mapped.cpu(), mapped.float(), mapped.to("cpu", torch.float32), mapped.requires_grad_(False)):
        assert_same_bits(moved(torch.tensor([5])), original.weight[5:6])


def test_inference_mode_autocast_and_default_devices_leave_it_alone(mapped, original):
    ids = torch.randint(N, (9000,))
    for context in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta")):
        with context:
            small, large = mapped(ids[:3]), mapped(ids)
        for result, expected in ((small, original.weight[ids[:3]]), (large, original.weight[ids])):
            assert_same_bits(result, expected)
    with torch.inference_mode():
        assert mapped(ids).is_inference() and mapped(ids[:3]).is_inference()


def test_jagged_tensors_give_jagged_rows(mapped, original):
    ids = torch.nested.nested_tensor([torch.tensor([1, 2, 3]), torch.tensor([7])], layout=torch.jagged)
    got, expected = mapped(ids), original(ids)
    assert got.layout == torch.jagged and got.shape == expected.shape
    assert_same_bits(got.values(), expected.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        strided = torch.nested.nested_tensor([torch.tensor([1, 2, 3]), torch.tensor([7])])
    with pytest.raises(errors.ArgumentError, match="jagged"):
        mapped(strided)


def test_vmap_looks_all_examples_up_at_once(mapped, original):
    ids = torch.randint(N, (4, 5))
    assert_same_bits(torch.vmap(mapped)(ids), original.weight[ids])
    assert_same_bits(torch.vmap(mapped, in_dims=1, out_dims=1)(ids), original.weight[ids])


def test_a_bare_table_that_records_its_dtype_needs_none(original, tmp_path):
    file = tmp_path / "t.men"
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        weight = original.weight.to(dtype)
        pack_native(weight, file)
        for given in (None, dtype):
            with MappedEmbedding(file, dtype=given) as mapped:
                assert mapped.dtype == dtype
                assert_same_bits(mapped(torch.arange(N)), weight)
        other = torch.float32 if dtype != torch.float32 else torch.float16
        with pytest.raises(errors.DtypeError, match=r"records that its rows are \w+; dtype is"):
            MappedEmbedding(file, dtype=other)
    pack_native(original.weight.detach().view(torch.uint8), file, dtype="int8")
    with pytest.raises(errors.DtypeError, match="int8"):
        MappedEmbedding(file)


def test_a_bare_table_that_records_none_needs_a_dtype(original, tmp_path):
    file = tmp_path / "t.men"
    pack_native(original.weight.detach().view(torch.uint8), file, codec="zstd")
    with MappedEmbedding(file, dtype=torch.float32) as mapped:
        assert_same_bits(mapped(torch.arange(N)), original.weight)
        assert mapped.padding_idx is None
    with MappedEmbedding(file, dtype="float16") as mapped:
        assert mapped.embedding_dim == 2 * D
    MappedEmbedding(file, dtype="float32", verify=True).close()
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    with pytest.raises(errors.CorruptRecordError, match="damaged"):
        MappedEmbedding(file, dtype="float32", verify=True)
    for dtype, error in (
        (None, errors.ArgumentError), ("int8", errors.DtypeError), (torch.int32, errors.DtypeError),
        (np.int8, errors.DtypeError), ("fp8", errors.DtypeError),
    ):  # fmt: skip
        with pytest.raises(error, match="dtype must be one of"):
            MappedEmbedding(file, dtype=dtype)


def test_arguments_are_checked(path, tmp_path):
    with pytest.raises(errors.DtypeError, match="holds float32, not float16"):
        MappedEmbedding(path, dtype=torch.float16)
    with pytest.raises(FileNotFoundError, match="native_library"):
        MappedEmbedding(path, native_library=tmp_path / "libmeft_rows.so")
    (tmp_path / "libmeft_rows.so").write_bytes(b"")
    MappedEmbedding(path, tmp_path / "libmeft_rows.so", 1 << 20, "rows", None, threads=1, verify=True).close()
    with pytest.raises(errors.ArgumentError, match="cache_policy"):
        MappedEmbedding(path, native_cache_policy="most")
    with pytest.raises(errors.StoreNotFoundError, match="does not exist"):
        MappedEmbedding(tmp_path / "nothing")
    with pytest.raises(errors.StoreNotFoundError, match=r"has no bundle\.json"):
        MappedEmbedding(tmp_path)


def test_prefetch_and_counts(path):
    with MappedEmbedding(path) as mapped:
        mapped.prefetch(torch.tensor([[1, 2], [3, 4]]))
        mapped(torch.tensor([1, 2, 3]))
        assert mapped.stats()["rows"] == 3
        with pytest.raises(IndexError):
            mapped.prefetch(torch.tensor([N]))


def test_the_package_is_imported_without_torch():
    run_python(
        """
        import sys
        sys.modules["torch"] = None  # importing it raises
        import numpy as np, tempfile, ngram_store
        from ngram_store import NativeRows, pack_native
        file = tempfile.mkdtemp() + "/t.men"
        pack_native(np.arange(12, dtype=np.float32).reshape(4, 3), file)
        assert NativeRows(file).gather([2], dtype="f4").tolist() == [[6, 7, 8]]
        assert "MappedEmbedding" in dir(ngram_store)
        try:
            ngram_store.MappedEmbedding
        except ImportError:
            print("no torch")
        """
    )
    with pytest.raises(AttributeError, match="no attribute"):
        ngram_store.Nothing  # noqa: B018


def test_the_names_in_tools_are_the_same():
    from tools import engram_row_adapter, mapped_embedding_bag

    for module in (engram_row_adapter, mapped_embedding_bag):
        for name in module.__all__:
            assert getattr(module, name) is getattr(ngram_store, name)
