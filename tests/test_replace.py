"""Replacing the embeddings of whole models: what becomes mapped, what stays and why, and nothing by halves."""

import contextlib
import copy
import errno
import os
import pickle
import resource

import pytest
import torch
from torch import nn

import ngram_store.bundle
import ngram_store.replace
from loaderx import errors
from ngram_store import MappedEmbedding, MappedEmbeddingBag, read_bundle, replace_embeddings
from tests.mapped import Engram, assert_same_bits
from tests.processes import in_child


class Words(nn.Module):
    """Two embeddings and a bag, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8, padding_idx=1)
        self.tags = nn.ModuleDict({"a/b": nn.EmbeddingBag(20, 8, mode="sum", padding_idx=2), "again": self.words})
        self.positions = nn.Embedding(10, 8)

    def forward(self, ids):
        words = self.words(ids) + self.tags["again"](ids.flip(1)) + self.positions(torch.arange(ids.shape[1]))
        return words.sum(1) + self.tags["a/b"](ids % 20)


@pytest.fixture
def model():
    torch.manual_seed(3)
    return Words().eval()


IDS = torch.tensor([[1, 49, 2, 7], [22, 22, 0, 3]])


def reasons(report):
    return {entry.name: entry.reason for entry in report.skipped}


def state(model):
    return {name: (id(module), list(module._modules)) for name, module in model.named_modules(remove_duplicate=False)}


def test_a_model_computes_the_same_bits_from_its_tables(model, tmp_path):
    expected, order = model(IDS), list(dict(model.named_modules()))
    report = replace_embeddings(model, tmp_path / "new" / "tables")
    assert_same_bits(model(IDS), expected)
    assert model.words is model.tags["again"] and isinstance(model.words, MappedEmbedding)
    assert isinstance(model.tags["a/b"], MappedEmbeddingBag) and model.tags["a/b"].mode == "sum"
    assert (model.words.padding_idx, model.tags["a/b"].padding_idx) == (1, 2)
    assert list(dict(model.named_modules())) == order and not list(model.parameters())
    assert sorted(os.listdir(tmp_path / "new/tables")) == ["positions", "tags.a%2Fb", "words"]
    assert [(e.names, e.kind, e.bytes_freed) for e in report.modules] == [
        (("words", "tags.again"), "Embedding", 1600),
        (("tags.a/b",), "EmbeddingBag", 640),
        (("positions",), "Embedding", 320),
    ]
    assert report.bytes_freed == 2560 and not report.skipped
    for entry in report.replaced:
        assert read_bundle(entry.path).path == entry.path
    assert str(report).splitlines()[-1] == "3 of 3 embeddings replaced, 2,560 bytes freed"
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(other(IDS), expected)


@pytest.mark.parametrize(
    ("select", "names"),
    [
        (None, {"words", "tags.a/b", "positions"}),
        ("words", {"words"}),
        ("tags.*", {"words", "tags.a/b"}),
        (["tags.again", "pos*"], {"words", "positions"}),
        (lambda name, module: module.embedding_dim == 8 and "/" in name, {"tags.a/b"}),
        ([], set()),
    ],
)
def test_names_patterns_and_predicates_select(model, tmp_path, select, names):
    expected = model(IDS)
    report = replace_embeddings(model, tmp_path, select)
    assert {entry.name for entry in report.replaced} == names
    assert set(reasons(report).values()) <= {"it is not selected"}
    assert_same_bits(model(IDS), expected)


def test_options_reach_the_modules_and_the_tables(model, tmp_path):
    replace_embeddings(
        model, tmp_path / "a", bag={"strategy": "chunked"}, embedding={"cache_bytes": 1 << 16}, codec="zstd"
    )
    assert model.tags["a/b"].strategy == "chunked" and not model.words._table.rows().info()["raw"]
    assert model.words._table.config()["options"]["cache_bytes"] == 1 << 16
    for kind, left in (("bag", {"tags.a/b"}), ("embedding", {"words", "positions"})):
        report = replace_embeddings(Words().eval(), tmp_path / kind, **{kind: False})
        assert reasons(report) == dict.fromkeys(left, f"{kind} is False")


class Scaled(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids) * 2


class More(nn.Embedding):
    pass


def test_what_does_not_qualify_stays_and_the_reason_is_told(tmp_path):
    model = nn.ModuleDict(
        {
            "norm": nn.Embedding(5, 2, max_norm=1.0),
            "meta": nn.Embedding(5, 2, device="meta"),
            "int": nn.Embedding.from_pretrained(torch.zeros(5, 2, dtype=torch.complex64)),
            "max": nn.EmbeddingBag(5, 2, mode="max", sparse=True),
            "scaled": Scaled(5, 2),
            "more": More(5, 2),
            "hook": nn.Embedding(5, 2),
            "lazy": nn.Embedding(5, 2),
            "sparse": nn.Embedding(5, 2),
            "learning": nn.Embedding(5, 2),
            "good": nn.Embedding(5, 2, sparse=True),
        }
    ).eval()
    model["hook"].register_forward_hook(lambda *_: None)
    model["lazy"].weight = nn.UninitializedParameter()
    model["sparse"].weight = nn.Parameter(torch.eye(5).to_sparse())
    model["learning"].train()
    before = state(model)
    report = replace_embeddings(model, tmp_path)
    found = reasons(report)
    for name, part in {
        "norm": "max_norm=1.0",
        "meta": "meta device",
        "int": "complex64",
        "max": "mode 'max'",
        "scaled": "forward of its own",
        "more": "it is a More",
        "hook": "hooks",
        "lazy": "not initialised",
        "sparse": "sparse_coo",
        "learning": r"call model.eval() first",
    }.items():
        assert part in found.pop(name)
    assert not found and report.bytes_freed == 40
    after = state(model)
    assert {name for name in before if before[name] != after[name]} == {"good"}
    assert sorted(os.listdir(tmp_path)) == ["good"]


class Tied(nn.Module):
    def __init__(self, view=False):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = nn.Parameter(self.words.weight.detach()[:]) if view else self.words.weight

    def forward(self, ids):
        return self.head(self.words(ids))


@pytest.mark.parametrize("view", [False, True])
def test_tied_weights_are_skipped_unless_the_input_alone_is_asked_for(tmp_path, view):
    model = Tied(view).eval()
    expected, before = model(IDS), state(model)
    report = replace_embeddings(model, tmp_path)
    assert "its weight is head.weight, too" in reasons(report)["words"] and state(model) == before
    assert not list(tmp_path.iterdir())
    report = replace_embeddings(model, tmp_path, tied="input")
    assert isinstance(model.words, MappedEmbedding) and report.bytes_freed == 0 and report.replaced
    assert_same_bits(model(IDS), expected)


def test_embeddings_that_share_a_weight_are_replaced_together(tmp_path):
    bags = nn.EmbeddingBag(50, 8), nn.EmbeddingBag(50, 8, mode="sum")
    model = nn.ModuleList([nn.Embedding(50, 8), nn.Embedding(50, 8), *bags]).eval()
    for other in model[1:]:
        other.weight = model[0].weight
    expected = [module(IDS) for module in model]
    report = replace_embeddings(model, tmp_path / "one", select="0")
    assert "its weight is 1.weight, 2.weight, 3.weight, too" in reasons(report)["0"]
    report = replace_embeddings(model, tmp_path / "all")
    assert [entry.bytes_freed for entry in report.modules] == [1600, 0, 0, 0]
    assert model[0].path == model[1].path != model[2].path
    for module, rows in zip(model, expected, strict=True):
        assert_same_bits(module(IDS), rows)


def test_the_embeddings_of_a_memory_are_replaced_inside_their_module(tmp_path):
    torch.manual_seed(2)
    model = Engram([31, 37, 41, 43], 8).eval()
    hidden, tokens = torch.randn(2, 6, 2, 32), torch.randint(1000, (2, 6))
    expected = model(hidden, tokens)
    report = replace_embeddings(model, tmp_path)
    assert [entry.name for entry in report.replaced] == ["multi_head_embedding.embedding"]
    assert_same_bits(model(hidden, tokens), expected)


def _full(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failure_leaves_the_model_and_the_directory_as_they_were(model, tmp_path, monkeypatch):
    expected, before = model(IDS), state(model)
    mapped = []

    def second(*args, **options):
        if mapped:
            raise KeyboardInterrupt
        mapped.append(MappedEmbedding(*args, **options))
        return mapped[0]

    for name, double, kind in (
        ("export_embedding_bag", _full, OSError),
        ("MappedEmbedding", second, KeyboardInterrupt),
        ("_put", _full, OSError),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(ngram_store.replace, name, double)
            with pytest.raises(kind):
                replace_embeddings(model, tmp_path / "new" / "tables")
        assert state(model) == before and not list(tmp_path.iterdir())
        assert_same_bits(model(IDS), expected)
    assert mapped[0].closed
    (tmp_path / "positions").mkdir()
    (tmp_path / "positions" / "notes").write_text("x")
    with pytest.raises(errors.StoreExistsError):
        replace_embeddings(model, tmp_path)
    assert state(model) == before and os.listdir(tmp_path) == ["positions"]
    with pytest.raises(errors.ArgumentError, match="strategy must be"):
        replace_embeddings(model, tmp_path, select="tags.a/b", bag={"strategy": "guess"})
    assert state(model) == before and os.listdir(tmp_path) == ["positions"]


def test_modules_are_put_in_place_all_or_none(model, tmp_path, monkeypatch):
    before = state(model)

    class Breaking(dict):
        def __setitem__(self, key, value):
            if isinstance(value, nn.Module) and not isinstance(value, nn.Embedding):
                raise MemoryError
            super().__setitem__(key, value)

    model.tags._modules = Breaking(model.tags._modules)
    with pytest.raises(MemoryError):
        replace_embeddings(model, tmp_path)
    assert state(model) == before and not list(tmp_path.iterdir())


def test_bundles_are_replaced_only_on_request(model, tmp_path):
    other = copy.deepcopy(model)
    replace_embeddings(model, tmp_path)
    before = state(other)
    with pytest.raises(errors.StoreExistsError, match="overwrite=True"):
        replace_embeddings(other, tmp_path)
    assert state(other) == before
    expected = other(IDS)
    replace_embeddings(other, tmp_path, overwrite=True)
    assert_same_bits(other(IDS), expected)


def test_arguments_are_checked_before_anything_is_written(model, tmp_path):
    for args, options, kind, message in (
        ((nn.Embedding(3, 2), tmp_path), {}, errors.ArgumentError, "embedding itself"),
        (("model", tmp_path), {}, errors.DtypeError, "torch.nn.Module, got str"),
        ((model, None), {}, errors.DtypeError, "path"),
        ((model, tmp_path, "wrods"), {}, errors.ArgumentError, "called 'wrods'; there are .*positions"),
        ((model, tmp_path, 5), {}, errors.DtypeError, "select must be"),
        ((model, tmp_path), {"tied": "output"}, errors.ArgumentError, "tied must be"),
        ((model, tmp_path), {"bag": True}, errors.DtypeError, "bag must be"),
        ((model, tmp_path), {"codec": "lzma"}, errors.ArgumentError, "lzma"),
        ((model, tmp_path), {"embedding": {"cache_bytes": -1}}, errors.ArgumentError, "cache_bytes"),
    ):
        with pytest.raises(kind, match=message):
            replace_embeddings(*args, **options)
    assert not list(tmp_path.iterdir()) and isinstance(model.words, nn.Embedding)


def test_names_that_no_directory_can_have_are_skipped(tmp_path):
    odd = {"", ".", "..", "half\ud800", 300 * "x", 90 * "\u00fc"}
    (tmp_path / "t").mkdir()
    (tmp_path / "notes").write_text("x")
    for overwrite in (False, True):
        model = nn.ModuleDict({"fine": nn.Embedding(5, 2)}).eval()
        for name in odd:
            model._modules[name] = nn.EmbeddingBag(5, 2).eval()
        report = replace_embeddings(model, tmp_path / "t", overwrite=overwrite)
        assert [entry.name for entry in report.replaced] == ["fine"]
        assert set(reasons(report)) == odd
        assert all("directory can't be called" in reason for reason in reasons(report).values())
        str(report)
    assert sorted(os.listdir(tmp_path)) == ["notes", "t"] and os.listdir(tmp_path / "t") == ["fine"]


def test_embeddings_of_one_name_do_not_share_a_directory(tmp_path):
    model, one, two = nn.Module(), nn.Module(), nn.Module()
    one._modules["b.c"], two._modules["c"] = nn.Embedding(5, 2), nn.Embedding(5, 2)
    inner = nn.Module()
    inner._modules["b"] = two
    model._modules["a"] = inner
    inner._modules["b.c"] = one._modules["b.c"]
    model.eval()
    ids = torch.arange(5)
    expected = two._modules["c"](ids), inner._modules["b.c"](ids)
    report = replace_embeddings(model, tmp_path, overwrite=True)
    assert len(report.replaced) == 1 and "the same name" in report.skipped[0].reason
    assert_same_bits(two._modules["c"](ids), expected[0])
    assert_same_bits(inner._modules["b.c"](ids), expected[1])


@pytest.mark.parametrize("where", ["export", "export_bag", "put"])
def test_ctrl_c_at_the_moment_that_something_is_there_leaves_nothing(model, tmp_path, monkeypatch, where):
    expected, before = model(IDS), state(model)
    name = {"export": "export_embedding", "export_bag": "export_embedding_bag", "put": "_put"}[where]
    real = getattr(ngram_store.replace, name)

    def interrupted(*args, **options):
        real(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(ngram_store.replace, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_embeddings(model, tmp_path / "new" / "tables")
    assert state(model) == before and not list(tmp_path.iterdir())
    assert_same_bits(model(IDS), expected)


def test_a_bundle_that_fails_after_its_publishing_leaves_nothing(model, tmp_path, monkeypatch):
    expected, before = model(IDS), state(model)
    sync, calls = ngram_store.bundle.sync, []

    def fail(folder):
        calls.append(folder)
        if len(calls) == 3:
            raise KeyboardInterrupt
        sync(folder)

    monkeypatch.setattr("ngram_store.bundle.sync", fail)
    with pytest.raises(KeyboardInterrupt):
        replace_embeddings(model, tmp_path / "new")
    assert state(model) == before and not list(tmp_path.iterdir())
    assert_same_bits(model(IDS), expected)


def test_someone_elses_bundle_is_not_removed_with_what_failed(model, tmp_path, monkeypatch):
    real = ngram_store.replace.export_embedding

    def late(module, path, **options):
        real(nn.Embedding(3, 2), path)
        return real(module, path, **options)

    monkeypatch.setattr(ngram_store.replace, "export_embedding", late)
    with pytest.raises(errors.StoreExistsError):
        replace_embeddings(model, tmp_path, select="words")
    assert read_bundle(tmp_path / "words").meta["num_embeddings"] == 3


def test_without_free_descriptors_a_failure_leaves_nothing(model, tmp_path, monkeypatch):
    def exhaust(*_args):
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):
            while True:
                os.open("/dev/null", os.O_RDONLY)
        raise MemoryError

    def work():
        with pytest.raises(MemoryError):
            replace_embeddings(model, tmp_path / "new")
        assert not os.path.lexists(tmp_path / "new")

    monkeypatch.setattr(ngram_store.replace, "_put", exhaust)
    in_child(work)
