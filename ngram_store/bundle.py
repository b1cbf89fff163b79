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
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import time
from dataclasses import dataclass

from loaderx import __version__, _engine
from loaderx.errors import CorruptRecordError, StoreExistsError, StoreFormatError, StoreNotFoundError, ZrecordError

from ._arguments import flag
from ._kinds import KINDS, width_of
from ._parents import make_parents, sync
from ._rename import exchange

__all__ = ["DTYPES", "META_FILE", "TABLE_FILES", "Bundle", "read_bundle", "write_bundle"]

META_FILE = "bundle.json"
TABLE_FILES = {"native": "table.men", "python": "rows.bin"}

#: Bytes of an element of each dtype.
DTYPES = {dtype: size for _number, size, tail, dtype in KINDS.values() if not tail}

#: What opens each kind of bundle.
_OPENERS = {
    "embedding": "MappedEmbedding",
    "embedding_bag": "open_embedding_bag",
    "multihead": "MappedMultiHeadEmbedding",
    "quantized": "QuantizedRows",
}

_FORMAT, _VERSION = "ngram_store-bundle", 1
_META_BYTES = 64 << 20
_STALE_S = 60
_MEMBERS = {"kind": str, "num_embeddings": int, "embedding_dim": int, "dtype": str, "row_bytes": int, "table": dict}
_TABLE_MEMBERS = {"file": str, "backend": str, "bytes": int, "sha256": str}


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
    file = os.path.join(folder, META_FILE)
    try:
        with open(file, "rb") as stream:
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
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        raise StoreFormatError(f'{file} does not say "format": "{_FORMAT}"')
    if type(meta.get("version")) is not int or not 1 <= meta["version"] <= _VERSION:
        raise StoreFormatError(f"{file} is of version {meta.get('version')!r}, this program reads up to {_VERSION}")
    _check_meta(file, meta)
    return Bundle(folder, meta)


def _check_meta(file, meta):
    for members, found, where in ((_MEMBERS, meta, ""), (_TABLE_MEMBERS, meta.get("table"), "table.")):
        for name, kind in members.items():
            if type(found.get(name)) is not kind or (kind is int and not 0 <= found[name] < 1 << 62):
                raise CorruptRecordError(f"{file} is damaged: {where}{name} is {found.get(name)!r}")
    table, rows = meta["table"], meta["num_embeddings"]
    name = table["file"]
    if name != os.path.basename(name) or name in ("", ".", "..") or "\0" in name:
        raise CorruptRecordError(f"{file} is damaged: table.file is {name!r}, which is no name of a file beside it")
    dim, dtype = meta["embedding_dim"], meta["dtype"]
    quantized = meta["kind"] == "quantized"
    width = width_of(dtype, dim) if quantized else dim * DTYPES.get(dtype, 0)
    if meta["row_bytes"] != width or (quantized and (not width or not isinstance(meta.get("quantized"), dict))):
        raise CorruptRecordError(
            f"{file} is damaged: rows of {meta['embedding_dim']} {meta['dtype']} do not have {meta['row_bytes']} bytes"
        )
    padding = meta.get("padding_idx")
    if padding is not None and (type(padding) is not int or not 0 <= padding < rows):
        raise CorruptRecordError(f"{file} is damaged: padding_idx is {padding!r} of {rows} rows")
    if "head_sizes" in meta:
        _check_heads(file, meta["head_sizes"], rows)


def _check_heads(file, sizes, rows):
    whole = isinstance(sizes, list) and sizes and all(type(size) is int and size > 0 for size in sizes)
    if not whole or sum(sizes) != rows:
        raise CorruptRecordError(f"{file} is damaged: head_sizes are {str(sizes)[:200]} of {rows} rows")


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
        Something is there, and `overwrite` is false or it is no bundle.
    """
    overwrite = flag("overwrite", overwrite)
    _engine.path_arg(path)
    target = os.path.realpath(os.fsdecode(path))
    _check_place(target, overwrite)
    parent, name = os.path.split(target)
    process = os.getpid()
    made, temporary, lock = [], os.path.join(parent, f".{name[:50]}.bundle-{secrets.token_hex(4)}.tmp"), -1
    try:
        make_parents(parent, made)
        _remove_stale(parent, name)
        os.mkdir(temporary, 0o700)
        lock = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # some network file systems have no locks; then nobody removes litter
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        table, result = fill(temporary)
        producer = f"loaderx-go {__version__}"
        meta = {"format": _FORMAT, "version": _VERSION, "kind": kind, "producer": producer, **fields, "table": table}
        file = os.path.join(temporary, META_FILE)
        with open(file, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as stream:
            json.dump(meta, stream, indent=2)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        _check_meta(file, json.loads(json.dumps(meta)))
        os.fsync(lock)
        _publish(temporary, target, overwrite)
        for named in (target, *made):
            sync(os.path.dirname(named))
    except BaseException as error:
        if os.getpid() != process:  # a child of what made the rows, and the files are not its own
            raise
        shutil.rmtree(temporary, ignore_errors=True)
        for directory in made:
            with contextlib.suppress(OSError):  # someone else uses it by now
                os.rmdir(directory)
        if isinstance(error, ZrecordError):  # it names the table by the place that the caller knows
            error.args = tuple(arg.replace(temporary, target) if isinstance(arg, str) else arg for arg in error.args)
        elif isinstance(error, OSError):
            raise _engine.system_error(error, f"write the bundle {target}") from None
        raise
    finally:
        if lock >= 0:
            os.close(lock)
    return Bundle(target, meta), result


def _check_place(target, overwrite):
    if not os.path.lexists(target) or (os.path.isdir(target) and not os.listdir(target)):
        return
    if not os.path.isfile(os.path.join(target, META_FILE)):
        raise StoreExistsError(f"{target} exists, and is no bundle that could be replaced")
    if not overwrite:
        raise StoreExistsError(f"there is a bundle at {target} already; overwrite=True replaces it")


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
                shutil.rmtree(folder, ignore_errors=True)
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
    shutil.rmtree(temporary, ignore_errors=True)


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
