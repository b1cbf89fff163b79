"""Descriptions of bundles that were edited: every member has its type and range, for every reader."""

import copy
import json

import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import (
    MappedEmbedding,
    MappedMultiHeadEmbedding,
    QuantizedRows,
    export_embedding,
    export_embedding_bag,
    export_multihead,
    open_embedding_bag,
    pack_quantized,
    read_bundle,
)
from ngram_store.cli import main
from tests.mapped import MultiHeadEmbedding

DAMAGED, FORMAT = errors.CorruptRecordError, errors.StoreFormatError
GONE = object()


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    export_embedding(torch.nn.Embedding(6, 4), folder / "embedding")
    export_embedding(torch.nn.Embedding(6, 4), folder / "python", "python")
    export_embedding_bag(torch.nn.EmbeddingBag(6, 4), folder / "bag")
    export_multihead(MultiHeadEmbedding([2, 4], 4), folder / "heads")
    pack_quantized(np.ones((6, 4), np.float32), folder / "quantized", "int8", False)
    return folder


OPENERS = {
    "embedding": MappedEmbedding,
    "python": MappedEmbedding,
    "bag": open_embedding_bag,
    "heads": MappedMultiHeadEmbedding,
    "quantized": QuantizedRows,
}

WRONG = [
    # bundle, member, values, error
    ("embedding", "format", ["zip", 1, None, GONE], FORMAT),
    ("embedding", "version", [0, 2, 1.0, True, "1", None, GONE], FORMAT),
    ("embedding", "kind", [1, None, [], GONE], DAMAGED),
    ("embedding", "kind", ["", "foo", "Embedding"], FORMAT),
    ("embedding", "producer", [1, None, []], DAMAGED),
    ("embedding", "num_embeddings", [-1, 6.0, True, "6", None, 1 << 62, 1 << 80, GONE], DAMAGED),
    ("embedding", "embedding_dim", [0, -1, 4.0, True, None, [4], GONE], DAMAGED),
    ("embedding", "dtype", ["foo", "int32", "int8", "", 4, None, [], GONE], DAMAGED),
    ("embedding", "row_bytes", [0, 15, 16.0, None, GONE], DAMAGED),
    ("embedding", "padding_idx", [-1, 6, 1.0, True, "1", []], DAMAGED),
    ("embedding", "table", [5, None, [], {}, GONE], DAMAGED),
    ("embedding", "table.file", ["", ".", "..", "a/b", "/etc/passwd", "a\0b", "\ud800"], DAMAGED),
    ("embedding", "table.file", ["bundle.json", 1, None, GONE], DAMAGED),
    ("embedding", "table.backend", [1, None, [], GONE], DAMAGED),
    ("embedding", "table.backend", ["rust", ""], FORMAT),
    ("embedding", "table.bytes", [-1, 1.5, True, None, GONE], DAMAGED),
    ("embedding", "table.sha256", ["", "ab", 64 * "g", 64 * "A", 65 * "0", 0, None, GONE], DAMAGED),
    ("embedding", "head_sizes", ["no", [], [7], [0, 6], [True, 5], [1.0, 5]], DAMAGED),
    ("python", "table.bytes", [0, 95, 97], DAMAGED),
    ("bag", "mode", ["min", "SUM", 1, None, [], GONE], DAMAGED),
    ("bag", "include_last_offset", ["no", [1], 1.5, 1, 0, None, GONE], DAMAGED),
    ("bag", "padding_idx", [6, -1], DAMAGED),
    ("heads", "head_sizes", [None, [6, 0], [3, 4], {}, [[2, 4]], GONE], DAMAGED),
    ("heads", "offsets", [[0], [0, 3], [0, 2.0], [False, 2], "02", None], DAMAGED),
    ("quantized", "quantized", [{}, [], None, 1, GONE], DAMAGED),
    ("quantized", "quantized.plain_bytes", ["many", 1.5, -1, [], True, None, 47, GONE], DAMAGED),
    ("quantized", "quantized.native_bytes", ["many", 1.5, -1, [], True], DAMAGED),
    ("quantized", "quantized.source_sha256", ["", 5, None, GONE], DAMAGED),
    ("quantized", "quantized.decoded_sha256", ["x", GONE], DAMAGED),
    ("quantized", "quantized.max_error", ["0", [], True, float("nan"), float("inf"), GONE], DAMAGED),
    ("quantized", "quantized.mean_error", ["0", GONE], DAMAGED),
    ("quantized", "quantized.cosine", ["0", GONE], DAMAGED),
    ("quantized", "dtype", ["float32", "other"], DAMAGED),
    ("quantized", "embedding_dim", [0], DAMAGED),
]  # fmt: skip


def edited(meta, member, value):
    meta = copy.deepcopy(meta)
    *above, name = member.split(".")
    inner = meta[above[0]] if above else meta
    if value is GONE:
        del inner[name]
    else:
        inner[name] = value
    return meta


@pytest.mark.parametrize(("name", "member", "values", "kind"), WRONG, ids=lambda value: str(value)[:24])
def test_a_wrong_member_is_named_by_every_reader(bundles, capsys, name, member, values, kind):
    path = bundles / name
    file = path / "bundle.json"
    before = file.read_text()
    try:
        for value in values:
            file.write_text(json.dumps(edited(json.loads(before), member, value)))
            for opener in (read_bundle, OPENERS[name]):
                with pytest.raises(kind, match=r"bundle\.json") as caught:
                    opener(path)
                assert isinstance(caught.value, errors.ZrecordError), value
            assert main(["info", str(path)]) == 1
            assert len(capsys.readouterr().err.splitlines()) == 1
    finally:
        file.write_text(before)
    opened = OPENERS[name](path)
    opened.close()
    assert main(["info", str(path)]) == 0
    capsys.readouterr()


def test_members_of_no_rows_and_no_columns_at_once(bundles):
    """What fits together, and is nothing that a module could be of."""
    file = bundles / "embedding" / "bundle.json"
    before = file.read_text()
    try:
        for change in ({"embedding_dim": 0, "row_bytes": 0}, {"embedding_dim": 0, "row_bytes": 0, "dtype": "foo"}):
            file.write_text(json.dumps({**json.loads(before), **change}))
            with pytest.raises(DAMAGED, match="embedding_dim is 0"):
                MappedEmbedding(bundles / "embedding")
    finally:
        file.write_text(before)


def test_unknown_members_are_ignored(bundles):
    for name, opener in OPENERS.items():
        file = bundles / name / "bundle.json"
        before = file.read_text()
        meta = json.loads(before)
        meta["note"] = meta["table"]["note"] = {"a": [1]}
        meta.pop("producer")
        file.write_text(json.dumps(meta))
        opener(bundles / name).close()
        file.write_text(before)
