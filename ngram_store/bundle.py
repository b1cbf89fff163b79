"""Bundles: a table and what a module must know of it, in one directory.

Format
------
A bundle is a directory with two files, and is complete whenever it exists: it is written beside
its place, as ``.NAME.bundle-XXXXXXXX.tmp``, and renamed.

``bundle.json``, UTF-8, one object; a reader ignores members that it does not know:

=======================  =======================================================================
``format``               ``"ngram_store-bundle"``
``version``              1; a reader refuses a higher one
``kind``                 ``"embedding"``, ``"multihead"``, ``"embedding_bag"``; ``"quantized"``
``producer``             name and version of the program that wrote it
``num_embeddings``       rows of the table
``embedding_dim``        elements of a row
``dtype``                of an element: ``"float32"``, ``"float64"``, ``"float16"``, ``"bfloat16"``
``row_bytes``            width of a row
``padding_idx``          the row that bags skip, in 0..num_embeddings - 1, or null
``table``                an object about the other file:
``table.file``           its name in this directory
``table.backend``        ``"native"``, a MEFTNAT1 file; or ``"python"``, rows back to back
``table.bytes``          its size
``table.sha256``         its hash, 64 hexadecimal digits
=======================  =======================================================================

Kind ``multihead`` adds ``head_sizes`` (rows of each head, in their order) and ``offsets`` (the first
row of each). Kind ``embedding_bag`` adds ``mode`` (``"sum"``, ``"mean"`` or ``"max"``) and
``include_last_offset``. In kind ``quantized`` the ``dtype`` is ``"fp32"``, ``"fp16"``, ``"bf16"``,
``"int8"``, ``"uint8_rowwise"`` or ``"int4_rowwise"``, rows are as ``gopkg/quant/FORMAT.md`` lays them
out, and ``quantized`` is an object with what `QuantizedReport` tells of the source.

Rows are little-endian. Both files are their owner's alone when new; a bundle that replaces another
keeps the permissions of the directory and of both files.

A bundle is replaced by another directory that is put in its place, so a reader of both files looks
again afterwards whether directory and ``bundle.json`` are those that it began with. What has
anything else in its directory is not replaced.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import stat
import time
from dataclasses import dataclass

from loaderx import __version__, _engine
from loaderx.errors import CorruptRecordError, StoreExistsError, StoreFormatError, StoreNotFoundError, ZrecordError

from ._arguments import flag
from ._description import DTYPES, FORMAT, META_FILE, TABLE_FILES, VERSION, check_description, check_format, is_name
from ._identity import open_regular
from ._parents import make_parents, sync
from ._rename import exchange

__all__ = ["DTYPES", "META_FILE", "TABLE_FILES", "Bundle", "read_bundle", "remove_bundle", "unreplaced", "write_bundle"]

#: What opens each kind of bundle.
_OPENERS = {
    "embedding": "MappedEmbedding",
    "embedding_bag": "open_embedding_bag",
    "multihead": "MappedMultiHeadEmbedding",
    "quantized": "QuantizedRows",
}

_META_BYTES = 64 << 20
_STALE_S = 60
_TRIES = 16
#: How many names a message spells out.
_SHOWN = 5


@dataclass(frozen=True)
class Bundle:
    """What is in the directory of a bundle.

    Attributes
    ----------
    path : str
        Absolute.
    meta : dict
        The content of ``bundle.json``.
    """

    path: str
    meta: dict

    @property
    def kind(self):
        """What it was exported from."""
        return self.meta["kind"]

    @property
    def described(self):
        """What it is and what opens it, for messages."""
        opener = _OPENERS.get(self.kind)
        return f"{self.path} is a bundle of kind {self.kind!r}" + (f", which {opener} opens" if opener else "")

    @property
    def backend(self):
        """What reads the table, ``"native"`` or ``"python"``."""
        return self.meta["table"]["backend"]

    @property
    def table_path(self):
        """Path of the table."""
        return os.path.join(self.path, self.meta["table"]["file"])

    @property
    def sha256(self):
        """Hash of the table."""
        return self.meta["table"]["sha256"]


def read_bundle(path):
    """Return the bundle at a path, without looking into its table.

    Raises
    ------
    StoreNotFoundError
        There is none.
    StoreFormatError
        What is there is no bundle, or of a newer version.
    CorruptRecordError
        Its description is damaged.
    """
    _engine.path_arg(path)  # refuses what is no path
    folder = os.path.abspath(os.fsdecode(path))
    meta = _load(folder)
    check_description(os.path.join(folder, META_FILE), meta)
    return Bundle(folder, meta)


def _load(folder):
    """Return the content of ``bundle.json``, an object that says that it is one; its other members may be anything."""
    file = os.path.join(folder, META_FILE)
    try:
        with open(open_regular(file), "rb") as stream:
            raw = stream.read(_META_BYTES + 1)
    except FileNotFoundError:
        what = f"the directory {folder} has no {META_FILE}" if os.path.isdir(folder) else f"{folder} does not exist"
        raise StoreNotFoundError(f"there is no bundle: {what}") from None
    except NotADirectoryError:
        raise StoreFormatError(
            f"{folder} is a file, and a bundle is a directory that an exporter or pack_quantized made"
        ) from None
    except OSError as error:
        raise _engine.system_error(error, f"read the bundle {folder}") from None
    try:
        meta = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptRecordError(f"{file} is damaged: {error}") from None
    check_format(file, meta)
    return meta


def unreplaced(path, work, discard=lambda found: found.close()):
    """Do something with what is at a path, of which nobody replaces anything meanwhile; else do it anew.

    Description and table of a bundle are two files, and so are found one after another.

    Parameters
    ----------
    path : path_like
        A bundle, or a file.
    work : callable
        Called with the `Bundle`, None for a file; it may open the table by its path.
    discard : callable
        Called with what `work` returned, if that does not count.

    Returns
    -------
    object
        What `work` returned.

    Raises
    ------
    StoreFormatError
        It was replaced again and again, or the table is no regular file.
    ZrecordError
        As `read_bundle` and `work` raise it, of what is there unchanged.
    """
    _engine.path_arg(path)
    where = os.path.abspath(os.fsdecode(path))
    for _ in range(_TRIES):
        with _held(where) as held:
            before = _state(where, held)
            try:
                bundle = None
                if not os.path.isfile(where):
                    bundle = read_bundle(where)
                    _check_regular(bundle.table_path)
                found = work(bundle)
            except ZrecordError:
                if _state(where) == before:
                    raise
                continue
            if _state(where) == before:
                return found
            discard(found)
    raise StoreFormatError(f"{where} was replaced while it was opened; try again")


@contextlib.contextmanager
def _held(where):
    """Keep the inode of what is at a path from being used again, so that it tells one thing from another."""
    fd = None
    with contextlib.suppress(OSError):
        fd = os.open(where, getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _state(where, held=None):
    """Return what changes when a file or bundle is replaced."""
    found = []
    for name in (where if held is None else held, os.path.join(where, META_FILE)):
        try:
            status = os.stat(name)
        except OSError:
            found.append(None)
            continue
        place = status.st_dev, status.st_ino
        # What is added to a directory does not make it another one.
        found.append(place if stat.S_ISDIR(status.st_mode) else (*place, status.st_size, status.st_mtime_ns))
    return found


def _check_regular(file):
    with contextlib.suppress(OSError):  # the reader says that it is missing
        if not stat.S_ISREG(os.stat(file).st_mode):
            raise StoreFormatError(f"{file} is no regular file, and a table is one")


def write_bundle(path, kind, fields, fill, overwrite=False):
    """Write a bundle, which appears at its path as a whole or not at all.

    Parameters
    ----------
    path : path_like
        Missing directories above it are made.
    kind : str
    fields : dict
        Members of ``bundle.json``; see the module's text.
    fill : callable
        Called with a directory, writes the table there, durably, and returns
        the member ``table`` and whatever the caller wants to have back.
    overwrite : bool
        Whether a bundle that is there may be replaced. Who has its table open
        keeps the old bytes; directory and files keep their permissions.

    Returns
    -------
    Bundle
    object
        The second thing that `fill` returned.

    Raises
    ------
    StoreExistsError
        Something is there, and `overwrite` is false, or it is no bundle, or
        something else is in its directory, too.
    """
    overwrite = flag("overwrite", overwrite)
    _engine.path_arg(path)
    target = os.path.realpath(os.fsdecode(path))
    parent, name = os.path.split(target)
    process = os.getpid()
    made, temporary, lock, own = [], os.path.join(parent, f".{name[:50]}.bundle-{secrets.token_hex(4)}.tmp"), -1, None
    try:
        _check_place(target, overwrite)
        make_parents(parent, made)
        _remove_stale(parent, name)
        os.mkdir(temporary, 0o700)
        own = _place_of(temporary)
        lock = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # some network file systems have no locks; then nobody removes litter
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        table, result = fill(temporary)
        producer = f"loaderx-go {__version__}"
        meta = {"format": FORMAT, "version": VERSION, "kind": kind, "producer": producer, **fields, "table": table}
        file = os.path.join(temporary, META_FILE)
        with open(file, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            json.dump(meta, stream, indent=2)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        check_description(file, json.loads(json.dumps(meta)))
        os.fsync(lock)
        _publish(temporary, target, overwrite)
        for named in (target, *made):
            sync(os.path.dirname(named))
    except BaseException as error:
        if os.getpid() != process:  # a child of what made the rows, and the files are not its own
            raise
        if lock >= 0:
            number, lock = lock, -1
            os.close(number)  # the removing may need the descriptor
        _take_back(temporary, target, own)
        if own in (None, _place_of(temporary)):  # and not what was there before
            _remove(temporary)
        for directory in made:
            with contextlib.suppress(OSError):  # someone else uses it by now
                os.rmdir(directory)
        with contextlib.suppress(OSError):
            sync(parent)
        if isinstance(error, ZrecordError):  # it names the table by the place that the caller knows
            error.args = tuple(arg.replace(temporary, target) if isinstance(arg, str) else arg for arg in error.args)
        elif isinstance(error, OSError):
            raise _engine.system_error(error, f"write the bundle {target}") from None
        raise
    finally:
        if lock >= 0:
            os.close(lock)
    remove_bundle(temporary)  # what was there before, if anything was
    return Bundle(target, meta), result


def _place_of(folder):
    """Return device and inode of a directory, None if it is not there."""
    try:
        status = os.stat(folder, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _take_back(temporary, target, own):
    """Undo the publishing of a bundle, however far that came."""
    if own is None or _place_of(target) != own:
        return
    with contextlib.suppress(OSError):
        if os.path.lexists(temporary):
            exchange(temporary, target)
        else:
            os.rename(target, temporary)


def _table_files(folder):
    """Return the names that a bundle's table may have: the usual ones, and what its description says."""
    names = set(TABLE_FILES.values())
    with contextlib.suppress(ZrecordError):
        table = _load(folder).get("table")
        if isinstance(table, dict) and is_name(table.get("file")):
            names.add(table["file"])
    return names


