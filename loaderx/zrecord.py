"""The record store: an append-only list of byte records in one directory.

A `Zrecord` knows bytes only. What they mean is written beside them by
`loaderx.converter` and read back by `loaderx.dataset`.
"""

import operator
from typing import NamedTuple

import numpy as np

from . import _engine
from ._buffers import masked
from ._format import codec_tag, format_info
from ._open import OpenStore
from ._watch import Watch
from .errors import (
    ArgumentError,
    ClosedError,
    DtypeError,
    RecordIndexError,
    StoreNotFoundError,
    ZrecordError,
)

__all__ = ["CODECS", "FORMAT", "MAX_RECORD_LEN", "SCHEMA", "BadRecord", "Zrecord", "ZrecordError"]

_UINT64 = np.dtype(np.uint64)


CODECS: dict
FORMAT: str
MAX_RECORD_LEN: int
SCHEMA: str

_CONSTANTS = {
    "CODECS": "codecs",
    "FORMAT": "format",
    "MAX_RECORD_LEN": "max_record_len",
    "SCHEMA": "schema_file",
}


def __getattr__(name):
    # The engine knows these; importing the module must not load it.
    if name in _CONSTANTS:
        return format_info()[_CONSTANTS[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# So many lengths are looked up in one call, which Ctrl-C has to wait for.
_LENGTHS = 1 << 20

#: Lets negative indices count from the length that the store has when the engine is called.
_NOW = -1

#: Bytes from which on a gather asks for the length first, as it may take several calls.
_LONG = 4 << 20


class BadRecord(NamedTuple):
    """A record that could not be read: its index, and why."""

    index: int
    message: str


class Zrecord(OpenStore):
    """A store of byte records, numbered from 0 in the order of their appending.

    Parameters
    ----------
    path : path_like
        Directory of the store.
    codec : {"zstd", "raw", "zstd_dict"}
        Compression that `append` uses unless told otherwise. ``"zstd_dict"``
        needs a dictionary, see `train_dict`.
    mode : {None, "r", "r+", "a", "x"}
        ``None`` opens an existing store for reading and turns into ``"a"`` at
        the first call that writes; at a path without a store it is an empty
        store that exists on disk from the first write on, so that a mistyped
        path creates nothing. ``"r"`` reads only, and the store must exist;
        ``"r+"`` appends to an existing store; ``"a"`` appends and creates what
        is missing; ``"x"`` creates and fails if a store is there.
    level : int, optional
        Compression level; the default depends on the codec (3 for zstd, 19
        with a dictionary).

    Raises
    ------
    StoreNotFoundError
        There is no store at `path`, and `mode` is ``"r"`` or ``"r+"``.
    StoreExistsError
        There is one, and `mode` is ``"x"``.
    LockedError
        The store is open for writing elsewhere.

    Notes
    -----
    Leaving a ``with`` block closes the store and with it publishes what was
    appended, also when an exception ends the block: what a failed program had
    written is kept. The converters keep none of it.

    Records are numbered from 0 only. Negative indices, which datasets count
    from the end, raise `RecordIndexError` in all methods.

    Reading and appending are safe from many threads at once; the GIL is
    released. A store that was opened for reading can be pickled (as its path
    and options) and works in a forked child; one that writes refuses both,
    because two processes must not write one store.

    `delete` and `compact` need the store alone, also among the threads of one object: they raise
    `StoreInUseError` while another thread is in a call on it, and a call that other threads make
    on it while they run raises `StoreInUseError`, too. Nothing is lost then; make it again.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> with Zrecord(tempfile.mkdtemp(), codec="raw") as store:
    ...     first = store.append(b"abcde", [0, 3])
    ...     store.gather([1, 0], np.empty(5, np.uint8), [0, 2]).tobytes()
    b'deabc'
    """

    def __len__(self):
        try:
            return self._call("ZrLen")
        except StoreNotFoundError:
            if self._handle is None and self._mode is None:
                return 0  # not on disk before its first write
            raise

    def append(self, src, offsets, codec=None):
        """Append records that lie one after another in a buffer.

        Parameters
        ----------
        src : buffer
            C-contiguous array, CPU tensor, bytes or memoryview of the records.
        offsets : array_like of int, shape (n,)
            Byte at which each record starts; the first is 0, and the last
            record ends with the buffer.
        codec : {"raw", "zstd", "zstd_dict"}, optional
            Instead of the store's own.

        Returns
        -------
        int
            Index of the first appended record; the others follow it.

        Raises
        ------
        RecordSizeError
            A record is empty or larger than `MAX_RECORD_LEN`.
        ReadOnlyError
            The store was opened with ``mode="r"``.

        Notes
        -----
        All of the records are appended or none. They are readable through this
        object at once, and through others after `sync` or `close`. Ctrl-C
        cancels the call.
        """
        tag = codec_tag(self._codec if codec is None else codec)
        address, size, src = _engine.pin(src)
        offsets = _unsigned(offsets, "offsets")
        where = _engine.address(offsets)
        store = self._writer()
        return _engine.run(_engine.lib.ZrAppend, store, address, size, where, offsets.size, tag, keep=(src, offsets))

    def gather(self, idxs, dst, offsets):
        """Read records into given places of a buffer.

        Parameters
        ----------
        idxs : array_like of int, shape (n,)
            Records to read, in any order, repeats allowed. Negative numbers
            are out of range here.
        dst : buffer
            C-contiguous and writable; written in place.
        offsets : array_like of int, shape (n,)
            Byte in `dst` at which each record shall start.

        Returns
        -------
        buffer
            `dst`.

        Raises
        ------
        RecordIndexError
            An index is outside the store.
        BufferSizeError
            A record would end after the buffer's end.
        CorruptRecordError
            Stored bytes are damaged; the message names the record.
        """
        idxs = _unsigned(idxs, "idxs")
        offsets = _unsigned(offsets, "offsets")
        if offsets.size != idxs.size:
            raise ArgumentError(f"{idxs.size} indices need as many offsets, got {offsets.size}")
        address, size, _owner = _engine.pin(dst, writable=True)
        self._gather(_engine.address(idxs), idxs.size, 0, address, size, _engine.address(offsets))
        return dst

    # A long gather returns from the engine now and then, so that Ctrl-C is answered. `wrap` is the
    # length that negative indices count from, 0 for none: it must be one and the same number in all
    # calls for a batch, since another process may append meanwhile.

    def _gather(self, idxs, n, wrap, dst, size, offsets):
        """Gather; arguments are addresses, of 64-bit integers for `idxs` and `offsets`."""
        done = self._call("ZrGather", idxs, n, wrap, 0, dst, size, offsets)
        while done < n:
            done = self._call("ZrGather", idxs, n, wrap, done, dst, size, offsets)

    def _gather_dense(self, idxs, n, signed, dst, size, row_bytes):
        """Gather records of one length, the i-th to ``dst + i * row_bytes``.

        For stores opened with ``mode="r"``, whose handle stays the same: this
        is the path on which a microsecond counts.
        """
        if self._handle is None:
            self._id()  # opens what was unpickled
        handle, wrap = self._handle, 0
        if signed:
            wrap = _NOW if size < _LONG else len(self)
        done = _engine.lib.ZrGatherDense(handle.id(), idxs, n, wrap, 0, dst, size, row_bytes)
        while done < n:
            try:
                _engine.check(done)
            except ClosedError:
                self._check_open()  # says which store it was
                raise
            if wrap == _NOW:  # it took long after all
                wrap, done = len(self), 0
            done = _engine.lib.ZrGatherDense(handle.id(), idxs, n, wrap, done, dst, size, row_bytes)

    def lengths(self, idxs):
        """Return the sizes of records in bytes, as they were appended.

        Parameters
        ----------
        idxs : array_like of int, shape (n,)

        Returns
        -------
        ndarray of uint32, shape (n,)
        """
        return self._lengths(_unsigned(idxs, "idxs"), 0)

    def _lengths(self, idxs, wrap):
        out = np.empty(idxs.size, dtype=np.uint32)
        for start in range(0, idxs.size, _LENGTHS):
            part, into = idxs[start : start + _LENGTHS], out[start : start + _LENGTHS]
            self._call("ZrLengths", _engine.address(part), part.size, wrap, _engine.address(into))
        return out

    def train_dict(self, samples, sizes, target):
        """Train a zstd dictionary, store it, and use it from now on.

        Parameters
        ----------
        samples : buffer
            Sample records, one after another.
        sizes : array_like of int, shape (n,)
            Length of each sample in bytes.
        target : int
            Largest size of the dictionary in bytes.

        Returns
        -------
        int
            Size of the dictionary in bytes.

        Raises
        ------
        DictionaryError
            The samples are too few, too small or too alike, or `target` is too small or too large.
        """
        address, size, samples = _engine.pin(samples)
        sizes = _unsigned(sizes, "sizes")
        where = _engine.address(sizes)
        try:
            target = operator.index(target)
        except TypeError:
            raise DtypeError(f"target must be an int, got {type(target).__name__}") from None
        if not -(1 << 63) <= target < 1 << 63:  # what the engine takes; it knows the rest
            raise ArgumentError(f"target must be a size of at most {format_info()['max_dict_bytes']} bytes")
        store = self._writer()
        return _engine.run(
            _engine.lib.ZrTrainDict, store, address, size, where, sizes.size, target, keep=(samples, sizes)
        )

    def has_dict(self):
        """Return whether the store has a dictionary."""
        return bool(self._call("ZrHasDict"))

    def delete(self, idxs):
        """Delete records; the rest stay numbered from 0 without gaps.

        In falling order of the indices, the record that is last by then moves
        into the hole: the order changes, all other records keep their numbers.

        Parameters
        ----------
        idxs : array_like of int, shape (n,)
            Records to delete, in any order; one given twice counts once.

        Raises
        ------
        RecordIndexError
            An index is outside the store; nothing is deleted.
        StoreInUseError
            Another handle of the store is open, in this process or another, or
            another thread is in a call on this one. Datasets hold a handle.

        Notes
        -----
        All of the records are deleted, durably, or none, also when the process
        or the machine dies. Their bytes stay on disk until `compact`.
        """
        idxs = _unsigned(idxs, "idxs")
        where = _engine.address(idxs)
        _engine.run(_engine.lib.ZrDelete, self._owner(), where, idxs.size, False, keep=(idxs,))

    def compact(self):
        """Give the space of deleted records, and of failed appends, back.

        Records keep their numbers and contents. Shows a progress bar on a
        terminal when it takes long.

        Raises
        ------
        StoreInUseError
            As for `delete`.

        Notes
        -----
        Ctrl-C, or a crash, stops it at any point without harm: the next run
        goes on. Needs about 40 MiB of memory and 4 bytes a record, and while
        it runs up to 32 MiB of free disk space.
        """
        with Watch("compacting", "B") as watch:
            watch.run(_engine.lib.ZrCompact, self._owner())

    def stats(self):
        """Return how much the store holds and what `compact` would free.

        Returns
        -------
        dict
            ``records``; ``live_bytes``, the records' bytes as stored;
            ``chunk_bytes``, the bytes of the chunk files up to the end of the
            store; ``reclaimable``, their difference; ``lost``, the records that can't be read
            because their chunk file is missing or too short (`verify` finds other damage, too);
            ``codecs``, the number of records by the codec that they are stored with. One that would
            not shrink is stored raw; a damaged one may be in none.
        """
        codecs = format_info()["codecs"]
        out = np.zeros(5 + len(codecs), dtype=np.int64)
        where = _engine.address(out)
        self._read(lambda store: _engine.run(_engine.lib.ZrStats, store, where, keep=(out,)))
        names = ("records", "live_bytes", "chunk_bytes", "reclaimable", "lost")
        numbers = dict(zip(names, out[:5].tolist(), strict=True))
        return {**numbers, "codecs": dict(zip(sorted(codecs, key=codecs.get), out[5:].tolist(), strict=True))}

    def verify(self):
        """Read every record and return those that can't be read.

        Returns
        -------
        list of BadRecord
            By rising index; empty for a sound store. Each is a pair
            ``(index, message)``.

        Notes
        -----
        Works on all cores, and beside other readers and a writer; Ctrl-C ends
        it. It never stops at a bad record. The format has no checksums, so
        damage inside a raw record is not seen, nor some in compressed ones.
        """
        with Watch("verifying", "records") as watch:
            self._read(lambda store: watch.run(_engine.lib.ZrVerify, store))
            return sorted(BadRecord(found["index"], found["text"]) for found in watch.findings)


def _unsigned(values, name):
    """Return integers as a flat C-contiguous array of 64 bits each."""
    if np.ma.isMaskedArray(values):
        raise masked(name)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ArgumentError(f"{name} must be a list of integers: {error}") from None
    if array.dtype is _UINT64 and array.ndim == 1 and array.flags.c_contiguous:
        return array
    kind = array.dtype.kind
    if kind == "u":
        return np.require(array, np.uint64, ("C", "A")).reshape(-1)
    if kind != "i" and array.size:
        raise DtypeError(f"{name} must be integers, got {array.dtype}")
    if array.size and array.min() < 0:
        if name == "idxs":
            raise RecordIndexError(f"negative index {array.min()}: a Zrecord counts from 0 only")
        raise ArgumentError(f"{name} must not be negative, got {array.min()}")
    return np.ascontiguousarray(array, dtype=np.uint64).reshape(-1)
