"""Opening and closing a record store: modes, forks, pickles."""

import operator
import os

from . import _engine
from ._format import codec_tag
from .errors import ArgumentError, ClosedError, DtypeError, ReadOnlyError, StoreNotFoundError

__all__ = ["OpenStore"]

# Numbers of the modes in the engine.
_READ, _APPEND, _APPEND_OR_CREATE, _CREATE = range(4)
_MODES = {"r": _READ, "r+": _APPEND, "a": _APPEND_OR_CREATE, "x": _CREATE}


class OpenStore:
    """Base of `loaderx.zrecord.Zrecord`: the life of its handle."""

    def __init__(self, path, codec="zstd", mode=None, level=None):
        codec_tag(codec)
        self._configure(path, codec, mode, level)
        try:
            self._open(_MODES[mode or "r"])
        except StoreNotFoundError:
            if mode is not None:
                raise

    def _configure(self, path, codec, mode, level):
        _engine.path_arg(path)  # refuses what is no path
        if mode is not None and mode not in _MODES:
            raise ArgumentError(f"unknown mode {mode!r}, expected None or one of {sorted(_MODES)}")
        self._path = os.fsdecode(path)
        # A relative path would name another place after chdir, in a child or at a reopening.
        self._where = os.path.abspath(self._path)
        self._codec = codec
        self._mode = mode
        try:
            self._level = 0 if level is None else operator.index(level)
        except TypeError:
            raise DtypeError(f"level must be an int, got {type(level).__name__}") from None
        if not -(1 << 31) <= self._level < 1 << 31:
            raise ArgumentError(f"level {level} is none of zstd's")
        self._lock = _engine.Lock()
        self._writes = mode not in (None, "r")
        self._closed = False
        self._handle = None

    def _open(self, mode):
        raw, address, size = _engine.path_arg(self._where)
        level = self._level

        def open_(number, _raw=raw):  # which owns the memory at `address`
            return _engine.lib.ZrOpen(number, address, size, mode, level)

        self._handle = _engine.Handle(open_, reopen=mode == _READ, what=f"the store {self._where}")
        if mode != _READ:
            _engine.close_in_child(self._handle, _engine.check(_engine.lib.ZrLockFd(self._handle.id())))
        if self._closed:  # by another thread, meanwhile
            self._handle.close()

    def _id(self):
        """Return the engine's number of the store."""
        handle = self._handle
        if handle is None:
            with self._lock():
                self._check_open()
                if self._handle is None:
                    self._open(_READ)  # another process may have created it; else this says what is missing
                handle = self._handle
        return handle.id()

    def _check_open(self):
        if self._closed:
            raise ClosedError(f"the store {self._where} was closed")

    def _writer(self):
        """Return the same for a call that writes; a store with ``mode=None`` turns into a writer."""
        if not self._writes:
            with self._lock():
                self._check_open()
                if self._mode is not None:
                    raise ReadOnlyError(
                        f"{self._where} was opened with mode={self._mode!r}; open it with 'r+' to change it"
                    )
                if not self._writes:
                    reader = self._handle
                    self._open(_APPEND_OR_CREATE)
                    self._writes = True
                    if reader is not None:
                        reader.close()
        return self._handle.id()

    def _owner(self):
        """Return the same for a call that changes what is there; it makes no store."""
        self._id()
        return self._writer()

    def _call(self, name, *args):
        """Make a reading call; make it again if the store turned into a writer meanwhile."""
        while True:
            handle = self._handle
            try:
                status = getattr(_engine.lib, name)(self._id(), *args)
                return status if status >= 0 else _engine.check(status)
            except ClosedError:
                self._check_open()  # says which store it was
                if handle is self._handle:
                    raise

    def _read(self, job):
        """Do the same with a job, a function of the engine's number of the store."""
        while True:
            handle = self._handle
            try:
                return job(self._id())
            except ClosedError:
                self._check_open()
                if handle is self._handle:
                    raise

    @property
    def path(self):
        """The store's directory, as it was given."""
        return self._path

    @property
    def codec(self):
        """Name of the compression that `append` uses by default."""
        return self._codec

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._closed

    def sync(self):
        """Make the appended records durable and visible to other readers."""
        self._check_open()
        if self._writes:
            _engine.run(_engine.lib.ZrSync, self._handle.id())

    def close(self):
        """Make appended records durable and close the store. Idempotent.

        Calls that other threads have begun are waited for; later ones raise
        `ClosedError`.
        """
        self._closed = True
        if self._handle is not None:
            self._handle.close()

    def _discard(self):
        """Close, and forget what was appended since the last `sync`."""
        if self._writes and not self._closed:
            _engine.run(_engine.lib.ZrDiscard, self._handle.id())
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def __repr__(self):
        options = f", codec={self._codec!r}" + (f", mode={self._mode!r}" if self._mode else "")
        state = " (closed)" if self.closed else ""
        return f"{type(self).__name__}({self._path!r}{options}){state}"

    def __getstate__(self):
        if self.closed:
            raise ClosedError(f"{self!r} can't be pickled or copied")
        if self._writes:
            raise DtypeError(
                f"{self!r} is open for writing and can't be pickled or copied: one process at a time writes a "
                "store. Pass its path, or a Zrecord with mode='r'"
            )
        return {"path": self._where, "codec": self._codec, "mode": self._mode, "level": self._level}

    def __setstate__(self, state):
        # Opened at its first use: a worker process installs its signal handlers before that,
        # and the engine's, which turn faults on mapped files into errors, must come after.
        self._configure(**state)