def _is_ours(name, tables):
    """Whether a file in a bundle is of the bundle: description, table, or what a killed writer left of it."""
    drafts = tuple(f".{table}." for table in tables)
    return name == META_FILE or name in tables or (name.startswith(drafts) and name.endswith(".tmp"))


def remove_bundle(folder):
    """Remove the files of a bundle, and its directory unless something else is in there."""
    _remove(folder, _table_files(folder))


def _remove(folder, tables=None):
    """Remove a bundle, or part of one, with no descriptor free, too.

    What else is in the directory stays, and so does the directory then; `tables` are None if all
    that is there was written for the bundle.
    """
    try:
        names = [name for name in os.listdir(folder) if tables is None or _is_ours(name, tables)]
    except FileNotFoundError:
        return
    except OSError:
        names = [META_FILE, *(tables or TABLE_FILES.values())]
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _check_place(target, overwrite):
    if not os.path.lexists(target) or (os.path.isdir(target) and not os.listdir(target)):
        return
    if not os.path.isfile(os.path.join(target, META_FILE)):
        raise StoreExistsError(f"{target} exists, and is no bundle that could be replaced")
    if not overwrite:
        raise StoreExistsError(f"there is a bundle at {target} already; overwrite=True replaces it")
    try:
        _load(target)
    except (StoreFormatError, CorruptRecordError) as error:
        raise StoreExistsError(f"{target} exists, and is no bundle that could be replaced: {error}") from None
    tables, foreign = _table_files(target), []
    with os.scandir(target) as entries:
        for entry in entries:
            plain = entry.is_symlink() or entry.is_file()
            if not plain or not _is_ours(entry.name, tables):
                foreign.append(entry.name)
    if foreign:
        shown = ", ".join(map(repr, sorted(foreign)[:_SHOWN])) + (" and more" if len(foreign) > _SHOWN else "")
        raise StoreExistsError(
            f"the bundle at {target} is not replaced, as other things are in its directory, and would be lost: {shown}"
        )


def _remove_stale(parent, name):
    """Remove what killed exports to the same place left behind."""
    with os.scandir(parent) as entries:
        stale = [e.path for e in entries if e.name.startswith(f".{name[:50]}.bundle-") and e.name.endswith(".tmp")]
    for folder in stale:
        with contextlib.suppress(OSError):
            if time.time() - os.stat(folder).st_mtime < _STALE_S:
                continue  # it may have been made, but not locked yet
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_bundle(folder)
            finally:
                os.close(fd)


def _publish(temporary, target, overwrite):
    try:
        os.rename(temporary, target)
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    _check_place(target, overwrite)  # it may have come meanwhile
    _keep_modes(target, temporary)
    exchange(temporary, target)


def _keep_modes(old, new):
    """Give a bundle the permissions of the one that it replaces, whose table may be for another backend."""
    tables = set(TABLE_FILES.values())
    for names in ({META_FILE}, tables):
        modes = [_mode(os.path.join(old, name)) for name in names if os.path.isfile(os.path.join(old, name))]
        for name in names & set(os.listdir(new)) if modes else ():
            os.chmod(os.path.join(new, name), modes[0])
    os.chmod(new, _mode(old))


def _mode(path):
    return os.stat(path).st_mode & 0o7777
