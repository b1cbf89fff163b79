"""Bags of rows in three ways: in the engine, by torch over distinct rows, by torch piece by piece."""

import threading

import numpy as np
import torch
import torch.nn.functional as F

from loaderx._buffers import dense
from loaderx.errors import ArgumentError, DtypeError, RecordIndexError

from ._ids import row_ids
from ._tensor_table import integers, readable, results

__all__ = ["reduce_bags"]

_scratch = threading.local()


def reduce_bags(table, ids, offsets, weights, mode, padding_idx, include_last_offset, plan):
    """Return the reduced bags of rows of a table.

    Parameters
    ----------
    table : Table
    ids : Tensor of int, shape (n,), or (bags, k) without offsets
    offsets : Tensor of int or None
    weights : Tensor, shape of ids, or None
    mode : str
    padding_idx : int or None
    include_last_offset : bool
    plan : dict
        ``strategy`` and what else `MappedEmbeddingBag` was given for it.

    Returns
    -------
    Tensor, shape (bags, dim)
    """
    if weights is not None:
        _check_weights(table, weights)
    strategy = plan["strategy"]
    if strategy == "fused" and table.meta["table"]["backend"] == "native":
        if offsets is None:
            bags = ids.shape[0]
        else:
            offsets = readable(offsets, "offsets")
            bags = offsets.shape[0] - bool(include_last_offset)
        out, memory = results.empty((max(bags, 0), table.dim), table.dtype)
        table.rows().embedding_bag(
            readable(ids),
            offsets,
            mode,
            weights,
            padding_idx,
            memory,
            plan["accumulate"],
            table.meta["dtype"],
            include_last_offset,
        )
        return out
    array, bounds = integers(ids), None if offsets is None else integers(offsets, "offsets")
    if plan["accumulate"] != "torch":
        raise ArgumentError(f"accumulate={plan['accumulate']!r} needs the strategy 'fused' and a native table")
    array, bounds = _checked(table, array, bounds, include_last_offset)
    if weights is not None:
        weights = weights.detach().reshape(-1)
    if not len(array) or not len(bounds):
        return torch.zeros((len(bounds), table.dim), dtype=table.dtype, device="cpu")
    if strategy == "chunked":
        return _chunked(table, array, bounds, weights, mode, padding_idx, plan["chunk_rows"])
    return _unique(table, array, bounds, weights, mode, padding_idx, plan)


def _check_weights(table, weights):
    if weights.device.type != "cpu":
        raise DtypeError(f"per_sample_weights are on {weights.device}, and bags are reduced on the CPU")
    if weights.dtype != table.dtype:
        raise DtypeError(f"per_sample_weights are of {weights.dtype}, and the rows of {table.dtype}")
    dense(weights, "per_sample_weights")


def _checked(table, array, bounds, include_last_offset):
    """Return flat ids and the offsets of all bags, both int64, once both are known to be right."""
    flat, shape = row_ids(array)
    flat = flat.reshape(-1)
    n, rows = len(flat), table.num_embeddings
    if bounds is None:
        bounds = np.arange(shape[0], dtype=np.int64) * shape[1]
    else:
        bounds = row_ids(bounds)[0].astype(np.int64, copy=False)
        if include_last_offset and not len(bounds):
            raise ArgumentError("offsets are empty, and with include_last_offset the number of ids is one of them")
        if len(bounds) and bounds[0] != 0:
            raise ArgumentError(f"offsets must begin with 0, got {bounds[0]}")
        if (bad := np.flatnonzero(np.diff(bounds) < 0)).size:
            at = int(bad[0]) + 1
            raise ArgumentError(f"offset {bounds[at]} at position {at} is below the one before, {bounds[at - 1]}")
        last = int(bounds[-1]) if len(bounds) else 0
        if last > n or (last < n and (include_last_offset or not len(bounds))):
            raise ArgumentError(f"offsets must cover all {n} ids, and the last one is {last}")
        if include_last_offset:
            bounds = bounds[:-1]
    wrong = flat.view(np.uint64) >= np.uint64(rows)
    if wrong.any():
        at = int(wrong.argmax())
        raise RecordIndexError(f"id {flat[at]} at position {at}: want 0 to {rows - 1}: table {table.path}")
    return flat.astype(np.int64, copy=False), bounds


# ---- each distinct row once ------------------------------------------------------------------


def _unique(table, ids, bounds, weights, mode, padding_idx, plan):
    distinct, places = _distinct(ids, table.num_embeddings, plan["unique_method"], plan["unique_index_bytes"])
    padding = None
    if padding_idx is not None:
        # Bits depend on whether there is a padding index, so one that occurs nowhere still counts.
        found = np.flatnonzero(distinct == padding_idx)
        padding = int(found[0]) if len(found) else len(distinct)
        if not len(found):
            distinct = np.append(distinct, padding_idx)
    rows = table.fetch(distinct)
    return F.embedding_bag(
        torch.from_numpy(places),
        rows,
        torch.from_numpy(bounds),
        mode=mode,
        per_sample_weights=weights,
        padding_idx=padding,
    )


