"""Writing bundles from the modules that they stand in for."""

import operator
import os

import numpy as np
import torch
from torch import nn

from loaderx.errors import ArgumentError, DtypeError

from ._arguments import BLOCK_ROWS, flag, one_of
from ._weight import bag_weight_of, dtype_name, weight_of
from .bundle import TABLE_FILES, Bundle, write_bundle
from .reference import write_rows
from .writer import pack_native

__all__ = ["export_demo_embedding", "export_embedding", "export_embedding_bag", "export_multihead"]

_CHUNK_BYTES = 16 << 20


def export_embedding(
    module,
    path,
    backend="native",
    deduplicate=False,
    predictor=None,
    max_block_bytes=None,
    *,
    codec=None,
    block_rows=BLOCK_ROWS,
    level=None,
    overwrite=False,
    threads=None,
) -> Bundle:
    """Write the rows of an ``nn.Embedding`` as a bundle for `MappedEmbedding`.

    Parameters
    ----------
    module : torch.nn.Embedding
    path : path_like
        Of the bundle, a directory, which appears as a whole; see
        `ngram_store.bundle`.
    backend : {"native", "python"}
        ``"native"`` writes a MEFTNAT1 file, for the engine. ``"python"``
        writes the rows as they are, for a small reader that tests compare
        with.
    deduplicate, predictor, max_block_bytes, codec, block_rows, level, threads
        As for `pack_native`, but that `codec` is by default ``"raw"``, which
        is read where it lies, and ``"zlib"`` if there is a `predictor`.
    overwrite : bool
        Replace a bundle that is at `path`, and has nothing else in its
        directory; directory and files keep their permissions. New ones are
        their owner's alone.

    Returns
    -------
    Bundle
        Its path and its description.

    Raises
    ------
    UnsupportedError
        The module does more than to return rows: ``max_norm``, a forward of
        its own, hooks.
    DtypeError
        It is no ``nn.Embedding``, or its weight is quantised, sparse, without
        memory (meta, lazy), of a subclass of tensors, or of a dtype other than
        float32, float64, float16 and bfloat16.
    StoreExistsError
        Something is at `path` that is not to be replaced.

    Notes
    -----
    The weight is read where it is; no second copy of it is made. Whether
    gradients of a module are sparse means nothing here.
    """
    weight = weight_of(module, nn.Embedding)
    how = _How(backend, deduplicate, predictor, max_block_bytes, codec, block_rows, level, threads)
    return how.write(path, "embedding", weight, {"padding_idx": module.padding_idx}, overwrite)


def export_embedding_bag(
    module,
    path,
    backend="native",
    deduplicate=False,
    predictor=None,
    max_block_bytes=None,
    *,
    codec=None,
    block_rows=BLOCK_ROWS,
    level=None,
    overwrite=False,
    threads=None,
) -> Bundle:
    """Write the rows of an ``nn.EmbeddingBag`` as a bundle for `open_embedding_bag`.

    Parameters
    ----------
    module : torch.nn.EmbeddingBag
    path, backend, deduplicate, predictor, max_block_bytes, codec, block_rows, level, overwrite, threads
        As for `export_embedding`.

    Raises
    ------
    UnsupportedError
        As for `export_embedding`; or the mode ``"max"`` comes with
        ``scale_grad_by_freq`` or ``sparse``, with which torch can't call it.

    Notes
    -----
    Otherwise as for `export_embedding`.
    """
    weight = bag_weight_of(module)
    fields = {
        "padding_idx": module.padding_idx,
        "mode": module.mode,
        "include_last_offset": bool(module.include_last_offset),
    }
    how = _How(backend, deduplicate, predictor, max_block_bytes, codec, block_rows, level, threads)
    return how.write(path, "embedding_bag", weight, fields, overwrite)


def export_multihead(
    module,
    path,
    backend="native",
    deduplicate=False,
    predictor=None,
    max_block_bytes=None,
    *,
    head_sizes=None,
    **options,
) -> Bundle:
    """Write the rows of an Engram ``MultiHeadEmbedding`` as a bundle for `MappedMultiHeadEmbedding`.

    Parameters
    ----------
    module : torch.nn.Module
        Has ``embedding``, an ``nn.Embedding``, and ``offsets``, the first row
        of each head.
    path, backend, deduplicate, predictor, max_block_bytes, **options
        As for `export_embedding`.
    head_sizes : sequence of int, optional
        Rows of each head; by default what `offsets` leave between them, and
        the last head gets the rest.
    """
    if not isinstance(module, nn.Module):
        weight_of(module, nn.Embedding)  # says what to pass
    if head_sizes is None:
        offsets = _offsets(module)
        if offsets is None:
            raise ArgumentError(f"{type(module).__name__} has no offsets; pass head_sizes")
        head_sizes = np.diff(offsets, append=len(_inner(module).weight)).tolist()
    return export_demo_embedding(module, head_sizes, path, backend, deduplicate, predictor, max_block_bytes, **options)


