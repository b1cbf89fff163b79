"""Arguments of tables that are odd: masks, lists as weights, tensors without plain memory, memory of two uses."""

import sys

import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    MappedMultiHeadEmbedding,
    NativeRows,
    QuantizedRows,
    export_embedding,
    export_embedding_bag,
    export_multihead,
    open_embedding_bag,
    pack_native,
    pack_quantized,
    replace_embeddings,
)
from tests.bags import table_of
from tests.processes import run_python

MASKED = np.ma.array([1, 2], mask=[False, True])
FLOATS = np.ma.array([1, 2], mask=[False, True], dtype=np.float32)
NEGATIVE = torch._neg_view(torch.tensor([-1.0, -2.0]))
META = torch.zeros(2, device="meta")
NUMBERS = np.arange(80, dtype=np.float32).reshape(10, 8)


@pytest.fixture
def rows(tmp_path):
    with table_of(tmp_path / "t.men", torch.from_numpy(NUMBERS)) as table:
        yield table


@pytest.fixture
def quantized(tmp_path):
    pack_quantized(NUMBERS, tmp_path / "q", "fp32")
    with QuantizedRows(tmp_path / "q") as table:
        yield table


# ---- weights -------------------------------------------------------------------------------------

#: Ties, a number that is rounded once more on the way by float32, infinity, NaN, and what is tiny.
LISTED = [0.1, 1.00390625, 1.01171875, 1 + 2**-11 + 2**-40, -3.4e38, 1e300, float("nan"), 1e-41, 2**24 + 1, -0.0]

ROUNDED = """
    import sys
    if sys.argv[1] == "hidden":
        sys.modules["ml_dtypes"] = None
    import numpy as np, torch
    from ngram_store._kinds import Kind
    given = eval(sys.argv[2], {"inf": float("inf"), "nan": float("nan")})
    for name, whole in (("bfloat16", np.int16), ("float16", np.int16), ("float32", np.int32), ("float64", np.int64)):
        for listed in (given, [given, given[::-1]], [7, -(1 << 60)], [], [np.float32(0.3), 2]):
            want = torch.tensor(np.array(listed).tolist(), dtype=getattr(torch, name))
            kind = Kind(name, 4, 4 * want.element_size(), None)
            owner, where = kind.weights(listed, tuple(want.shape))
            bits = want.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[want.element_size()]).numpy()
            np.testing.assert_array_equal(owner.view(whole), bits, err_msg=f"{name} {listed}")
"""


@pytest.mark.parametrize("ml_dtypes", ["there", "hidden"])
def test_weights_in_lists_are_rounded_as_torch_does(ml_dtypes):
    run_python(ROUNDED, ml_dtypes, LISTED)


def test_listed_weights_of_bfloat16_need_no_ml_dtypes(tmp_path):
    weight = torch.arange(24, dtype=torch.bfloat16).reshape(6, 4)
    table_of(tmp_path / "t.men", weight).close()
    code = """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np, torch
        from ngram_store import NativeRows
        out = torch.empty(1, 4, dtype=torch.bfloat16)
        NativeRows(sys.argv[1]).embedding_bag([1, 2], [0], weights=[0.1, 1.00390625], dtype="bf16", out=out)
        weight = torch.arange(24, dtype=torch.bfloat16).reshape(6, 4)
        factors = torch.tensor([0.1, 1.00390625], dtype=torch.bfloat16)
        ids, offsets = torch.tensor([1, 2]), torch.tensor([0])
        want = torch.nn.functional.embedding_bag(ids, weight, offsets, mode="sum", per_sample_weights=factors)
        assert torch.equal(out, want), (out, want)
    """
    run_python(code, tmp_path / "t.men")


