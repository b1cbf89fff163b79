"""Mapped modules under torch.compile and torch.export: one graph, one node a look-up."""

import io
import json
import warnings

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from loaderx import errors
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    MappedMultiHeadEmbedding,
    _tensor_table,
    export_embedding,
    export_multihead,
    pack_native,
)
from tests.mapped import MultiHeadEmbedding, assert_same_bits
from tests.processes import run_python
from tests.tables import forge


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("graphs")
    export_embedding(torch.nn.Embedding(200, 16), folder / "e")
    export_multihead(MultiHeadEmbedding([30, 50, 20], 4), folder / "m")
    return folder


class Model(torch.nn.Module):
    """All three modules in a row, with something else between."""

    def __init__(self, folder):
        super().__init__()
        self.rows = MappedEmbedding(folder / "e")
        self.heads = MappedMultiHeadEmbedding(folder / "m")
        self.bag = MappedEmbeddingBag(folder / "e", "sum", padding_idx=0)
        self.linear = torch.nn.Linear(16, 4)

    def forward(self, ids, offsets, weights):
        rows = self.linear(self.rows(ids)) + self.heads(ids.view(-1, 1) % 20).sum(1)
        bags = self.linear(self.bag(ids, offsets, weights)) + self.linear(self.bag(ids.view(2, -1))).sum()
        return rows.sum() + bags


def inputs(n):
    return torch.randint(200, (2 * n,)), torch.tensor([0, 1, n]), torch.randn(2 * n)


def nodes(graph):
    return sorted(str(node.target) for node in graph.nodes if "ngram_store" in str(node.target))


NODES = ["ngram_store.embedding.default", *["ngram_store.embedding_bag.default"] * 2, "ngram_store.multi_head.default"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_keeps_one_graph(folder, backend, dynamic):
    model, graphs = Model(folder).eval(), []

    def keep(graph, example):
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, example)

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic, backend=keep)
    with torch.no_grad():
        for n in (4, 4, 6, 9):
            arguments = inputs(n)
            torch.testing.assert_close(compiled(*arguments), model(*arguments), rtol=1e-5, atol=1e-5)
    assert nodes(graphs[0].graph) == NODES
    assert len(graphs) == 1 if dynamic else len(graphs) <= 3


@pytest.mark.parametrize("strategy", ["fused", "unique", "chunked"])
def test_compiled_modules_have_the_same_bits_and_errors(folder, strategy):
    with MappedEmbeddingBag(folder / "e", "mean", strategy=strategy) as bag, MappedEmbedding(folder / "e") as rows:
        compiled = [torch.compile(module, fullgraph=True, backend="aot_eager") for module in (bag, rows)]
        ids = torch.randint(200, (5, 6), dtype=torch.int32)
        assert_same_bits(compiled[0](ids), bag(ids))
        assert_same_bits(compiled[1](ids), rows(ids))
        ids[3, 3] = 200
        for call in compiled:
            with pytest.raises(errors.RecordIndexError, match="id 200 at position 21"):
                call(ids)
    ids[3, 3] = 0
    for call in compiled:
        with pytest.raises(errors.ClosedError):
            call(ids)


def test_modules_of_one_class_are_not_confused(folder, tmp_path):
    other = torch.nn.Embedding(50, 16)
    export_embedding(other, tmp_path / "o")
    with MappedEmbedding(folder / "e") as one, MappedEmbedding(tmp_path / "o") as two:
        ids = torch.randint(50, (9,))

        @torch.compile(fullgraph=True, backend="eager")
        def both(ids):
            return one(ids), two(ids)

        first, second = both(ids)
        assert_same_bits(first, one(ids))
        assert_same_bits(second, other.weight[ids])


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_one_graph_and_runs_elsewhere(folder, tmp_path, strict):
    model, arguments = Model(folder).eval(), inputs(4)
    n = torch.export.Dim("n", min=2, max=100)
    shapes = {"ids": {0: 2 * n}, "offsets": None, "weights": {0: 2 * n}}
    program = torch.export.export(model, arguments, dynamic_shapes=shapes, strict=strict)
    assert nodes(program.graph) == NODES
    longer = inputs(7)
    with torch.no_grad():
        for given in (arguments, longer):
            torch.testing.assert_close(program.module()(*given), model(*given), rtol=1e-5, atol=1e-5)
        expected = model(*longer)
    if strict:
        return
    torch.export.save(program, tmp_path / "p.pt2")
    torch.save((longer, expected), tmp_path / "io.pt")
    run_python(
        """
        import sys, torch
        import ngram_store.embedding
        program = torch.export.load(sys.argv[1] + "/p.pt2").module()
        arguments, expected = torch.load(sys.argv[1] + "/io.pt")
        with torch.no_grad():
            torch.testing.assert_close(program(*arguments), expected, rtol=1e-5, atol=1e-5)
        """,
        tmp_path,
    )