def export_demo_embedding(
    original,
    head_sizes,
    path,
    backend="native",
    deduplicate=False,
    predictor=None,
    max_block_bytes=None,
    *,
    codec=None,
    block_rows=BLOCK_ROWS,
    level=None,
    overwrite=False,
    threads=None,
) -> Bundle:
    """Write the rows of Engram's demo for `MappedMultiHeadEmbedding`.

    Parameters
    ----------
    original : torch.nn.Module
        An ``nn.Embedding`` with the rows of all heads, or what has one as
        ``embedding``, and perhaps ``offsets``.
    head_sizes : sequence of int
        Rows of each head, the demo's ``list_of_N``.
    path, backend, deduplicate, predictor, max_block_bytes, codec, block_rows, level, overwrite, threads
        As for `export_embedding`.

    Raises
    ------
    ArgumentError
        Sizes are not positive, do not add up to the rows, or do not agree with
        `offsets`.
    """
    inner = _inner(original)
    weight = weight_of(inner, nn.Embedding)
    sizes = _sizes(head_sizes, len(weight))
    starts = [0, *np.cumsum(sizes)[:-1].tolist()]
    offsets = _offsets(original)
    if offsets is not None and offsets != starts:
        raise ArgumentError(f"heads of {sizes} rows begin at {starts}, and the module's offsets are {offsets}")
    fields = {"padding_idx": None, "head_sizes": sizes, "offsets": starts}
    how = _How(backend, deduplicate, predictor, max_block_bytes, codec, block_rows, level, threads)
    return how.write(path, "multihead", weight, fields, overwrite)


def _inner(module):
    if not isinstance(module, nn.Embedding) and hasattr(module, "embedding"):
        return module.embedding
    return module


def _offsets(module):
    offsets = getattr(module, "offsets", None)
    try:
        return None if offsets is None else torch.as_tensor(offsets).tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DtypeError(f"the module's offsets must be integers, got {type(offsets).__name__}: {error}") from None


def _sizes(head_sizes, rows):
    try:
        sizes = [operator.index(size) for size in head_sizes]
    except (TypeError, ValueError, RuntimeError):
        raise DtypeError(f"head_sizes must be integers, got {head_sizes!r}") from None
    if not sizes or min(sizes) < 1:
        raise ArgumentError(f"head_sizes must be one or more, each at least 1, got {sizes}")
    if sum(sizes) != rows:
        raise ArgumentError(f"head_sizes {sizes} add up to {sum(sizes)}, and the table has {rows} rows")
    return sizes


class _How:
    """How a table is written."""

    def __init__(self, backend, deduplicate, predictor, max_block_bytes, codec, block_rows, level, threads):
        one_of("backend", backend, sorted(TABLE_FILES))
        deduplicate = flag("deduplicate", deduplicate)
        for name, value in (("predictor", predictor), ("codec", codec)):
            if value is not None and not isinstance(value, str):
                raise DtypeError(f"{name} must be a str or None, got {type(value).__name__}")
        if backend == "python" and (deduplicate or predictor or codec not in (None, "raw")):
            raise ArgumentError("the backend 'python' stores rows as they are: no deduplicate, predictor or codec")
        self._backend = backend
        self._options = {
            "deduplicate": deduplicate,
            "predictor": predictor,
            "max_block_bytes": max_block_bytes,
            "codec": codec or ("zlib" if predictor else "raw"),
            "block_rows": block_rows,
            "level": level,
            "threads": threads,
        }

    def write(self, path, kind, weight, fields, overwrite):
        """Write the bundle."""
        rows, dim = weight.shape
        row_bytes = dim * weight.element_size()
        fields = {
            "num_embeddings": rows,
            "embedding_dim": dim,
            "dtype": dtype_name(weight),
            "row_bytes": row_bytes,
            **fields,
        }
        file = TABLE_FILES[self._backend]

        def fill(folder):
            target = os.path.join(folder, file)
            if self._backend == "python":
                size, digest = write_rows(target, _pieces(weight))
            else:
                source = weight if weight.device.type == "cpu" else _pieces(weight)
                report = pack_native(
                    source, target, row_bytes=row_bytes, dtype=weight.dtype, sha256=True, **self._options
                )
                size, digest = report.file_bytes, report.sha256
            return {"file": file, "backend": self._backend, "bytes": size, "sha256": digest}, None

        return write_bundle(path, kind, fields, fill, overwrite)[0]


def _pieces(weight):
    """Yield the rows of a weight, wherever it is, as arrays of uint8."""
    step = max(1, _CHUNK_BYTES // (weight.shape[1] * weight.element_size()))
    for start in range(0, len(weight), step):
        yield weight[start : start + step].resolve_neg().contiguous().cpu().view(torch.uint8).numpy()
