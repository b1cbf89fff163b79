"""The one door between Python and the Go engine.

Everything that must be right at the boundary is here and nowhere else: loading the
extension (and a private copy of it in a forked child), addresses of buffers, statuses to
exceptions, objects that reopen themselves after a fork, waiting that Ctrl-C ends.
"""

import atexit
import contextlib
import ctypes
import errno
import json
import os
import re
import sys
import threading
import time
import weakref

import numpy as np

from . import errors
from ._buffers import array_over, check_tensor
from ._extension import load_copy, load_first

__all__ = [
    "Handle",
    "Lock",
    "address",
    "check",
    "close_in_child",
    "lib",
    "path_arg",
    "pin",
    "plain",
    "run",
    "system_error",
    "tensor_address",
    "text",
]

#: How long one call into the engine may keep Ctrl-C waiting, in milliseconds.
WAIT_MS = 100


class _Library:
    """The loaded extension's functions, without the prefix that gopy gives them."""

    def __init__(self, module):
        for name in dir(module):
            if name.startswith("pybind_"):
                setattr(self, name[len("pybind_") :], getattr(module, name))


class _NotLoaded:
    """Stands in for the extension until its first use in this process."""

    def __getattr__(self, name):
        return getattr(_load(), name)


class _Exited:
    """Stands in for the extension once the interpreter is shutting down."""

    def __getattr__(self, name):
        raise errors.ClosedError("the interpreter is shutting down: the engine takes no more calls")


lib = _NotLoaded()
_generation = 0  # how many forks lie between the first process and this one
_load_lock = threading.Lock()
_reopen_lock = threading.Lock()
_classes = {}  # code -> class
_live = {}  # the engine's number -> weak reference to its Handle
_writers = weakref.WeakSet()  # handles that write, to be closed at exit
_locks = weakref.WeakKeyDictionary()  # handle -> descriptor that holds its lock, and which file that is


def _load():
    """Load the extension if this process has not, and return its functions."""
    global lib
    with _load_lock:
        if isinstance(lib, _NotLoaded):
            module = load_copy(_generation) if _generation else load_first()
            loaded = _Library(module)
            if not _classes:
                _classes.update(_pair(loaded))
            status = loaded.EngineInit(_generation)
            if status < 0:
                raise _exception(-status, loaded)
            lib = loaded
        return lib


def _pair(library):
    """Map the engine's codes to the classes that carry the same names."""
    by_kind = {c.kind: c for c in vars(errors).values() if "kind" in getattr(c, "__dict__", ())}
    by_kind["internal"] = errors.EngineError
    pairs = {row["code"]: by_kind[row["name"]] for row in json.loads(text(library.ErrorList))}
    for code, cls in pairs.items():
        cls.code = code
    return pairs


def _after_fork_in_child():
    """Forget the parent's engine: its threads do not exist here, so a call would hang."""
    global lib, _generation, _load_lock, _reopen_lock
    _live.clear()
    _load_lock = threading.Lock()  # another thread of the parent may have held the old ones
    _reopen_lock = threading.Lock()
    if not isinstance(lib, _Exited):
        _generation += 1
        lib = _NotLoaded()
    # A lock lasts as long as any process holds its open file, and the parent may be killed.
    for fd, file in list(_locks.values()):
        with contextlib.suppress(OSError):
            if _identity(fd) == file:
                os.close(fd)
    _locks.clear()


def close_in_child(handle, fd):
    """Have a forked child close a descriptor of the engine's, which holds a lock."""
    _locks[handle] = fd, _identity(fd)


def _identity(fd):
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _at_exit():
    """Close writers, and let other threads' calls end before the interpreter goes away."""
    global lib
    for writer in list(_writers):
        try:
            writer.close()
        except Exception as exc:
            sys.unraisablehook(_Unraisable(exc, f"records appended to {writer} may be lost"))
    loaded, lib = lib, _Exited()
    if isinstance(loaded, _Library):
        deadline = time.monotonic() + 10
        while not loaded.EngineShutdown(WAIT_MS) and time.monotonic() < deadline:
            pass
        if threading.active_count() > 1:
            time.sleep(0.02)  # a thread whose call has ended still has to take the GIL once


class _Unraisable:
    """What `sys.unraisablehook` takes."""

    object = None

    def __init__(self, exc, message):
        self.exc_type, self.exc_value, self.exc_traceback = type(exc), exc, exc.__traceback__
        self.err_msg = message


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)


# ---- errors -------------------------------------------------------------------------------


def check(status):
    """Return a status that is a result; raise the exception of one that is an error."""
    if status < 0:
        raise _exception(-status)
    return status