def test_an_exported_program_refuses_another_table(tmp_path, monkeypatch):
    export_embedding(torch.nn.Embedding(20, 4), tmp_path / "e")
    mapped, ids = MappedEmbedding(tmp_path / "e"), torch.tensor([3, 4])
    program = torch.export.export(mapped, (ids,))
    file = io.BytesIO()
    torch.export.save(program, file)
    expected = mapped(ids)
    file.seek(0)
    program = torch.export.load(file).module()
    monkeypatch.setattr(_tensor_table, "_live", {})  # as in another process
    assert_same_bits(program(ids), expected)
    monkeypatch.setattr(_tensor_table, "_live", {})
    export_embedding(torch.nn.Embedding(20, 4), tmp_path / "e", overwrite=True)
    with pytest.raises(errors.CorruptRecordError, match="replaced"):
        program(ids)


def test_an_exported_program_over_a_bare_table_refuses_another_one(tmp_path):
    def table(seed):
        torch.manual_seed(seed)
        weight = torch.randn(20, 4)
        pack_native(weight, tmp_path / "t.men")
        return weight

    code = """
        import sys, torch
        import ngram_store.embedding
        from loaderx import errors
        program = torch.export.load(sys.argv[1] + "/p.pt2").module()
        try:
            print(program(torch.tensor([3, 4])).tolist())
        except errors.CorruptRecordError as error:
            assert "replaced" in str(error)
            print("refused")
        """
    weight, ids = table(1), torch.tensor([3, 4])
    with MappedEmbedding(tmp_path / "t.men", dtype="float32") as mapped:
        program = torch.export.export(mapped, (ids,))
        torch.export.save(program, tmp_path / "p.pt2")
        expected = f"{weight[ids].tolist()}\n"
        assert run_python(code, tmp_path) == expected
        (tmp_path / "copy.men").write_bytes((tmp_path / "t.men").read_bytes())
        table(2)
        assert run_python(code, tmp_path) == "refused\n"
        (tmp_path / "copy.men").replace(tmp_path / "t.men")  # what it was, in another file
        assert run_python(code, tmp_path) == expected
        assert_same_bits(program.module()(ids), weight[ids])


def test_a_bare_table_of_version_1_is_known_again_as_the_same_file_only(tmp_path, monkeypatch):
    forge(tmp_path / "t.men", np.zeros((20, 16), np.uint8))
    mapped, ids = MappedEmbedding(tmp_path / "t.men", dtype="float32"), torch.tensor([3])
    assert mapped._table.rows().info()["version"] == 1
    monkeypatch.setattr(_tensor_table, "_live", {})
    assert torch.ops.ngram_store.embedding(ids, mapped._key).tolist() == [[0.0] * 4]
    forge(tmp_path / "t.men", np.ones((20, 16), np.uint8))
    monkeypatch.setattr(_tensor_table, "_live", {})
    with pytest.raises(errors.CorruptRecordError, match="replaced"):
        torch.ops.ngram_store.embedding(ids, mapped._key)


