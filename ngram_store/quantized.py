"""Reading tables of numbers that are stored in fewer bytes."""

import os

from loaderx import _engine
from loaderx._buffers import bytes_of
from loaderx.errors import (
    BufferSizeError,
    ClosedError,
    CorruptRecordError,
    StoreFormatError,
)

from ._arguments import QUERY_CHUNK_ROWS, flag, reader_options
from ._identity import check_sha256, identity
from ._ids import apart, id_memory
from ._kinds import float_kind, kind_number
from ._numbers import target_of
from ._plain import PlainRows
from ._quant_report import report_of
from .bundle import read_bundle, unreplaced
from .rows import NativeRows

__all__ = ["QuantizedRows"]

#: Numbers that one call decodes; Ctrl-C comes through between calls.
_DECODED_AT_ONCE = 1 << 22


class QuantizedRows:
    """Rows of numbers in a bundle that `pack_quantized` wrote, decoded when they are read.

    Parameters
    ----------
    path : path_like
        The bundle, a directory.
    cache_bytes, cache_policy, threads, query_chunk_rows
        As for `NativeRows`. A plain table needs no cache.
    verify : bool
        Read the whole table first: it must have the hash that the bundle
        records.

    Raises
    ------
    StoreNotFoundError
        There is no bundle at `path`.
    StoreFormatError
        It is of another kind or of a newer version.
    CorruptRecordError
        Its description is damaged, or does not fit its table.

    Notes
    -----
    Safe to use from many threads at once, `close` included. It works in a
    forked child. It is pickled and copied as path, options and hash: what is
    restored reads its table to check the hash, and opens it at its first use.
    A plain table has no checksums of its own, only that hash.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from ngram_store import pack_quantized
    >>> folder = tempfile.mkdtemp() + "/q"
    >>> report = pack_quantized(np.eye(4, dtype=np.float32), folder, "uint8_rowwise")
    >>> with QuantizedRows(folder) as rows:
    ...     rows.gather([2]).round(3).tolist(), rows.dim, rows.width
    ([[0.0, 0.0, 1.0, 0.0]], 4, 12)
    """

    def __init__(
        self, path, cache_bytes=0, cache_policy="blocks", threads=None, query_chunk_rows=QUERY_CHUNK_ROWS, verify=False
    ):
        verify = flag("verify", verify)
        options = reader_options(cache_bytes, cache_policy, threads, query_chunk_rows)

        def opened(bundle):
            self._begin(path, bundle, options)
            if verify:
                self._identity = check_sha256(self._bundle.table_path, self._bundle.sha256)
            return self._rows()

        unreplaced(path, opened)

    def _begin(self, path, bundle, options):
        bundle = bundle or read_bundle(path)  # which says that there is only a file
        if bundle.kind != "quantized":
            raise StoreFormatError(
                f"{bundle.described}, and not one of quantised rows, which pack_quantized makes of numbers"
            )
        self._bundle, self._options = bundle, options
        self._lock = _engine.Lock()
        self._reader = self._identity = None
        self._closed = False
        meta = bundle.meta
        self._kind, self._dim, self._width = meta["dtype"], meta["embedding_dim"], meta["row_bytes"]

    def _rows(self):
        reader = self._reader
        if reader is None or self._closed:
            with self._lock():
                if self._closed:
                    raise ClosedError(f"the table {self._bundle.path} was closed")
                if self._reader is None:
                    self._reader = self._open()
                reader = self._reader
                if self._closed:  # by another thread, meanwhile
                    reader.close()
        return reader

    def _open(self):
        meta, file = self._bundle.meta, self._bundle.table_path
        if self._identity is not None and identity(file) != self._identity:
            self._identity = check_sha256(file, self._bundle.sha256)
        before = identity(file)
        if self._identity is not None and before != self._identity:
            raise StoreFormatError(f"{file} was changed or replaced while it was opened; try again")
        if self.native:
            reader = NativeRows(file, **self._options)
        else:
            reader = PlainRows(file, self._width, **self._options)
        if identity(file) != before:
            reader.close()
            raise StoreFormatError(f"{file} was changed or replaced while it was opened; try again")
        found = (*reader.shape, reader.info()["file_bytes"])
        if reader.dtype not in (None, self._kind):
            reader.close()
            raise CorruptRecordError(f"{file} has {reader.dtype} rows, and its bundle says {self._kind}")
        if found != (meta["num_embeddings"], self._width, meta["table"]["bytes"]):
            reader.close()
            raise CorruptRecordError(
                f"{file} has {found[0]} rows of {found[1]} bytes in {found[2]}, and its bundle says "
                f"{meta['num_embeddings']} of {self._width} in {meta['table']['bytes']}"
            )
        return reader

    def gather(self, ids):
        """Return rows by their ids, decoded.

        Parameters
        ----------
        ids : array_like of int, any shape
            As for `NativeRows.gather`, which says what it raises.

        Returns
        -------
        ndarray of float32, shape (*ids.shape, dim)
        """
        return self._rows().gather_floats(ids, self._kind, dim=self._dim)

    def gather_into(self, ids, output, encoded_scratch=None):
        """Decode rows into memory of the caller's.

        Parameters
        ----------
        ids : array_like of int, any shape
            As for `gather`.
        output : ndarray or torch.Tensor on the CPU of float32, shape (*ids.shape, dim)
            C-contiguous, writable, and apart from the other two in memory. After
            an error other than those about the arguments its content is
            undefined.
        encoded_scratch : buffer, optional
            C-contiguous and writable, of ``ids.size * width`` bytes or more,
            whatever its shape and dtype: takes the encoded rows first. Without
            it rows are decoded straight from where they lie, which is faster.

        Raises
        ------
        BufferSizeError
            `encoded_scratch` is too small, or `output` has another size.
        """
        rows = self._rows()
        if encoded_scratch is None:
            rows.gather_floats(ids, self._kind, out=output, dim=self._dim)
            return
        where, n, _unsigned, shape, ids = id_memory(ids)
        kind = float_kind(self._kind, self._dim, self._width, None)
        target, size, output = target_of(output, kind, tuple(shape))
        scratch, room, owner = _engine.pin(encoded_scratch, writable=True)
        used = n * self._width
        if room < used:
            raise BufferSizeError(f"{n} encoded rows of {self._width} bytes need {used}, encoded_scratch has {room}")
        for name, memory in (("ids", (where, 8 * n)), ("encoded_scratch", (scratch, used))):
            apart(target, size, name, *memory)
        apart(scratch, used, "ids", where, 8 * n, "encoded_scratch")
        rows.gather_into(ids, bytes_of(owner)[:used])
        number, step = kind_number(self._kind), max(_DECODED_AT_ONCE // self._dim, 1)
        for start in range(0, n, step):
            some = min(step, n - start)
            place = target + 4 * self._dim * start, some * self._dim, self._dim
            _engine.check(_engine.lib.RowsDecode(*place, scratch + self._width * start, some * self._width, number))

    def embedding_bag(
        self,
        ids,
        offsets=None,
        mode="sum",
        weights=None,
        padding_idx=None,
        out=None,
        accumulate="torch",
        include_last_offset=None,
        bits=False,
    ):
        """Reduce bags of rows, as `NativeRows.embedding_bag` does, which describes the parameters.

        Returns
        -------
        ndarray, shape (bags, dim)
            Of float32; of the rows' own dtype for the kinds ``"fp16"`` and
            ``"bf16"``. Or `out`.
        """
        return self._rows().embedding_bag(
            ids, offsets, mode, weights, padding_idx, out, accumulate, self._kind, include_last_offset, self._dim, bits
        )

    def prefetch(self, ids):
        """Have the system read rows into its page cache, in the background; a hint."""
        self._rows().prefetch(ids)

    def stats(self):
        """Return counts of what the table's reader did, see `NativeRows.stats`."""
        return self._rows().stats()

    def info(self):
        """Return what the table consists of, see `NativeRows.info`; ``dtype`` is the kind also of a plain table."""
        return {**self._rows().info(), "dtype": self._kind}

    def report(self):
        """Return the `QuantizedReport` of the packing."""
        return report_of(self._bundle.path, self._bundle.meta)

    def verify(self):
        """Raise `CorruptRecordError` unless the table has the hash that its bundle records."""
        self._rows()
        check_sha256(self._bundle.table_path, self._bundle.sha256)

    @property
    def dim(self):
        """Columns of a row."""
        return self._dim

    @property
    def width(self):
        """Bytes of an encoded row."""
        return self._width

    @property
    def kind(self):
        """How rows are stored, ``"int8"`` for one."""
        return self._kind

    @property
    def dtype(self):
        """What rows consist of: `kind`, as `NativeRows.dtype` calls it."""
        return self._kind

    @property
    def native(self):
        """Whether the table is a MEFTNAT1 file."""
        return self._bundle.backend == "native"

    @property
    def shape(self):
        """Number of rows and of columns."""
        return len(self), self._dim

    @property
    def path(self):
        """The bundle, as an absolute path."""
        return self._bundle.path

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._closed

    def __len__(self):
        return self._bundle.meta["num_embeddings"]

    def close(self):
        """Close the table. Idempotent; later calls raise `ClosedError`."""
        self._closed = True
        reader = self._reader
        if reader is not None:
            reader.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def __repr__(self):
        state = " (closed)" if self._closed else ""
        return f"{type(self).__name__}({os.fspath(self.path)!r}, {self._kind}, {self.shape}){state}"

    def __getstate__(self):
        if self._closed:
            raise ClosedError(f"{self!r} can't be pickled or copied")
        return {"path": self.path, "options": self._options, "sha256": self._bundle.sha256}

    def __setstate__(self, state):
        def restored(bundle):
            self._begin(state["path"], bundle, state["options"])
            sha256 = self._bundle.sha256
            if sha256 != state["sha256"]:
                raise CorruptRecordError(
                    f"{self._bundle.path} was replaced by another bundle: its table has the SHA-256 {sha256}, "
                    f"not {state['sha256']}"
                )
            self._identity = check_sha256(self._bundle.table_path, sha256)

        unreplaced(state["path"], restored, discard=lambda _nothing: None)
