"""The table behind a module: opened, closed, restored, and found by the operators."""

import functools
import itertools
import json
import os
import weakref

import numpy as np
import torch

from loaderx import _engine
from loaderx.errors import (
    ArgumentError,
    ClosedError,
    CorruptRecordError,
    DtypeError,
    RecordIndexError,
    StoreFormatError,
    ZrecordError,
)

from ._arguments import array_of, flag, reader_options
from ._description import TABLE_FILES, check_shape, is_digest
from ._identity import check_sha256, identity
from ._ids import row_ids
from ._kinds import dtype_of_kind, float_name, kind_of_dtype
from ._results import Results
from ._table import same_table
from .bundle import DTYPES, unreplaced
from .reference import PythonRows
from .rows import NativeRows

__all__ = ["Table", "config_of", "find", "integers", "readable", "results"]

#: Memory for what look-ups of all modules return.
results = Results()
_live = weakref.WeakValueDictionary()  # key -> Table
_adopted = {}  # the same for keys of programs that were loaded without their module
_numbers = itertools.count()


class Table:
    """Rows of a bundle, or of a bare MEFTNAT1 file, as tensors.

    Parameters
    ----------
    path : path_like
    dtype : torch.dtype, str or None
        Of a bare file's elements; by default as the file records it. A bundle knows it.
    options : dict
        Of `NativeRows`: ``cache_bytes``, ``cache_policy``, ``query_chunk_rows``, ``threads``.
    verify : bool
        Read the table, which must have the hash that the bundle records; a
        bare file must be sound.

    Attributes
    ----------
    meta : dict
        Of the bundle; of a bare file its shape and dtype.
    key : str
        What operators find it by; a program that runs where there is no such table opens it from
        what the key says.

    Notes
    -----
    Safe to use from many threads.
    """

    def __init__(self, path, dtype, options, verify=False):
        verify = flag("verify", verify)
        self._begin(path, dtype, options)

        def opened(bundle):
            self._settle(bundle)
            digest = self.meta["table"]["sha256"]
            if verify and digest:
                self._identity = check_sha256(self._file, digest)
            elif verify:
                NativeRows(self._file, verify=True).close()
            return self.rows()

        unreplaced(self.path, opened)
        self._describe()

    @classmethod
    def restored(cls, config):
        """Return the table of a `config`, which is verified, and is opened at its first use.

        Raises
        ------
        CorruptRecordError
            The file has other content than when it was opened.
        StoreNotFoundError
            It is gone.
        """
        self = cls.__new__(cls)
        self._begin(config["path"], config["dtype"], config["options"])

        def restored(bundle):
            self._settle(bundle, config["meta"])
            digest = self.meta["table"]["sha256"]
            if digest:
                self._identity = check_sha256(self._file, digest)

        unreplaced(self.path, restored, discard=lambda _nothing: None)
        self._describe()
        return self

    def _begin(self, path, dtype, options):
        _engine.path_arg(path)
        self.path = os.path.abspath(os.fsdecode(path))
        self._given = None if dtype is None else float_name(dtype)
        self._options = reader_options(**options)
        self._lock = _engine.Lock()
        self._closed = False
        self._process = os.getpid()

    def _settle(self, bundle, expected=None):
        """Learn what there is at the path: a bundle, or a file if that is None."""
        self._reader = self._identity = None
        if bundle is None:
            self._file, self.meta = self.path, expected or self._bare()
        else:
            self._file, self.meta = bundle.table_path, bundle.meta
            if bundle.kind == "quantized":
                raise DtypeError(f"{bundle.described}: its rows are quantised")
            if self._given not in (None, self.meta["dtype"]):
                raise DtypeError(f"{self.path} holds {self.meta['dtype']}, not {self._given}")
        if expected is not None and self.meta["table"]["sha256"] != expected["table"]["sha256"]:
            raise CorruptRecordError(
                f"{self.path} was replaced by another bundle: its table has the SHA-256 "
                f"{self.meta['table']['sha256']}, not {expected['table']['sha256']}"
            )
        # What describes these bytes; another description of them may say that they mean something else.
        self.meta = self.meta if expected is None else {**expected, "table": self.meta["table"]}

    def _describe(self):
        """Take over what is known, and be found by the operators."""
        self.num_embeddings, self.dim = self.meta["num_embeddings"], self.meta["embedding_dim"]
        self.dtype = getattr(torch, self.meta["dtype"])
        self.padding_idx = self.meta.get("padding_idx")
        heads = self.meta.get("head_sizes")
        self.head_sizes = None if heads is None else np.array(heads, np.int64)
        self.offsets = None if heads is None else np.cumsum(self.head_sizes) - self.head_sizes
        config = {**self._config(), "instance": next(_numbers)}
        self.key = json.dumps(config, sort_keys=True)
        _live[self.key] = self

    def _bare(self):
        with NativeRows(self.path) as rows:
            n, width = rows.shape
            recorded, stamp = rows.dtype, rows.stamp()
        dtype = dtype_of_kind(recorded) or (self._given if recorded is None else None)
        if dtype is None and recorded is None:
            raise ArgumentError(
                f"{self.path} is a file and no bundle, and does not record what its rows consist of, so dtype must be "
                f"one of {sorted(DTYPES)}"
            )
        if dtype is None or self._given not in (None, dtype):
            raise DtypeError(f"{self.path} records that its rows are {recorded}; dtype is {self._given!r}")
        if width % DTYPES[dtype]:
            raise DtypeError(f"rows of {width} bytes in {self.path} do not consist of {dtype}")
        table = {"file": os.path.basename(self.path), "backend": "native", "bytes": 0, "sha256": "", "stamp": stamp}
        dim = width // DTYPES[dtype]
        return {"num_embeddings": n, "embedding_dim": dim, "dtype": dtype, "row_bytes": width, "table": table}

    def _config(self):
        return {"path": self.path, "dtype": self._given, "options": self._options, "meta": self.meta}

    def config(self):
        """Return what `restored` takes: where the table is, its hash, and options."""
        if self._closed:
            raise ClosedError(f"the table {self._file} was closed: its module can't be pickled or copied")
        if not self.meta["table"]["sha256"]:
            checksum = self.rows().checksum()  # takes the lock, in a forked child
            self.meta = {**self.meta, "table": {**self.meta["table"], "sha256": checksum}}
        return self._config()

    def rows(self):
        """Return the reader of the table; a process opens its own."""
        reader = self._reader
        if reader is None or self._closed or self._process != os.getpid():
            if self._closed:
                raise ClosedError(f"the table {self._file} was closed")
            with self._lock():
                return self._opened()
        return reader

    def _opened(self):
        if self._process != os.getpid():
            before = self._identity
            self._check_same()
            self._process = os.getpid()
            if self._identity != before:  # another file of the same content, which the parent's reader would refuse
                self._reader = None
        if self._reader is None:
            if self._identity is not None:
                self._check_same()
            before = identity(self._file)
            reader = self._open()
            if identity(self._file) != before:
                reader.close()
                raise StoreFormatError(f"{self._file} was changed or replaced while it was opened; try again")
            self._reader, self._identity = reader, before
        if self._closed:  # by another thread, meanwhile
            self._reader.close()
            raise ClosedError(f"the table {self._file} was closed")
        return self._reader

    def _open(self):
        rows, width, table = self.meta["num_embeddings"], self.meta["row_bytes"], self.meta["table"]
        if table["backend"] == "python":
            return PythonRows(self._file, rows, width)
        reader = NativeRows(self._file, **self._options)
        info = reader.info()
        if (info["rows"], info["row_bytes"]) != (rows, width) or info["file_bytes"] != (
            table["bytes"] or info["file_bytes"]
        ):
            reader.close()
            raise CorruptRecordError(
                f"{self._file} has {info['rows']} rows of {info['row_bytes']} bytes in {info['file_bytes']}, and its "
                f"bundle says {rows} of {width} in {table['bytes']}"
            )
        if not table["sha256"] and not same_table(table["stamp"], reader.stamp()):
            reader.close()
            raise CorruptRecordError(
                f"{self._file} was changed or replaced by another table since its module was made or exported"
            )
        if info["dtype"] not in (None, kind_of_dtype(self.meta["dtype"])):
            reader.close()
            raise CorruptRecordError(f"{self._file} has {info['dtype']} rows, and its bundle says {self.meta['dtype']}")
        return reader

    def _check_same(self):
        """Raise unless the file at the path is the one that was opened, or has the same content."""
        if self._identity is None or identity(self._file) == self._identity:
            return
        digest = self.meta["table"]["sha256"]
        if not digest:
            raise StoreFormatError(f"{self._file} was changed or replaced since it was opened; open it again")
        self._identity = check_sha256(self._file, digest)

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._closed

    def close(self):
        """Close the table. Idempotent."""
        self._closed = True
        reader = self._reader
        if reader is not None:
            reader.close()

    def lookup(self, ids):
        """Return the rows of a tensor of ids, shape (*ids.shape, dim)."""
        return self.fetch(readable(ids))

    def fetch(self, array):
        """Return the rows of an array or `readable` tensor of ids as a tensor."""
        rows = self.rows()
        out, memory = results.empty((*array.shape, self.dim), self.dtype)
        rows.gather_into(array, memory)
        return out

    def lookup_heads(self, ids):
        """Return the rows of ids that count within each head, shape (*ids.shape, dim)."""
        array, _shape = row_ids(integers(ids))
        heads = len(self.offsets)
        try:
            array = np.broadcast_to(array, np.broadcast_shapes(array.shape, (heads,)))
        except ValueError:
            raise ArgumentError(
                f"ids of shape {tuple(array.shape)} do not fit {heads} heads: the last dimension must be {heads}"
            ) from None
        if (array.view(np.uint64) >= self.head_sizes.view(np.uint64)).any():
            self._refuse_heads(array)
        return self.fetch(array.astype(np.int64, copy=False) + self.offsets)

    def _refuse_heads(self, array):
        heads = np.broadcast_to(np.arange(len(self.offsets)), array.shape).reshape(-1)
        for position, (number, head) in enumerate(zip(array.reshape(-1).tolist(), heads.tolist(), strict=True)):
            if not 0 <= number < self.head_sizes[head]:
                size = self.head_sizes[head]
                raise RecordIndexError(
                    f"id {number} at position {position} is outside head {head}: want 0 to {size - 1}: "
                    f"table {self._file}"
                )