def test_operators_refuse_what_is_no_key_of_a_table(folder, tmp_path):
    pack_native(torch.zeros(5, 4), tmp_path / "t.men")
    keys = ["garbage", "", "{}", "[]", "null", "[" * 100_000, '{"meta": {}}']
    with MappedEmbedding(folder / "e") as bundle, MappedEmbedding(tmp_path / "t.men") as bare:
        for good in (bundle._key, bare._key):
            config = json.loads(good)
            for name in config:
                for value in (None, 5, "x", [], {}) if name not in ("instance", "dtype", "path") else ():
                    keys.append(json.dumps({**config, name: value}))
            for name in ("num_embeddings", "embedding_dim", "dtype", "row_bytes", "table"):
                for value in (None, -5, "x", [], {}):
                    keys.append(json.dumps({**config, "meta": {**config["meta"], name: value}}))
            for name, value in (("sha256", ""), ("sha256", 5), ("backend", "x"), ("stamp", 5), ("stamp", [1, 2])):
                table = {**config["meta"]["table"], name: value}
                if name == "sha256":
                    table.pop("stamp", None)
                if name != "stamp" or not table["sha256"]:
                    keys.append(json.dumps({**config, "meta": {**config["meta"], "table": table}}))
            keys.append(json.dumps({**config, "path": 5}))
    ids, plan = torch.tensor([0, 1]), MappedEmbeddingBag(folder / "e")._graph_plans["fused"]
    for key in keys:
        for given in (ids, ids.to("meta")):
            for call in (
                lambda given=given, key=key: torch.ops.ngram_store.embedding(given, key),
                lambda given=given, key=key: torch.ops.ngram_store.multi_head(given, key),
                lambda given=given, key=key: torch.ops.ngram_store.embedding_bag(
                    given, given, None, key, "sum", None, False, plan
                ),
            ):
                with pytest.raises(errors.ArgumentError, match="key of a mapped module"):
                    call()


def test_the_operator_of_bags_refuses_plans_and_modes_that_are_none(folder):
    with MappedEmbeddingBag(folder / "e") as bag:
        ids, plan = torch.tensor([0, 1]), bag._graph_plans["fused"]
        for wrong in ("garbage", "", "{}", "[]", '{"strategy": "fused"}'):
            with pytest.raises(errors.ArgumentError, match="plan of a mapped bag"):
                torch.ops.ngram_store.embedding_bag(ids, ids, None, bag._key, "sum", None, False, wrong)
        with pytest.raises(errors.ArgumentError, match="mode must be one of"):
            torch.ops.ngram_store.embedding_bag(ids, ids, None, bag._key, "min", None, False, plan)


def test_other_tracers_record_the_operators(folder):
    model, arguments = Model(folder).eval(), inputs(4)
    other = inputs(4)
    with torch.no_grad():
        expected = model(*other)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls it deprecated
            traced = torch.jit.trace(model, arguments)
        torch.testing.assert_close(traced(*other), expected, rtol=1e-5, atol=1e-5)
        graph = make_fx(model)(*arguments)
        assert nodes(graph.graph) == NODES
        torch.testing.assert_close(graph(*other), expected, rtol=1e-5, atol=1e-5)
        for mode in ("fake", "symbolic"):
            graph = make_fx(model.rows, tracing_mode=mode)(arguments[0])
            assert_same_bits(graph(other[0]), model.rows(other[0]))


def test_operators_keep_torchs_rules(folder):
    with (
        MappedEmbedding(folder / "e") as rows,
        MappedMultiHeadEmbedding(folder / "m") as heads,
        MappedEmbeddingBag(folder / "e") as bag,
    ):
        plan = bag._graph_plans["fused"]
        tests = ("test_schema", "test_faketensor")
        ids, offsets = torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3])
        ops = torch.ops.ngram_store
        torch.library.opcheck(ops.embedding.default, (ids, rows._key), test_utils=tests)
        torch.library.opcheck(ops.multi_head.default, (ids, heads._key), test_utils=tests)
        for arguments in (
            (ids, offsets, None, bag._key, "mean", None, False, plan),
            (ids, offsets, torch.ones(3), bag._key, "sum", 1, True, plan),
            (ids.view(3, 1), None, None, bag._key, "max", None, False, plan),
        ):
            torch.library.opcheck(ops.embedding_bag.default, arguments, test_utils=tests)


def test_gradients_are_refused_in_graphs_too(folder):
    with MappedEmbedding(folder / "e") as rows:
        rows.train()
        with pytest.raises(Exception, match="training mode"):
            torch.compile(rows, fullgraph=True, backend="eager")(torch.tensor([1]))
