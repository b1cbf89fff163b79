"""Writing a store so that it appears as a whole or not at all."""

import contextlib
import errno
import os
import secrets
import shutil
import warnings

import numpy as np

from . import _engine
from ._format import format_info
from ._schema import merge_schema, read_schema, write_schema
from .errors import ArgumentError, DictionaryError, StoreExistsError, StoreFullError, StoreNotFoundError, ZrecordError
from .zrecord import Zrecord

__all__ = ["Publication"]

_CODEC = "zstd"
_SYNC_BYTES = 256 << 20
_DICT_MIN, _DICT_MAX, _DICT_SAMPLES = 8 << 10, 1 << 20, 8192


class Publication:
    """A context in which records are appended and at whose end they are published.

    A new store is written beside its place, as ``.NAME.loaderx-XXXX.tmp``, and
    renamed at the end, so that it is never seen unfinished. In a directory that
    can't be replaced (it holds other files, or is a mount point) it is written
    in place and has no records until the end. An existing store keeps its
    records, and the new ones are published together at the end.

    When the context is left by an exception, nothing is published.

    Parameters
    ----------
    path : path_like
    schema : dict
    codec : str or None
        None for the one that an existing store's schema names, and zstd for a new store.
    level : int or None
    dict_size : int or None
        Largest size of a dictionary, for the codec ``"zstd_dict"``.
    exist_ok : bool
        Whether an existing store may be appended to.
    count : int
        How many records will come at least.
    """

    def __init__(self, path, schema, codec, level, dict_size, exist_ok, count=0):
        _engine.path_arg(path)  # refuses what is no path
        self._target = os.path.realpath(os.fsdecode(path))
        self._exist_ok = exist_ok
        self._count = count
        self._schema = schema
        self._codec = codec
        self._level = level
        self._dict_size = dict_size
        self._temporary = None
        self._made = []
        self._store = None
        self._unsynced = 0
        self._process = os.getpid()

    def __enter__(self):
        try:
            self._begin()
        except BaseException as error:
            self._named(error)
            self._roll_back()
            if isinstance(error, OSError):
                raise _engine.system_error(error, f"write the store {self._target}") from None
            raise
        return self

    def __exit__(self, kind, error, _trace):
        if kind is not None:
            self._named(error)
            self._roll_back()
            return
        try:
            self._publish()
        except BaseException as error:
            self._named(error)
            self._roll_back()
            if isinstance(error, OSError):
                raise _engine.system_error(error, f"write the store {self._target}") from None
            raise

    def append(self, block, offsets):
        """Append the records of a block, which start at `offsets`."""
        if self._codec == "zstd_dict" and not self._store.has_dict():
            self._train(block, offsets)
        self._store.append(block, offsets, self._codec)
        self._unsynced += block.nbytes
        if self._temporary is not None and self._unsynced >= _SYNC_BYTES:
            # Nobody sees this store yet; syncing in parts keeps the last one short.
            self._store.sync()
            self._unsynced = 0

    def _begin(self):
        if os.path.lexists(self._target) and not os.path.isdir(self._target):
            raise StoreExistsError(f"{self._target} is a file, not the directory of a store")
        if self._find_store():
            return
        self._check_room(0)
        if not os.path.isdir(self._target) or _replaceable(self._target):
            self._make_temporary()
        place = self._temporary or self._target
        self._store = Zrecord(place, mode="x", level=self._level)
        self._settle_codec(None)
        write_schema(place, self._schema)

    def _find_store(self):
        """Open the store at the target for appending, if there is one that takes the records.

        What the store holds is read after its lock was taken, so that nobody
        changes it before the new records are published.
        """
        try:
            if not self._exist_ok:
                # Without the lock: the answer is no, whoever writes it.
                with Zrecord(self._target, mode="r") as store:
                    raise StoreExistsError(
                        f"{self._target} holds a store of {len(store)} records, and exist_ok is False"
                    )
            self._store = Zrecord(self._target, mode="r+", level=self._level)
        except (StoreNotFoundError, NotADirectoryError):
            return False
        records = len(self._store)
        self._check_room(records)
        try:
            old = read_schema(self._target)
        except StoreNotFoundError:
            if records:
                raise ArgumentError(
                    f"{self._target} holds {records} records without a schema; "
                    "append to it with Zrecord, or write a new store"
                ) from None
            old = None
        self._settle_codec(old)
        if records:
            self._schema = merge_schema(self._target, old, self._schema)
        else:
            write_schema(self._target, self._schema)
        return True

    def _settle_codec(self, old):
        """Settle what records are written with, and what the store names for the next ones."""
        if self._codec is None:
            self._codec = old["codec"] if old is not None else _CODEC
        self._schema["codec"] = self._codec

    def _named(self, error):
        """Return an error of the engine's; it names the store by the place that the caller knows."""
        if self._temporary is not None and isinstance(error, ZrecordError):
            error.args = tuple(
                arg.replace(self._temporary, self._target) if isinstance(arg, str) else arg for arg in error.args
            )
        return error

    def _check_room(self, records):
        """Refuse more records than fit before the first is written, where their number is known."""
        limit = format_info()["max_records"]
        if records + self._count > limit:
            raise StoreFullError(
                f"{self._target} has {records} records, {self._count} more are given, and the format holds {limit}"
            )

    def _make_temporary(self):
        parent, name = os.path.split(self._target)
        missing = parent
        while not os.path.isdir(missing):
            self._made.append(missing)
            missing = os.path.dirname(missing)
        os.makedirs(parent, exist_ok=True)
        # A name may have 255 bytes.
        temporary = os.path.join(parent, f".{name[:50]}.loaderx-{secrets.token_hex(4)}.tmp")
        self._temporary = temporary
        os.mkdir(temporary)
        if os.path.isdir(self._target):
            shutil.copymode(self._target, temporary)

    def _train(self, block, offsets):
        """Train the dictionary on records that are evenly spaced over a block."""
        count = len(offsets)
        picks = np.unique(np.linspace(0, count - 1, min(count, _DICT_SAMPLES)).astype(np.int64))
        starts = np.asarray(offsets, dtype=np.int64)
        sizes = np.diff(starts, append=block.nbytes)[picks]
        flat = block.reshape(-1).view(np.uint8)
        samples = np.concatenate([flat[at : at + n] for at, n in zip(starts[picks], sizes, strict=True)])
        target = self._dict_size or min(_DICT_MAX, max(_DICT_MIN, samples.nbytes // 100))
        try:
            self._store.train_dict(samples, sizes, target)
        except DictionaryError as error:
            self._codec = self._schema["codec"] = "zstd"
            warnings.warn(f"{self._named(error)}; compressing without a dictionary", RuntimeWarning, stacklevel=4)

    def _publish(self):
        place = self._temporary or self._target
        # The records last: once they are published, nothing may fail any more.
        if read_schema(place) != self._schema:
            write_schema(place, self._schema)
        self._store.sync()
        self._store.close()
        if self._temporary is not None:
            try:
                os.rename(self._temporary, self._target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise StoreExistsError(f"{self._target} was created by someone else meanwhile") from None
                raise
            self._temporary = None
            self._sync_parents()

    def _sync_parents(self):
        """Make the store's name durable, and the names of the directories that were made for it."""
        for named in (self._target, *self._made):
            raw, address, size = _engine.path_arg(os.path.dirname(named))
            _engine.run(_engine.lib.DirSync, address, size, keep=(raw,))

    def _roll_back(self):
        if os.getpid() != self._process:
            return  # a child that a source has forked; the files are the parent's
        try:
            if self._store is not None:
                self._store._discard()
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
            for directory in self._made:
                with contextlib.suppress(OSError):  # someone else uses it by now
                    os.rmdir(directory)


def _replaceable(path):
    """Whether a rename may put a store in the place of an empty directory."""
    if os.path.islink(path) or not os.path.isdir(path) or os.listdir(path):
        return False
    parent = os.path.dirname(path)
    return (
        os.stat(path).st_uid == os.geteuid()
        and os.access(parent, os.W_OK | os.X_OK)
        and not os.path.ismount(path)
        and not os.path.samefile(path, os.curdir)
    )
