"""The look-ups as operators of torch, which graphs hold as one node each.

A table is named by a string (`Table.key`): an exported program finds the table of its module by it, or
opens it, in another process.
"""

import functools
import json

import torch
from torch import Tensor

from loaderx.errors import ArgumentError, DtypeError

from ._arguments import one_of
from ._kinds import MODES
from ._reduce import reduce_bags
from ._tensor_table import config_of, find

__all__ = ["bag", "embedding", "multi_head"]

if not hasattr(torch.library, "custom_op"):
    raise ImportError(f"the modules of ngram_store need torch 2.4 or later, found {torch.__version__}")


@functools.lru_cache(maxsize=1024)
def _described(table):
    meta = config_of(table)["meta"]
    return meta["embedding_dim"], getattr(torch, meta["dtype"]), len(meta.get("head_sizes") or ())


@functools.lru_cache(maxsize=64)
def _plan(strategy):
    try:
        plan = json.loads(strategy)
    except (ValueError, RecursionError):
        plan = None
    known = {"strategy": str, "chunk_rows": int, "unique_method": str, "unique_index_bytes": int, "accumulate": str}
    if not isinstance(plan, dict) or any(type(plan.get(name)) is not kind for name, kind in known.items()):
        raise ArgumentError(f"strategy must be the plan of a mapped bag, got {strategy[:200]!r}")
    return plan


def _result(ids, shape, table):
    if ids.device.type not in ("cpu", "meta"):
        raise DtypeError(f"ids are on {ids.device}, and a mapped table is read by the CPU: pass ids.cpu()")
    dim, dtype, _heads = _described(table)
    return ids.new_empty((*shape, dim), dtype=dtype)


@torch.library.custom_op("ngram_store::embedding", mutates_args=())
def embedding(ids: Tensor, table: str) -> Tensor:
    """Return rows by their ids."""
    return find(table).lookup(ids)


@embedding.register_fake
def _(ids, table):
    return _result(ids, ids.shape, table)


@torch.library.custom_op("ngram_store::multi_head", mutates_args=())
def multi_head(ids: Tensor, table: str) -> Tensor:
    """Return rows by ids that count within each head."""
    return find(table).lookup_heads(ids)


@multi_head.register_fake
def _(ids, table):
    return _result(ids, torch.broadcast_shapes(ids.shape, (_described(table)[2],)), table)


@torch.library.custom_op("ngram_store::embedding_bag", mutates_args=())
def bag(
    ids: Tensor,
    offsets: Tensor | None,
    weights: Tensor | None,
    table: str,
    mode: str,
    padding_idx: int | None,
    include_last_offset: bool,
    strategy: str,
) -> Tensor:
    """Return reduced bags of rows; `strategy` is the JSON of what says how."""
    plan = _plan(strategy)
    one_of("mode", mode, MODES)
    return reduce_bags(find(table), ids, offsets, weights, mode, padding_idx, include_last_offset, plan)


@bag.register_fake
def _(ids, offsets, weights, table, mode, padding_idx, include_last_offset, strategy):
    if offsets is None:
        return _result(ids, (ids.shape[0],), table)
    return _result(ids, (offsets.shape[0] - int(include_last_offset),), table)


def _batched(op):
    """Have ``torch.vmap`` look all examples up at once."""

    def rule(info, dims, ids, table):
        if dims[0] is None:
            return op(ids, table), None
        return op(ids.movedim(dims[0], 0), table), 0

    op.register_vmap(rule)


_batched(embedding)