@pytest.mark.parametrize(
    "weights, error, text",
    [
        ([[1], [2, 3]], errors.ArgumentError, "without gaps"),
        ("ab", errors.DtypeError, "weights"),
        ([None, None], errors.DtypeError, "weights must be numbers, got object"),
        (["1", "2"], errors.DtypeError, "weights must be numbers, got <U1"),
        ([True, False], errors.DtypeError, "weights must be numbers, got bool"),
        ([1j, 2], errors.DtypeError, "weights must be numbers, got complex128"),
        ([1 << 80, 1], errors.DtypeError, "weights must be numbers, got object"),
        (META, errors.DtypeError, "weights must be a dense tensor on the CPU, got torch.strided on meta"),
        ([META[0], META[1]], errors.DtypeError, "weights must be numbers that NumPy can see"),
        (torch.ones(2).to_sparse(), errors.DtypeError, "got torch.sparse_coo"),
        (torch.tensor([1j, 2]).conj(), errors.DtypeError, "not of complex64"),
        (FLOATS, errors.DtypeError, "weights must have no mask"),
        ([np.ma.masked, 1.0], errors.DtypeError, "weights must have no mask"),
        (np.ones(2), errors.DtypeError, "must be of float32, not of float64"),
    ],
    ids=str,
)
def test_odd_weights_are_refused(rows, quantized, weights, error, text):
    with pytest.raises(error, match=text):
        rows.embedding_bag([1, 2], [0], weights=weights)
    with pytest.raises(error, match=text):
        quantized.embedding_bag([1, 2], [0], weights=weights)


@pytest.mark.parametrize("strategy", ["fused", "unique", "chunked"])
def test_a_modules_odd_weights_are_refused(tmp_path, strategy):
    export_embedding_bag(torch.nn.EmbeddingBag(10, 8, mode="sum"), tmp_path / "b")
    ids, offsets = torch.tensor([1, 2]), torch.tensor([0])
    with open_embedding_bag(tmp_path / "b", strategy=strategy) as bag, torch.no_grad():
        for weights in (META, torch.ones(2).to_sparse(), [1.0, 2.0], torch.ones(2, dtype=torch.float64)):
            with pytest.raises(errors.DtypeError):
                bag(ids, offsets, weights)
        odd = torch.tensor([1, 2]).to_sparse()
        with pytest.raises(errors.DtypeError):
            bag(odd, offsets)
        with pytest.raises(errors.DtypeError):
            bag(ids, odd)
        assert torch.equal(bag(ids, offsets, NEGATIVE), bag(ids, offsets, torch.tensor([1.0, 2.0])))
        assert torch.equal(bag(torch._neg_view(-ids), offsets), bag(ids, offsets))


def test_what_is_not_yet_computed_gives_the_right_numbers(rows, quantized, tmp_path):
    ids = torch._neg_view(torch.tensor([-1, -2]))
    np.testing.assert_array_equal(rows.gather(ids, dtype="float32"), NUMBERS[[1, 2]])
    np.testing.assert_array_equal(quantized.gather(ids), NUMBERS[[1, 2]])
    want = NUMBERS[1] + 2 * NUMBERS[2]
    np.testing.assert_array_equal(rows.embedding_bag(ids, [0], weights=NEGATIVE)[0], want)
    np.testing.assert_array_equal(rows.embedding_bag([1, 2], torch._neg_view(torch.tensor([0, -1])))[1], NUMBERS[2])
    big = np.array([1, 2], ">f4")  # and so are numbers of another byte order
    np.testing.assert_array_equal(rows.embedding_bag([1, 2], [0], weights=big)[0], want)
    for call in (
        lambda out: rows.gather_into([1, 2], out),
        lambda out: rows.gather_floats([1, 2], "fp32", out),
        lambda out: rows.embedding_bag([1, 2], [0, 1], out=out),
        lambda out: quantized.gather_into([1, 2], out),
    ):
        with pytest.raises(errors.ArgumentError, match="resolve_neg"):
            call(torch._neg_view(torch.zeros(2, 8)))
    negated = torch._neg_view(-torch.from_numpy(NUMBERS))
    for source in (negated, iter([negated])):
        pack_native(source, tmp_path / "n.men")
        with NativeRows(tmp_path / "n.men") as packed:
            np.testing.assert_array_equal(packed.gather(np.arange(10), dtype="float32"), NUMBERS)
    pack_native(NUMBERS, tmp_path / "o.men", row_order=torch._neg_view(-torch.arange(9, -1, -1)))
    pack_quantized(negated, tmp_path / "nq", "fp32")
    with QuantizedRows(tmp_path / "nq") as packed:
        np.testing.assert_array_equal(packed.gather(np.arange(10)), NUMBERS)
    export_embedding(torch.nn.Embedding.from_pretrained(torch.from_numpy(NUMBERS)), tmp_path / "e")
    with MappedEmbedding(tmp_path / "e") as mapped:
        assert torch.equal(mapped(ids), torch.from_numpy(NUMBERS[[1, 2]]))
        mapped.prefetch(ids)


