"""A table in place of the multi-head embeddings of n-gram memories."""

import torch

from loaderx.errors import StoreFormatError

from . import _ops
from ._arguments import QUERY_CHUNK_ROWS
from ._module import MappedModule, eager, tensor

__all__ = ["MappedMultiHeadEmbedding"]


class MappedMultiHeadEmbedding(MappedModule):
    """Engram's ``MultiHeadEmbedding`` whose rows stay in a file, for inference on the CPU.

    Several tables lie one behind the other; the ids of each head count from 0.

    Parameters
    ----------
    path : path_like
        A bundle, which `export_multihead` or `export_demo_embedding` writes.
    native_library, cache_bytes, native_cache_policy, query_chunk_rows, threads, verify
        As for `MappedEmbedding`.

    Attributes
    ----------
    num_heads, embedding_dim, num_embeddings : int
        How many heads there are, elements of a row, and rows of all heads.
    head_sizes : tuple of int
        Rows of each head.
    offsets : Tensor of int64, shape (num_heads,)
        First row of each head: a buffer, and all that there is in its
        ``state_dict``. It is what the original has; look-ups go by the table.
    dtype : torch.dtype

    Raises
    ------
    StoreFormatError
        The bundle at `path` has no heads.

    Notes
    -----
    As for `MappedEmbedding`. Unlike the original, an id outside its head is an
    error, and does not read a row of the next one. A ``state_dict`` of the
    original loads with ``strict=False``, its ``embedding.weight`` being
    reported as unexpected; other offsets are refused.
    """

    def __init__(
        self,
        path,
        native_library=None,
        cache_bytes=0,
        native_cache_policy="blocks",
        query_chunk_rows=QUERY_CHUNK_ROWS,
        *,
        threads=None,
        verify=False,
    ):
        super().__init__(
            path, native_library, cache_bytes, native_cache_policy, query_chunk_rows, threads=threads, verify=verify
        )
        if self._table.offsets is None:
            self.close()
            kind = self._table.meta.get("kind")
            what = "a table and no bundle" if kind is None else f"a bundle of kind {kind!r}"
            raise StoreFormatError(f"{self.path} is {what}: it has no heads; export_multihead writes what has some")
        self.register_buffer("offsets", torch.from_numpy(self._table.offsets.copy()))

    @property
    def num_heads(self):
        """How many heads there are."""
        return len(self._table.offsets)

    @property
    def head_sizes(self):
        """Rows of each head."""
        return tuple(self._table.head_sizes.tolist())

    def forward(self, input_ids):
        """Return the rows of all heads.

        Parameters
        ----------
        input_ids : torch.Tensor of any integer dtype, shape (..., num_heads)
            Or one that broadcasts to it, as the original's does.

        Returns
        -------
        torch.Tensor, shape (..., num_heads, embedding_dim)

        Raises
        ------
        RecordIndexError
            An id is outside its head; the message names its position in the
            flattened ids, its value, the head and the range.
        DtypeError
            `input_ids` hold no integers, or are not on the CPU.
        UnsupportedError
            Gradients are asked for.
        """
        self._refuse_gradients()
        if eager(input_ids):
            return self._table.lookup_heads(input_ids)
        return _ops.multi_head(tensor(input_ids), self._key)

    def extra_repr(self):
        """Return what the module's text says."""
        return f"heads={self.num_heads}, {super().extra_repr()}"

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors):
        given = state_dict.get(f"{prefix}offsets")
        # What is no tensor, and one of another shape, torch refuses itself.
        if isinstance(given, torch.Tensor) and given.shape == self.offsets.shape:
            known = self._table.offsets.tolist()
            numbers = None if given.is_meta else given.tolist()
            if numbers != known:
                what = "on the meta device and have no values" if numbers is None else numbers
                errors.append(f"{prefix}offsets are {what}, and the table's {known}")
                return
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)
