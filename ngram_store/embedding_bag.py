"""A table in place of ``nn.EmbeddingBag``."""

import json

import torch

from loaderx.errors import ArgumentError, StoreFormatError, UnsupportedError

from . import _ops
from ._arguments import QUERY_CHUNK_ROWS, count, flag, one_of, padding_row
from ._kinds import ACCUMULATE, MODES
from ._module import MappedModule, eager, tensor
from ._reduce import reduce_bags
from .bundle import read_bundle, unreplaced

__all__ = ["MappedEmbeddingBag", "open_embedding_bag"]

_STRATEGIES = ("fused", "unique", "chunked")
_METHODS = ("auto", "sort")
#: What a bundle says, and a caller may say otherwise.
_MEMBERS = ("mode", "padding_idx", "include_last_offset")


class MappedEmbeddingBag(MappedModule):
    """``nn.EmbeddingBag`` whose rows stay in a file, for inference on the CPU.

    Parameters
    ----------
    path : path_like
        A bundle, which `export_embedding_bag` writes (`open_embedding_bag`
        takes mode and padding from it); or a MEFTNAT1 file, with `dtype`
        unless it records that.
    mode : {"mean", "sum", "max"}
    padding_idx : int, optional
        A row that is left out of all bags; negative ones count from the end.
    include_last_offset : bool
        Whether offsets end with the number of ids.
    strategy : {"fused", "unique", "chunked"}
        ``"fused"`` reduces in the engine, without a copy of the rows, and is
        the fastest. ``"unique"`` reads each distinct row once and has torch
        reduce. ``"chunked"`` has torch reduce no more than `chunk_rows` rows
        at a time. All give the bits of ``nn.EmbeddingBag``. Bundles of the
        backend ``"python"`` are reduced by torch always.
    chunk_rows : int
    unique_method : {"auto", "sort"}
        How distinct ids are found: by an index with 4 bytes for each row of
        the table, if it has no more than `unique_index_bytes` (each thread has
        its own), or by sorting.
    unique_index_bytes : int
    accumulate : {"torch", "f64"}
        The arithmetic of ``"fused"``: that of torch's kernels, or sums in
        float64 that are rounded once.
    native_library, cache_bytes, native_cache_policy, query_chunk_rows, threads, verify, dtype
        As for `MappedEmbedding`.

    Attributes
    ----------
    num_embeddings, embedding_dim : int
    mode, padding_idx, include_last_offset, strategy
        May be set.
    dtype : torch.dtype

    Raises
    ------
    PaddingIndexError
        `padding_idx` is outside the table.

    Notes
    -----
    As for `MappedEmbedding`; in graphs it is the operator
    ``ngram_store::embedding_bag``.

    Offsets must cover all ids: torch leaves out those behind a last offset
    that is too small, or counts them nevertheless, depending on the mode.
    `per_sample_weights` that require a gradient are refused while gradients
    are enabled.
    """

    def __init__(
        self,
        path,
        mode="mean",
        padding_idx=None,
        include_last_offset=False,
        strategy="fused",
        chunk_rows=1024,
        unique_method="auto",
        unique_index_bytes=8 << 20,
        *,
        accumulate="torch",
        native_library=None,
        cache_bytes=0,
        native_cache_policy="blocks",
        query_chunk_rows=QUERY_CHUNK_ROWS,
        threads=None,
        verify=False,
        dtype=None,
    ):
        include_last_offset = flag("include_last_offset", include_last_offset)
        for name, value, known in (
            ("mode", mode, MODES),
            ("strategy", strategy, _STRATEGIES),
            ("unique_method", unique_method, _METHODS),
            ("accumulate", accumulate, ACCUMULATE),
        ):
            one_of(name, value, known)
        plan = {
            "chunk_rows": count(chunk_rows, "chunk_rows", 1),
            "unique_method": unique_method,
            "unique_index_bytes": count(unique_index_bytes, "unique_index_bytes", 0),
            "accumulate": accumulate,
        }
        super().__init__(
            path,
            native_library,
            cache_bytes,
            native_cache_policy,
            query_chunk_rows,
            threads=threads,
            verify=verify,
            dtype=dtype,
        )
        self._plan = plan
        self.include_last_offset = include_last_offset
        self._graph_plans = {name: json.dumps({"strategy": name, **plan}) for name in _STRATEGIES}
        self.mode, self.strategy = mode, strategy
        try:
            self.padding_idx = _padding(padding_idx, self.num_embeddings)
        except BaseException:
            self.close()
            raise

    def forward(self, input, offsets=None, per_sample_weights=None):
        """Return reduced bags of rows.

        Parameters
        ----------
        input : torch.Tensor of any integer dtype, shape (n,) or (bags, k)
            Ids of rows; or a jagged nested tensor, whose components are bags.
        offsets : torch.Tensor of any integer dtype, shape (bags,), optional
            Where the bags begin in `input` of one dimension.
        per_sample_weights : torch.Tensor, shape and layout of `input`, optional
            Factors of the rows, of their dtype; for the mode ``"sum"``.

        Returns
        -------
        torch.Tensor, shape (bags, embedding_dim)
            Zeros for an empty bag, in every mode.

        Raises
        ------
        RecordIndexError
            An id is outside the table; the message names its position in the
            flattened ids, its value and the range.
        ArgumentError
            Shapes do not go together, or offsets do not start at 0, fall, or
            do not cover all ids.
        DtypeError
            A tensor has a dtype that does not fit, or is not on the CPU.
        UnsupportedError
            Weights come with another mode than ``"sum"``, or gradients are
            asked for.
        """
        self._refuse_gradients()
        tensor(input)
        ids, offsets, weights, last = self._arguments(input, offsets, per_sample_weights)
        if eager(input) or (input.is_nested and eager(ids)):
            plan = {"strategy": self.strategy, **self._plan}
            return reduce_bags(self._table, ids, offsets, weights, self.mode, self.padding_idx, last, plan)
        plan = self._graph_plans[self.strategy]
        return _ops.bag(ids, offsets, weights, self._key, self.mode, self.padding_idx, last, plan)

    def _arguments(self, ids, offsets, weights):
        """Check what can be told from shapes, and return what is reduced."""
        last = self.include_last_offset
        if weights is not None:
            tensor(weights, "per_sample_weights")
            if ids.is_nested != weights.is_nested or ids.size() != weights.size():
                shapes = ["gaps" if given.is_nested else tuple(given.shape) for given in (weights, ids)]
                raise ArgumentError(f"per_sample_weights have the shape {shapes[0]}, and the ids {shapes[1]}")
            if self.mode != "sum":
                raise UnsupportedError(f"per_sample_weights go with the mode 'sum' only, and it is {self.mode!r}")
            if weights.requires_grad and torch.is_grad_enabled():
                raise UnsupportedError(
                    "per_sample_weights require a gradient, and a mapped table gives none: pass weights.detach(), or "
                    "call it under torch.no_grad()"
                )
        if ids.is_nested:
            if offsets is not None:
                raise ArgumentError("nested ids bring their own offsets")
            if ids.layout != torch.jagged or ids.dim() != 2 or ids.lengths() is not None:
                raise ArgumentError(
                    f"nested ids must be jagged, without gaps and of two dimensions, got {ids.dim()}, {ids.layout}"
                )
            ids, offsets, last = ids.values(), ids.offsets(), True
            return ids, offsets, None if weights is None else weights.values(), last
        if ids.dim() == 2:
            if offsets is not None:
                raise ArgumentError("ids of two dimensions are bags of one length each, so offsets must be None")
            if ids.size(1) == 0:
                raise ArgumentError(
                    f"ids of shape {tuple(ids.shape)} are bags of no rows; pass ids and offsets for these"
                )
            return ids, None, weights, False
        if ids.dim() != 1:
            raise ArgumentError(f"ids must have one or two dimensions, got {ids.dim()}")
        if offsets is None:
            raise ArgumentError("ids of one dimension need offsets, a tensor of one dimension, got None")
        if tensor(offsets, "offsets").dim() != 1:
            raise ArgumentError(f"offsets must have one dimension, got {offsets.dim()}")
        return ids, offsets, weights, last

    def __setattr__(self, name, value):
        if name == "mode":
            one_of(name, value, MODES)
        elif name == "strategy":
            one_of(name, value, _STRATEGIES)
        elif name == "include_last_offset":
            value = flag(name, value)
        elif name == "padding_idx":
            value = _padding(value, self.num_embeddings)
        super().__setattr__(name, value)

    def extra_repr(self):
        """Return what the module's text says."""
        return f"{super().extra_repr()}, mode={self.mode!r}, padding_idx={self.padding_idx}, strategy={self.strategy!r}"


def open_embedding_bag(path, **options):
    """Open what `export_embedding_bag` wrote, with its mode, padding index and kind of offsets.

    Parameters
    ----------
    path : path_like
        The bundle.
    **options
        Of `MappedEmbeddingBag`; they take precedence.

    Returns
    -------
    MappedEmbeddingBag
    """

    def opened(bundle):
        bundle = bundle or read_bundle(path)  # which says that there is only a file
        if bundle.kind != "embedding_bag":
            raise StoreFormatError(f"{bundle.described}, and not one of an embedding bag")
        members = {name: bundle.meta[name] for name in _MEMBERS if name in bundle.meta}
        return MappedEmbeddingBag(path, **{**members, **options})

    return unreplaced(path, opened)


def _padding(index, rows):
    if index is None:
        return None
    return padding_row(int(index) if isinstance(index, bool) else index, rows)  # True is 1 for torch
