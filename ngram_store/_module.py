"""What the modules on mapped tables have in common."""

import os

import torch
from torch import nn

from loaderx import _engine
from loaderx.errors import ArgumentError, StoreNotFoundError, UnsupportedError

from ._arguments import QUERY_CHUNK_ROWS
from ._tensor_table import Table, integers

__all__ = ["MappedModule", "eager", "jagged", "tensor"]

_transforms = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)

_ABSENT = {
    "weight": "the rows stay in the table's file, so there is no weight to read, train or tie to another layer; "
    "look rows up by their ids, or keep the original module",
    "embedding": "the rows stay in the table's file, so there is no inner nn.Embedding",
}


class MappedModule(nn.Module):
    """A module whose rows are read from a table where they lie.

    Parameters
    ----------
    path : path_like
        A bundle; or a MEFTNAT1 file, with `dtype` unless it records that.
    native_library : path_like, optional
        Taken for programs whose reader was a library of its own. It must
        exist and is not used: the engine is part of the package.
    cache_bytes, native_cache_policy, query_chunk_rows, threads
        As `cache_bytes`, `cache_policy`, `query_chunk_rows` and `threads` of
        `NativeRows`.
    verify : bool
        Read the whole table first; it must have the recorded SHA-256.
    dtype : torch.dtype or str, optional
        Of a row's elements; a bundle knows it, and so does a file that records it.
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
        dtype=None,
    ):
        super().__init__()
        self.training = False
        if native_library is not None:
            _engine.path_arg(native_library)
            if not os.path.exists(native_library):
                raise StoreNotFoundError(f"native_library {os.fspath(native_library)!r} does not exist")
        options = {
            "cache_bytes": cache_bytes,
            "cache_policy": native_cache_policy,
            "query_chunk_rows": query_chunk_rows,
            "threads": threads,
        }
        self._adopt(Table(path, dtype, options, verify))

    def _adopt(self, table):
        self._table, self._key = table, table.key

    @property
    def path(self):
        """The bundle, as an absolute path."""
        return self._table.path

    @property
    def num_embeddings(self):
        """How many rows there are."""
        return self._table.num_embeddings

    @property
    def embedding_dim(self):
        """How many elements a row has."""
        return self._table.dim

    @property
    def dtype(self):
        """The dtype of rows and results."""
        return self._table.dtype

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._table.closed

    def stats(self):
        """Return counts of what the table's reader did, see `NativeRows.stats`."""
        return self._table.rows().stats()

    def prefetch(self, ids):
        """Have the system read the rows of a tensor of ids in the background; a hint."""
        self._table.rows().prefetch(integers(ids))

    def close(self):
        """Close the table. Idempotent; later calls of the module raise `ClosedError`."""
        self._table.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def _refuse_gradients(self):
        if self.training and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{type(self).__name__} is in training mode, and its rows get no gradients: call .eval() on it to use "
                "them as constants, or run it under torch.no_grad()"
            )

    def __getattr__(self, name):
        if name in _ABSENT:
            raise AttributeError(f"{type(self).__name__} has no {name!r}: {_ABSENT[name]}")
        return super().__getattr__(name)

    def register_parameter(self, name, param):
        """Raise, but for None: a parameter here would never be used."""
        if param is not None:
            raise UnsupportedError(f"{type(self).__name__} can't have the parameter {name!r}: {_ABSENT['weight']}")
        super().register_parameter(name, param)

    def _apply(self, fn, recurse=True):
        here = torch.empty(0, dtype=self.dtype, device="cpu")
        try:
            there = fn(here)
        except Exception as error:
            raise UnsupportedError(f"{type(self).__name__} can't be moved: {_PLACE}; torch says: {error}") from error
        if there.device.type != "cpu":
            raise UnsupportedError(f"{type(self).__name__} can't be moved to {there.device}: {_PLACE}")
        if there.dtype != here.dtype:
            raise UnsupportedError(
                f"{type(self).__name__} holds {here.dtype} and can't become {there.dtype}: export a module of that "
                "dtype, or convert what it returns"
            )
        return super()._apply(fn, recurse)

    def extra_repr(self):
        """Return what the module's text says."""
        return f"{self.num_embeddings}, {self.embedding_dim}, dtype={self.dtype}, path={self.path!r}"

    def __repr__(self):
        return super().__repr__() + (" (closed)" if self.closed else "")

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["_table"], state["_key"]
        state["_config"] = self._table.config()
        return state

    def __setstate__(self, state):
        state = dict(state)
        config = state.pop("_config")
        super().__setstate__(state)
        self._adopt(Table.restored(config))


_PLACE = (
    "its rows are in a file that the CPU reads; leave it where it is, pass ids on the CPU, and move what it returns: "
    "module(ids.cpu()).to(device)"
)


def eager(ids):
    """Whether a call can do without torch's dispatcher: nobody records it, and `ids` are what they seem."""
    if torch.compiler.is_compiling() or type(ids) is not torch.Tensor or ids.is_meta or ids.is_nested:
        return False
    return not (_transforms() or _modes() or torch.jit.is_tracing())


def tensor(ids, what="ids"):
    """Return an argument that is a tensor; refuse what is none."""
    if not isinstance(ids, torch.Tensor):
        integers(ids, what)
    return ids


def jagged(ids):
    """Return the values of nested ids; refuse those of another layout than jagged."""
    if ids.layout != torch.jagged:
        raise ArgumentError(f"nested ids must be jagged, got {ids.layout}")
    return ids.values()