def _exception(ticket, library=None):
    """Fetch the error of a ticket and make the exception that stands for it."""
    raw = text((library or lib).TakeError, ticket)
    if not raw:
        return errors.EngineError(f"the engine failed and its message (number {ticket}) was lost")
    info = json.loads(raw)
    message = _TWICE.sub(r"\1\2: ", info["text"])
    exc = _made(_classes.get(info["code"], errors.EngineError), info["errno"], message)
    exc.code = info["code"]
    return exc


#: How a message begins in which both the caller and the call of the system name the path.
_TWICE = re.compile(r"^(open \w+ )(.+): open \2: ", re.DOTALL)


def _made(cls, number, message):
    if cls is errors.StoreIOError and number in (errno.EACCES, errno.EPERM, errno.EROFS):
        cls = errors.StorePermissionError
    exc = cls(message)
    if isinstance(exc, OSError):
        exc.errno = number or _ERRNO.get(cls.kind)
    return exc


def system_error(error, doing):
    """Return the exception of this package for an `OSError` of Python's own.

    Parameters
    ----------
    error : OSError
    doing : str
        What failed, with the path as the caller gave it.
    """
    if isinstance(error, errors.ZrecordError):
        return error
    cls = errors.StoreNotFoundError if error.errno == errno.ENOENT else errors.StoreIOError
    return _made(cls, error.errno, f"{doing}: {error.strerror or error}")


_ERRNO = {
    "not_found": errno.ENOENT,
    "exists": errno.EEXIST,
    "locked": errno.EWOULDBLOCK,
    "read_only": errno.EACCES,
}


def text(fn, *args):
    """Return the text that an engine function writes into a buffer of the caller's.

    Parameters
    ----------
    fn : callable
        An engine function whose last two parameters are a buffer and its size, and whose
        result is the number of bytes needed.
    """
    size = 1024
    while True:
        buf = bytearray(size)
        need = check(fn(*args, ctypes.addressof(ctypes.c_char.from_buffer(buf)), size))
        if need <= size:
            return buf[:need].decode("utf-8", "replace")
        size = need


# ---- memory -------------------------------------------------------------------------------

_from_buffer = ctypes.c_char.from_buffer
_addressof = ctypes.addressof


def address(array):
    """Return the address of an array's first byte; the caller checked its layout."""
    try:
        return _addressof(_from_buffer(array))
    except (TypeError, ValueError, BufferError):
        # Read-only, empty, or of a dtype that the buffer protocol has no letter for.
        return array.ctypes.data


def plain(array):
    """Return the address of an ndarray that is C-contiguous and writable, else None: `pin`, in a microsecond less."""
    try:
        return None if array.dtype.hasobject else _addressof(_from_buffer(array))
    except (TypeError, ValueError, BufferError):
        return None


def tensor_address(tensor):
    """Return the address of a tensor's first element, or of a storage; the caller checked its layout."""
    return tensor.data_ptr()


def pin(obj, writable=False):
    """Return address, size in bytes and owner of any C-contiguous buffer.

    Parameters
    ----------
    obj : ndarray, torch.Tensor on the CPU, bytes, bytearray, memoryview or other buffer
        The memory; it must stay alive (through the returned owner) while the engine uses it.
    writable : bool
        Whether the engine will write into it.

    Raises
    ------
    DtypeError
        `obj` has no memory that can be shared, holds Python objects, or has a mask.
    ArgumentError
        `obj` is not C-contiguous, or is read-only and `writable` is asked for.
    """
    if type(obj) is not np.ndarray:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor):
            check_tensor(obj)
            return tensor_address(obj), obj.nbytes, obj
        obj = array_over(obj)
    if obj.dtype.hasobject:
        raise errors.DtypeError(f"dtype {obj.dtype} holds Python objects, which have no bytes to store")
    flags = obj.flags
    if not flags.c_contiguous:
        raise errors.ArgumentError("buffer is not C-contiguous; pass numpy.ascontiguousarray(x)")
    if writable and not flags.writeable:
        raise errors.ArgumentError("buffer is read-only, and the call writes into it")
    return address(obj), obj.nbytes, obj


def path_arg(path):
    """Return a path's bytes with their address and length, as the engine takes paths.

    Raises
    ------
    DtypeError
        `path` is neither a string nor bytes nor path-like.
    ArgumentError
        `path` is empty or holds a NUL.
    """
    try:
        raw = os.fsencode(path)
    except TypeError:
        raise errors.DtypeError(f"expected a path, got {type(path).__name__}") from None
    except UnicodeEncodeError as error:
        raise errors.ArgumentError(f"not a path: {path!r}: {error.reason}") from None
    if not raw or b"\0" in raw:
        raise errors.ArgumentError(f"not a path: {path!r}")
    buf = ctypes.create_string_buffer(raw, len(raw))
    return buf, ctypes.addressof(buf), len(raw)


