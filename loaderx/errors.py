"""Exceptions of loaderx and ngram_store.

Each class has `ZrecordError` (a `RuntimeError` with a ``code``) and the built-in that
users of NumPy or torch would catch among its bases. The numbers of the codes live in the
engine; -1 to -9 are those of loaderx 0.9.4.
"""

__all__ = [
    "ArgumentError",
    "BufferSizeError",
    "CancelledError",
    "ClosedError",
    "CorruptRecordError",
    "DictionaryError",
    "DtypeError",
    "EngineError",
    "FileFaultError",
    "ForkError",
    "LockedError",
    "OutOfMemoryError",
    "PaddingIndexError",
    "PrecisionWarning",
    "ReadOnlyError",
    "RecordIndexError",
    "RecordSizeError",
    "StoreExistsError",
    "StoreFormatError",
    "StoreFullError",
    "StoreIOError",
    "StoreInUseError",
    "StoreNotFoundError",
    "StorePermissionError",
    "UnsupportedError",
    "ZrecordError",
]


class ZrecordError(RuntimeError):
    """Base of all errors of the engine and its Python layer.

    Attributes
    ----------
    code : int
        The engine's stable number of this kind of error.
    """

    #: Name of the kind in the engine; `_engine` pairs it with the number.
    kind = "internal"
    code = 0

    def __reduce__(self):
        state = {"code": self.code}
        if isinstance(self, OSError):
            state["errno"] = self.errno
        return type(self), self.args, {**self.__dict__, **state}


class OutOfMemoryError(ZrecordError, MemoryError):
    """Memory could not be had."""

    kind = "memory"


class StoreIOError(ZrecordError, OSError):
    """A file operation failed; ``errno`` tells why."""

    kind = "io"


class StorePermissionError(StoreIOError, PermissionError):
    """The operating system denied access to a file."""


class RecordIndexError(ZrecordError, IndexError):
    """An index is outside the store or table."""

    kind = "index"


class RecordSizeError(ZrecordError, ValueError):
    """A record is larger or smaller than the format can hold."""

    kind = "record_size"


class StoreFullError(ZrecordError):
    """The format, or the table of open objects, holds no more."""

    kind = "full"


class BufferSizeError(ZrecordError, ValueError):
    """A buffer is too small for what goes into it."""

    kind = "buffer"


class CorruptRecordError(ZrecordError):
    """Stored bytes do not decode to what was written, or a file is missing or too short."""

    kind = "corrupt"


class StoreFormatError(ZrecordError, ValueError):
    """A file is of another format or of a newer version."""

    kind = "format"


class DictionaryError(ZrecordError, ValueError):
    """A dictionary could not be trained, or the store has none."""

    kind = "dictionary"


class ClosedError(ZrecordError, ValueError):
    """The object was closed."""

    kind = "closed"


class ArgumentError(ZrecordError, ValueError):
    """An argument has a value that is not allowed."""

    kind = "argument"


class PaddingIndexError(ArgumentError, AssertionError):
    """A padding index is outside the table; torch has an `AssertionError` for that."""


class UnsupportedError(ArgumentError, NotImplementedError):
    """A module on a table can't do what the one with a weight could; the message says why."""


class DtypeError(ZrecordError, TypeError):
    """An argument has a type or dtype that is not allowed."""

    kind = "type"


class ReadOnlyError(ZrecordError, PermissionError):
    """A write went through an object that was opened for reading."""

    kind = "read_only"


class LockedError(ZrecordError, BlockingIOError):
    """Another handle or process has the store open for writing."""

    kind = "locked"


class StoreNotFoundError(ZrecordError, FileNotFoundError):
    """Nothing is at the path."""

    kind = "not_found"


class FileFaultError(ZrecordError):
    """A mapped file was truncated, or its disk failed, while it was read."""

    kind = "fault"


class StoreExistsError(ZrecordError, FileExistsError):
    """Something is at the path already."""

    kind = "exists"


class StoreInUseError(ZrecordError):
    """Other handles have the store open, and the operation needs it alone."""

    kind = "in_use"


class CancelledError(ZrecordError):
    """The work was cancelled before its end; nothing of it remains."""

    kind = "cancelled"


class ForkError(ZrecordError):
    """An object of the parent process cannot be used in a forked child."""

    kind = "stale"


class EngineError(ZrecordError):
    """The engine has a bug; its text is worth a report."""


class PrecisionWarning(UserWarning):
    """JAX will turn a stream's numbers of 64 bits into some of 32, as ``jax_enable_x64`` is not set."""