# ---- masks ---------------------------------------------------------------------------------------


def test_masks_are_refused_wherever_they_would_go_unseen(rows, quantized, tmp_path):
    room = np.ma.zeros((2, 8), np.float32)
    new = tmp_path / "new"
    calls = {
        "ids": [
            lambda: rows.gather(MASKED), lambda: rows.gather_into(MASKED, bytearray(64)), lambda: rows.prefetch(MASKED),
            lambda: rows.gather([MASKED, MASKED]), lambda: rows.gather([[MASKED], [MASKED]]),
            lambda: rows.prefetch(([1, 2], [[[1], MASKED]])), lambda: rows.gather_floats(MASKED, "fp32"),
            lambda: rows.embedding_bag(MASKED, [0]), lambda: quantized.gather(MASKED),
            lambda: quantized.gather_into(MASKED, np.empty((2, 8), np.float32)), lambda: quantized.prefetch(MASKED),
        ],
        "offsets": [lambda: rows.embedding_bag([1, 2], MASKED - 1)],
        "row_order": [lambda: pack_native(NUMBERS[:2], new, row_order=MASKED - 1)],
        "source": [lambda: pack_native(np.ma.array(NUMBERS), new)],
        "a chunk": [lambda: pack_native(iter([np.ma.array(NUMBERS)]), new)],
        "matrix": [lambda: pack_quantized(np.ma.array(NUMBERS), new, "int8")],
        "an array": [
            lambda: rows.gather([1, 2], room), lambda: rows.gather_into([1, 2], room),
            lambda: rows.embedding_bag([1, 2], [0, 1], out=room), lambda: rows.gather_floats([1, 2], "fp32", room),
            lambda: quantized.gather_into([1, 2], room),
            lambda: quantized.gather_into([1, 2], np.empty((2, 8), np.float32), np.ma.zeros(64, np.uint8)),
        ],
    }  # fmt: skip
    for name, refused in calls.items():
        for call in refused:
            with pytest.raises(errors.DtypeError, match=f"{name} must have no mask, got a masked array; pass .filled"):
                call()


# ---- memory of two uses --------------------------------------------------------------------------


