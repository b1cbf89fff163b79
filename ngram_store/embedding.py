"""A table in place of ``nn.Embedding``."""

import torch

from . import _ops
from ._module import MappedModule, eager, jagged, tensor

__all__ = ["MappedEmbedding"]


class MappedEmbedding(MappedModule):
    """``nn.Embedding`` whose rows stay in a file, for inference on the CPU.

    Parameters
    ----------
    path : path_like
        A bundle, which `export_embedding` writes; or a MEFTNAT1 file of any
        origin, with `dtype` unless it records that.
    native_library : path_like, optional
        Taken for programs whose reader was a library of its own. It must
        exist and is not used: the engine is part of the package.
    cache_bytes, native_cache_policy, query_chunk_rows, threads
        As `cache_bytes`, `cache_policy`, `query_chunk_rows` and `threads` of
        `NativeRows`.
    verify : bool
        Read the whole table first: it must have the recorded SHA-256, and a
        bare file must be sound.
    dtype : torch.dtype or str, optional
        Of a row's elements: float32, float64, float16 or bfloat16. A bundle
        knows it, and so does a file that records it.

    Attributes
    ----------
    num_embeddings, embedding_dim : int
    padding_idx : int or None
        Of the exported module; as there, it means nothing for the result.
    dtype : torch.dtype

    Raises
    ------
    StoreNotFoundError, StoreFormatError, CorruptRecordError
        There is no bundle at `path`, it is of a newer version, or damaged.

    Notes
    -----
    Safe to use from many threads, `close` included. Results have the bits of
    ``weight[ids]``. Large ones lie in memory that was a result before and
    that nobody refers to any more; such tensors can't be resized in place.

    What a module with a weight could do, and this one refuses with the reason:
    ``.weight`` (and ties to it), calls in training mode with gradients
    enabled, other devices and dtypes (``.to("cuda")``, ``.half()``). It is in
    evaluation mode when it is made. Its ``state_dict`` is empty. A model with
    such a module in it raises from ``.half()`` or ``.to(...)`` when it comes to
    the module: torch has then converted the layers before it already, and does
    not set them back.

    A copy, a pickle and a spawned worker get path, options and the table's
    SHA-256; the file must still have it, which is checked as they are made,
    and is opened at the first call. A forked process opens the file anew, too,
    and refuses another one in its place. The module itself goes on reading the
    file that it opened, even if another one takes its place. A file whose
    bytes are written over in place is nobody's table any more.

    ``torch.compile`` and ``torch.export`` hold a look-up as one operator,
    ``ngram_store::embedding``. An exported program opens the table in another
    process, too, where ``ngram_store.embedding`` must be imported first.

    Examples
    --------
    >>> import tempfile, torch, ngram_store
    >>> path = tempfile.mkdtemp() + "/rows"
    >>> original = torch.nn.Embedding(1000, 16)
    >>> _bundle = ngram_store.export_embedding(original, path)
    >>> with ngram_store.MappedEmbedding(path) as mapped, torch.no_grad():
    ...     ids = torch.tensor([[3, 999], [3, 0]])
    ...     torch.equal(mapped(ids), original(ids))
    True
    """

    @property
    def padding_idx(self):
        """The padding index of the exported module."""
        return self._table.padding_idx

    def forward(self, input):
        """Return rows by their ids.

        Parameters
        ----------
        input : torch.Tensor of any integer dtype, any shape and strides
            Or a jagged nested tensor.

        Returns
        -------
        torch.Tensor, shape (*input.shape, embedding_dim)

        Raises
        ------
        RecordIndexError
            An id is outside the table; the message names its position in the
            flattened ids, its value and the range.
        DtypeError
            `input` holds no integers, or is not on the CPU.
        UnsupportedError
            Gradients are asked for.
        """
        self._refuse_gradients()
        if eager(input):
            return self._table.lookup(input)
        if tensor(input).is_nested:
            rows = self(jagged(input))
            return torch.nested.nested_tensor_from_jagged(rows, input.offsets(), lengths=input.lengths())
        return _ops.embedding(input, self._key)