# ---- long work ----------------------------------------------------------------------------


def run(start, *args, keep=(), tick=None):
    """Start a job, wait for it and return its result.

    Ctrl-C, or anything else that a signal handler raises at whatever moment, cancels the job
    and waits for its end, so that nothing works on the caller's memory afterwards.

    Parameters
    ----------
    start : callable
        The engine's function that starts the job; its first parameter is the job's number.
    *args
        Its other arguments.
    keep : tuple
        The buffers of the job. They stay alive until its end, come what may; a job without
        buffers is not waited for when it is cancelled.
    tick : callable, optional
        Called without arguments now and then while the job runs.
    """
    library = lib
    job = check(library.HandleReserve())
    wait = 1 if keep else 0
    try:
        check(start(job, *args))
        while not (ended := library.JobWait(job, WAIT_MS)):
            if tick is not None:
                tick()
        return check(ended) - 1
    except BaseException:
        # A signal handler can raise again after any call, but not before the first one here.
        library.JobEnd(job, wait)
        raise


class Lock:
    """A lock that is free in a forked child, whoever held it in the parent.

    Called, it returns what ``with`` takes: a plain lock, since a signal handler may raise within
    an ``__enter__`` that is written in Python, after it took the lock.
    """

    __slots__ = ("_generation", "_lock", "_new")

    def __init__(self, new=threading.Lock):
        self._new = new
        self._lock, self._generation = new(), _generation

    def __call__(self):
        if self._generation != _generation:
            with _reopen_lock:
                if self._generation != _generation:
                    self._lock, self._generation = self._new(), _generation
        return self._lock


def _sweep(library):
    """Close what handles left behind whose `__del__` a signal handler kept from running."""
    for number, handle in list(_live.items()):
        if handle() is None:
            library.HandleClose(number, -1)
            _live.pop(number, None)


class Handle:
    """An open engine object, which opens itself again in a forked child.

    Safe to use from many threads, also while one of them closes it: a call that comes
    too late raises `ClosedError`. A handle that nobody refers to any more is closed.

    Parameters
    ----------
    open_ : callable
        Called with the number that the object shall have; returns the status of the opening
        call.
    reopen : bool
        Whether a forked child may call `open_` again. A writer's may not; a writer is also
        closed at the interpreter's exit, so that nothing it was given is lost.
    what : str
        Names the object in messages.
    """

    __slots__ = ("__weakref__", "_closed", "_ended", "_generation", "_id", "_open", "_reopen", "_what")

    def __init__(self, open_, reopen=True, what="the object"):
        self._closed = self._ended = False
        self._id = 0
        self._open = open_
        self._reopen = reopen
        self._what = what
        self._generation = _generation
        self._begin()
        if not reopen:
            _writers.add(self)

    def _begin(self):
        # The number is known before the object exists: if a signal handler raises after the
        # opening call, `__del__` still finds what there is to close.
        library = lib
        _sweep(library)
        number = check(library.HandleReserve())
        try:
            self._id = number
            _live[number] = weakref.ref(self)
            check(self._open(number))
        except BaseException:
            library.HandleClose(number, -1)
            _live.pop(number, None)
            raise

    def __repr__(self):
        return self._what

    def id(self):
        """Return the engine's number of the object in this process."""
        if self._generation != _generation or self._closed:
            self._refresh()
        return self._id

    def _refresh(self):
        if self._closed:
            raise errors.ClosedError(f"{self._what} was closed")
        if not self._reopen:
            raise errors.ForkError(
                f"{self._what} was opened for writing by the parent process; open it again in this one, "
                "after the parent has closed it"
            )
        with _reopen_lock:
            if self._generation != _generation:
                self._begin()
                self._generation = _generation

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._closed

    def close(self):
        """Close the object, once its users in other threads have left. Idempotent.

        An interrupted call may be made again.
        """
        self._closed = True
        if not self._ended and self._generation == _generation:
            library = lib
            while not check(library.HandleClose(self._id, WAIT_MS)):
                pass
        self._ended = True
        _live.pop(self._id, None)

    def __del__(self, ending=sys.is_finalizing):
        if ending():
            return  # the names of this module may be None; writers have been closed
        try:
            if self._ended or not self._id or self._generation != _generation or isinstance(lib, _Exited):
                return
        except AttributeError:
            return  # the constructor did not get far
        self._ended = True
        if self._reopen:
            lib.HandleClose(self._id, -1)
        else:  # what a writer was given must be on disk, or its failure be heard of
            while not check(lib.HandleClose(self._id, WAIT_MS)):
                pass
        _live.pop(self._id, None)