def test_memory_for_results_lies_apart_from_what_is_read(rows, quantized):
    memory = np.zeros(4096, np.uint8)
    ids = memory[1024:1040].view(np.int64)  # rows 0 and 0
    weights, offsets = memory[1040:1048].view(np.float32), memory[1048:1064].view(np.int64)
    scratch = memory[1064:1128]
    calls = (
        ("ids", ids, 64, lambda out: rows.gather_into(ids, out)),
        ("ids", ids, 64, lambda out: rows.gather_into(torch.from_numpy(ids), torch.from_numpy(out))),
        ("ids", ids, 64, lambda out: rows.gather(ids, out)),
        ("ids", ids, 64, lambda out: rows.gather_floats(ids, "fp32", out.view(np.float32).reshape(2, 8))),
        ("ids", ids, 32, lambda out: rows.embedding_bag(ids, [0], out=memoryview(out))),
        ("offsets", offsets, 64, lambda out: rows.embedding_bag([1, 2], offsets, out=memoryview(out))),
        ("weights", weights, 32, lambda out: rows.embedding_bag([1, 2], [0], weights=weights, out=memoryview(out))),
        ("ids", ids, 64, lambda out: quantized.gather_into(ids, out.view(np.float32).reshape(2, 8))),
        ("encoded_scratch", scratch, 64,
         lambda out: quantized.gather_into([1, 2], out.view(np.float32).reshape(2, 8), scratch)),
    )  # fmt: skip
    for name, read, size, call in calls:
        at = read.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        for begin in (at - size + 4, at, at + read.nbytes - 4):
            before = memory.copy()
            with pytest.raises(errors.ArgumentError, match=rf"out must lie apart from {name} in memory, .* \d+ bytes"):
                call(memory[begin : begin + size])
            np.testing.assert_array_equal(memory, before)
        for begin in (at - size, at + read.nbytes):
            call(memory[begin : begin + size].copy())
    rows.gather_into(ids, memory[1024 - 64 : 1024])  # neighbours are no overlap
    memory[1024:1064] = 0
    rows.gather_into(ids, memory[1040 : 1040 + 64])
    memory[1024:1040] = 0
    with pytest.raises(errors.ArgumentError, match="encoded_scratch must lie apart from ids"):
        quantized.gather_into(ids, np.empty((2, 8), np.float32), memory[1000:1064])
    empty = np.frombuffer(memory, np.int64)[5:5]
    rows.gather_into(empty, memory[40:40])
    rows.embedding_bag(empty, [0], out=memoryview(memory)[32:64])


# ---- closed meanwhile ----------------------------------------------------------------------------


class Closing:
    """Closes a table when it is converted."""

    def __init__(self, table):
        self._table = table

    def __array__(self, dtype=None, copy=None):
        self._table.close()
        return np.array([1, 2])

    def __index__(self):
        self._table.close()
        return 1


@pytest.mark.parametrize("codec", ["raw", "zlib"])
def test_a_table_that_is_closed_while_arguments_are_read_says_so(tmp_path, codec):
    path = tmp_path / "t.men"
    pack_native(NUMBERS, path, codec=codec, block_rows=2)
    for call in (
        lambda rows: rows.gather(Closing(rows)),
        lambda rows: rows.gather_into(Closing(rows), bytearray(64)),
        lambda rows: rows.prefetch(Closing(rows)),
        lambda rows: rows.gather_floats(Closing(rows), "fp32"),
        lambda rows: rows.embedding_bag(Closing(rows), [0]),
        lambda rows: rows.embedding_bag([1, 2], [0], padding_idx=Closing(rows)),
        lambda rows: rows.set_cache(Closing(rows)),
    ):
        rows = NativeRows(path)
        rows._short = 0 if codec == "zlib" else rows._short  # as a job
        with pytest.raises(errors.ClosedError, match=rf"^the table {path} was closed$"):
            call(rows)


# ---- options -------------------------------------------------------------------------------------


def test_options_that_have_no_hash_or_truth_are_refused(rows, tmp_path):
    two, new = np.zeros(2), tmp_path / "new"
    embedding = torch.nn.Embedding(4, 2)
    export_embedding_bag(torch.nn.EmbeddingBag(4, 2, mode="sum"), tmp_path / "b")
    for call in (
        lambda odd: NativeRows(tmp_path / "t.men", cache_policy=odd),
        lambda odd: rows.set_cache(0, odd),
        lambda odd: rows.embedding_bag([[1]], mode=odd),
        lambda odd: rows.embedding_bag([[1]], dtype=odd),
        lambda odd: pack_quantized(NUMBERS, new, odd),
        lambda odd: pack_quantized(NUMBERS, new, "int8", native=odd),
        lambda odd: pack_native(NUMBERS, new, codec=odd),
        lambda odd: export_embedding(embedding, new, backend=odd),
        lambda odd: export_embedding(embedding, new, codec=odd),
        lambda odd: export_embedding(embedding, new, predictor=odd),
        lambda odd: open_embedding_bag(tmp_path / "b", strategy=odd),
        lambda odd: open_embedding_bag(tmp_path / "b", mode=odd),
    ):
        for odd in ([1], {"a": 1}, two, torch.zeros(2), memoryview(bytearray(2))):
            with pytest.raises(errors.ZrecordError):
                call(odd)
    assert not new.exists()
    with pytest.raises(errors.ArgumentError, match="not a path"):
        NativeRows("\ud800")