def integers(ids, what="ids"):
    """Return the array that shares a tensor's memory.

    Raises
    ------
    DtypeError
        It is no tensor of integers on the CPU.
    """
    if not isinstance(ids, torch.Tensor):
        raise DtypeError(
            f"{what} must be a tensor, got {type(ids).__name__}: pass torch.tensor({what}); NativeRows takes anything"
        )
    if ids.device.type != "cpu":
        raise DtypeError(f"{what} are on {ids.device}, and a mapped table is read by the CPU: pass .cpu()")
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        hint = f": pass {what}.long()" if ids.dtype.is_floating_point else ""
        raise DtypeError(f"{what} must be of an integer dtype, not {ids.dtype}{hint}")
    try:
        return ids.numpy()
    except (TypeError, RuntimeError):  # not yet computed, or nothing that NumPy could see
        return array_of(ids, what, "integers")


def readable(ids, what="ids"):
    """Return a tensor of integers as `NativeRows` takes it, which is as it is if that is fastest."""
    return ids if ids.dtype is torch.int64 and ids.is_cpu else integers(ids, what)


def find(key):
    """Return the table of a key; one that this process does not have is opened from what the key says."""
    table = _live.get(key)
    if table is None:
        table = _adopted[key] = Table.restored(config_of(key))
        _live[key] = table
    return table


@functools.lru_cache(maxsize=1024)
def config_of(key):
    """Return what a key says, as `Table.restored` takes it.

    Raises
    ------
    ArgumentError
        It is not the key of a table.
    """
    try:
        config = json.loads(key)
        meta, table = config["meta"], config["meta"]["table"]
        check_shape("it", meta)
        os.fsencode(config["path"])
        reader_options(**config["options"])
        whole = type(config["path"]) is str and type(config["dtype"]) in (str, type(None)) and type(key) is str
        whole = whole and table["backend"] in TABLE_FILES and type(table["bytes"]) is int
        # A bundle's is checked against its hash, that of a bare file against its header.
        stamp = None if is_digest(table["sha256"]) else table["stamp"]
        whole = whole and (stamp is None or (len(stamp) == 2 and type(stamp[0]["version"]) is int))
    except (ValueError, TypeError, LookupError, RecursionError, ZrecordError):
        whole = False
    if not whole:
        raise ArgumentError(f"table must be the key of a mapped module, got {str(key)[:200]!r}")
    return config