def _distinct(ids, rows, method, index_bytes):
    """Return the distinct ids, and where each id is among them."""
    if method == "sort" or 4 * rows > index_bytes or len(ids) >= 1 << 31:
        distinct, places = torch.unique(
            torch.from_numpy(ids.copy() if not ids.flags.writeable else ids), return_inverse=True
        )
        return distinct.numpy(), places.numpy()
    # Whatever the index held before: an entry is written before it is read. The last of equal ids wins.
    index = getattr(_scratch, "index", None)
    if index is None or len(index) < rows:
        index = _scratch.index = np.empty(rows, np.int32)
    number = np.arange(len(ids), dtype=np.int32)
    index[ids] = number
    distinct = ids[index[ids] == number]
    index[distinct] = number[: len(distinct)]
    return distinct, index[ids].astype(np.int64)


# ---- no more than some rows at once ----------------------------------------------------------


def _chunked(table, ids, bounds, weights, mode, padding_idx, chunk):
    ends = np.append(bounds[1:], len(ids))
    out, _memory = results.empty((len(bounds), table.dim), table.dtype)
    bag = 0
    while bag < len(bounds):
        start = int(bounds[bag])
        stop = max(int(np.searchsorted(ends, start + chunk, "right")), bag + 1)
        end = int(ends[stop - 1])
        part = None if weights is None else weights[start:end]
        if end - start <= chunk:
            out[bag:stop] = _whole(table, ids[start:end], bounds[bag:stop] - start, part, mode, padding_idx)
        else:
            out[bag] = _long(table, ids[start:end], part, mode, padding_idx, chunk)
        bag = stop
    return out


def _whole(table, ids, bounds, weights, mode, padding_idx):
    """Reduce some bags whose rows are staged together."""
    padding = None
    places = np.arange(len(ids))
    rows = ids
    if padding_idx is not None:
        padding = len(ids)
        places[ids == padding_idx] = padding
        rows = np.append(ids, padding_idx)
    return F.embedding_bag(
        torch.from_numpy(places),
        table.fetch(rows),
        torch.from_numpy(bounds),
        mode=mode,
        per_sample_weights=weights,
        padding_idx=padding,
    )


def _long(table, ids, weights, mode, padding_idx, chunk):
    """Reduce one bag piece by piece: what came before is the first row of the next piece.

    Sums are those of torch's kernels bit for bit: these begin with 0, to which a sum so far adds
    itself unchanged, and add halves in float32.
    """
    if padding_idx is not None:
        kept = np.flatnonzero(ids != padding_idx)
        ids = ids[kept]
        weights = None if weights is None else weights[torch.from_numpy(kept)]
    if not len(ids):
        return torch.zeros(table.dim, dtype=table.dtype, device="cpu")
    halves = table.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if halves and mode != "max" else table.dtype
    # torch has another kernel for bags with a padding index, which rounds weighted sums differently.
    blank = torch.zeros(1, table.dim, dtype=wide, device="cpu")
    one = torch.ones(1, dtype=wide, device="cpu")
    so_far = None
    for start in range(0, len(ids), chunk):
        rows = table.fetch(ids[start : start + chunk]).to(wide)
        part = None if weights is None else weights[start : start + chunk].to(wide)
        if so_far is not None:
            rows = torch.cat([so_far, rows])
            part = None if part is None else torch.cat([one, part])
        places = torch.from_numpy(np.arange(len(rows)))
        so_far = F.embedding_bag(
            places,
            rows if padding_idx is None else torch.cat([rows, blank]),
            torch.zeros(1, dtype=torch.int64, device="cpu"),
            mode="max" if mode == "max" else "sum",
            per_sample_weights=part,
            padding_idx=None if padding_idx is None else len(rows),
        )
    if halves and mode != "max":
        so_far = _rounded(so_far, table.dtype, padding_idx is not None)
    if mode == "mean":
        so_far = so_far / torch.tensor([[len(ids)]], dtype=table.dtype, device="cpu")  # rounded, as torch does
    return so_far[0]


def _rounded(sums, dtype, padded):
    """Round sums of halves as torch does: to even, but those of bfloat16 without a padding index half up."""
    if dtype == torch.float16 or padded:
        return sums.to(dtype)
    bits = sums.numpy().view(np.uint32) + np.uint32(0x8000)
    return torch.from_numpy((bits >> np.uint32(16)).astype(np.uint16).view(np.int16)).view(torch.bfloat16)