def test_flags_are_true_or_false_and_nothing_that_has_truth_or_none(rows, tmp_path):
    new, bag_path = tmp_path / "new", tmp_path / "b"
    embedding, bag, model = torch.nn.Embedding(4, 2), torch.nn.EmbeddingBag(4, 2), torch.nn.Sequential()
    made = [export_embedding_bag(bag, bag_path).path]
    export_embedding(embedding, tmp_path / "e")
    export_multihead(torch.nn.Embedding(4, 2), tmp_path / "m", head_sizes=[1, 3])
    pack_quantized(NUMBERS, tmp_path / "q", "int8")
    mapped = open_embedding_bag(*made)
    for name, call in {
        "deduplicate": [
            lambda odd: pack_native(NUMBERS, new, deduplicate=odd),
            lambda odd: export_embedding(embedding, new, deduplicate=odd),
            lambda odd: pack_quantized(NUMBERS, new, "int8", deduplicate=odd),
        ],
        "sha256": [lambda odd: pack_native(NUMBERS, new, sha256=odd)],
        "verify": [
            lambda odd: NativeRows(tmp_path / "t.men", verify=odd),
            lambda odd: QuantizedRows(tmp_path / "q", verify=odd),
            lambda odd: MappedEmbedding(tmp_path / "e", verify=odd),
            lambda odd: MappedMultiHeadEmbedding(tmp_path / "m", verify=odd),
            lambda odd: open_embedding_bag(bag_path, verify=odd),
        ],
        "overwrite": [
            lambda odd: export_embedding(embedding, new, overwrite=odd),
            lambda odd: export_embedding_bag(bag, new, overwrite=odd),
            lambda odd: export_multihead(embedding, new, head_sizes=[4], overwrite=odd),
            lambda odd: pack_quantized(NUMBERS, new, "int8", overwrite=odd),
            lambda odd: replace_embeddings(model, new, overwrite=odd),
        ],
        "include_last_offset": [
            lambda odd: rows.embedding_bag([1], [0], include_last_offset=odd),
            lambda odd: open_embedding_bag(bag_path, include_last_offset=odd),
            lambda odd: setattr(mapped, "include_last_offset", odd),
        ],
        "bits": [lambda odd: rows.embedding_bag([[1]], bits=odd)],
    }.items():
        for one in call:
            for odd in (np.zeros(2), torch.zeros(2), torch.tensor(True), 1, "yes", [], object()):
                with pytest.raises(errors.DtypeError, match=f"^{name} must be True or False, got {type(odd).__name__}"):
                    one(odd)
    for odd in (np.zeros(2), torch.zeros(2), ["input"]):
        with pytest.raises(errors.ArgumentError, match="tied must be one of 'skip', 'input'"):
            replace_embeddings(model, new, tied=odd)
    assert not new.exists()
    export_embedding(embedding, tmp_path / "e", overwrite=np.True_)
    with QuantizedRows(tmp_path / "q", verify=np.True_) as quantized:
        assert quantized.embedding_bag([1, 2], [0, 2], include_last_offset=np.True_, bits=np.False_).shape == (1, 8)
    assert not pack_quantized(NUMBERS, new, "int8", native=np.False_).native
    mapped.close()


def test_what_is_none_of_the_names_is_told_which_there_are(rows, tmp_path):
    path = tmp_path / "t.men"
    pack_native(NUMBERS, path, dtype="fp32")
    for text, call in (
        ("mode must be one of 'sum', 'mean', 'max', got", lambda odd: rows.embedding_bag([[1]], mode=odd)),
        ("mode must be one of 'sum', 'mean', 'max', got", lambda odd: MappedEmbeddingBag(path, odd)),
        ("accumulate must be one of 'torch', 'f64', got", lambda odd: rows.embedding_bag([[1]], accumulate=odd)),
        ("accumulate must be one of 'torch', 'f64', got", lambda odd: MappedEmbeddingBag(path, accumulate=odd)),
        ("cache_policy must be one of 'blocks', 'rows', got", lambda odd: NativeRows(path, cache_policy=odd)),
        ("cache_policy must be one of 'blocks', 'rows', got", lambda odd: rows.set_cache(0, odd)),
        ("kind must be one of 'fp32', 'fp16', .*'int4_rowwise', got", lambda odd: pack_quantized(NUMBERS, path, odd)),
    ):
        for odd in ("odd", 1):
            with pytest.raises(errors.ArgumentError, match=f"^{text} {odd!r}$"):
                call(odd)


# ---- rows that are no source ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, text",
    [
        ([[1.0, 2.0], [3.0, 4.0]], r"got a list that begins with a list; pass numpy\.asarray\(it, dtype\)"),
        ((1, 2), r"got a tuple that begins with a int; pass numpy\.asarray"),
        ({"w": torch.ones(2, 2)}, r"got builtins\.dict; pass one of its tensors, such as that of the key 'w'"),
        (torch.nn.Embedding(2, 2), r"sparse\.Embedding; pass its weight"),
        (torch.nn.Embedding(2, 2).state_dict(), r"OrderedDict; pass one of its tensors, .* 'weight'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_rows_but_is_no_source_is_told_what_to_pass(tmp_path, source, text):
    with pytest.raises(errors.DtypeError, match=text):
        pack_native(source, tmp_path / "t.men", row_bytes=8)
    with pytest.raises(errors.DtypeError, match=text.partition("; ")[2]):
        pack_quantized(source, tmp_path / "q", "int8")
    if not isinstance(source, torch.nn.Module):
        for export in (export_embedding, export_embedding_bag, export_multihead):
            with pytest.raises(errors.DtypeError, match=r"Embedding(Bag)?\.from_pretrained"):
                export(source, tmp_path / "e")


@pytest.mark.parametrize("chunk", [[[1, 2]], {"a": b"ab"}], ids=["list", "dict"])
def test_chunks_that_are_no_buffers_are_told_what_to_pass(tmp_path, chunk):
    with pytest.raises(errors.DtypeError, match=r"chunk 0: expected an array or a buffer of whole rows, got .*; pass "):
        pack_native(iter([chunk]), tmp_path / "t.men", row_bytes=2)


def test_chunks_may_be_memoryviews(tmp_path):
    report = pack_native(iter([memoryview(b"abcd"), memoryview(NUMBERS.reshape(-1))]), tmp_path / "t.men", row_bytes=4)
    assert report.rows == 81


def test_tensors_without_memory_are_no_source(tmp_path):
    fake = sys.modules["torch"]._subclasses.fake_tensor.FakeTensorMode()
    with fake:
        empty = torch.zeros(4, 4)
    for tensor in (empty, torch.zeros(4, 4, device="meta"), torch.zeros(4, 4).to_sparse()):
        for call in (
            lambda source: pack_native(source, tmp_path / "t.men"),
            lambda source: pack_native(iter([source]), tmp_path / "t.men"),
            lambda source: pack_quantized(source, tmp_path / "q", "int8"),
        ):
            with pytest.raises(errors.DtypeError):
                call(tensor)
