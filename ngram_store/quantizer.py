"""Writing tables of numbers in fewer bytes: encoded a piece at a time, hashed and compared on the way."""

import hashlib
import math
import os

import numpy as np

from loaderx import _engine
from loaderx.errors import ArgumentError

from ._arguments import BLOCK_ROWS, CHUNK_ROWS, count, one_of
from ._kinds import KINDS, kind_number, width_of
from ._quant_report import QuantizedReport
from ._quant_source import FloatFile, Matrix
from .bundle import TABLE_FILES, write_bundle
from .reference import write_rows
from .writer import pack_native

__all__ = ["QUANTIZED", "QuantizedReport", "pack_quantized", "pack_quantized_file"]

#: The kinds of rows, none wider than the source's, and bytes of what may be shuffled.
QUANTIZED = {kind: None if tail else size for kind, (_, size, tail, _) in KINDS.items() if size <= 4}


def pack_quantized_file(
    src_f32, out_dir, dim, kind, native="auto", chunk_rows=CHUNK_ROWS, max_block_bytes=None, **options
) -> QuantizedReport:
    """Encode the rows of a file of float32 numbers as a bundle for `QuantizedRows`.

    Parameters
    ----------
    src_f32 : path_like
        Little-endian float32, rows back to back.
    out_dir : path_like
        Of the bundle, a directory, which appears as a whole; see
        `ngram_store.bundle`.
    dim : int
        Columns of a row.
    kind, native, chunk_rows, max_block_bytes, **options
        As for `pack_quantized`.

    Returns
    -------
    QuantizedReport

    Raises
    ------
    ArgumentError
        The file is no whole number of rows; or as for `pack_quantized`.
    """
    chunk_rows = count(chunk_rows, "chunk_rows", 1)
    source = FloatFile(src_f32, count(dim, "dim", 1), chunk_rows)
    return _pack(source, out_dir, kind, native, max_block_bytes, **options)


def pack_quantized(
    matrix, out_dir, kind, native="auto", chunk_rows=CHUNK_ROWS, max_block_bytes=None, **options
) -> QuantizedReport:
    """Encode the rows of a matrix as a bundle for `QuantizedRows`.

    Parameters
    ----------
    matrix : ndarray, torch.Tensor on the CPU, or a data set with a shape, shape (rows, dim)
        Of a floating-point dtype; converted to float32 a piece at a time.
        May be mapped (``numpy.memmap``).
    out_dir : path_like
        Of the bundle.
    kind : {"fp32", "fp16", "bf16", "int8", "uint8_rowwise", "int4_rowwise"}
        How a row is stored; ``gopkg/quant/FORMAT.md`` shows the bytes. The
        last two are torch's ``embedding_bag_byte_prepack`` and
        ``embedding_bag_4bit_prepack``, bit for bit.
    native : {"auto", True, False}
        Write a MEFTNAT1 table, with compression and checksums of blocks; or a
        plain file of encoded rows; or both, of which the smaller is kept, and
        the plain one if they are equal.
    chunk_rows : int
        Most rows that are encoded at once, by default 4096.
    max_block_bytes : int, optional
        Of a MEFTNAT1 table, see `pack_native`.
    codec : {"zlib", "zstd", "raw"}
        Of a MEFTNAT1 table, by default ``"zlib"``.
    predictor : {"auto", None, "xor", "shuffle"}
        Of a MEFTNAT1 table.
    block_rows, deduplicate, level, threads
        Of a MEFTNAT1 table, as for `pack_native`.
    overwrite : bool
        Replace a bundle that is at `out_dir`, and has nothing else in its
        directory; directory and files keep their permissions. New ones are
        their owner's alone.

    Returns
    -------
    QuantizedReport

    Raises
    ------
    ArgumentError
        A number can't be held by `kind`: NaN or infinity where rows have
        codes, or too wide a range; the message names row and column.
    DtypeError
        The matrix is not one of floating-point numbers.
    StoreExistsError
        Something is at `out_dir` that is not to be replaced.

    Notes
    -----
    Memory is bounded by some pieces of `chunk_rows` rows, or of 4 MiB if that
    is less, and by what `pack_native` takes. ``"auto"`` needs the space of both
    tables for a moment. A mapped source must not be shortened meanwhile.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> table = np.linspace(-1, 1, 8000, dtype=np.float32).reshape(1000, 8)
    >>> report = pack_quantized(table, tempfile.mkdtemp() + "/q", "int8", native=False)
    >>> report.width, report.file_bytes, report.cosine > 0.999
    (12, 12000, True)
    """
    return _pack(Matrix(matrix, count(chunk_rows, "chunk_rows", 1)), out_dir, kind, native, max_block_bytes, **options)


def _pack(
    source,
    out_dir,
    kind,
    native,
    max_block_bytes,
    *,
    codec="zlib",
    predictor="auto",
    block_rows=BLOCK_ROWS,
    deduplicate=False,
    level=None,
    threads=None,
    overwrite=False,
):
    one_of("kind", kind, QUANTIZED)
    if not isinstance(native, (bool, np.bool_)) and not (isinstance(native, str) and native == "auto"):
        raise ArgumentError(f"native must be 'auto', True or False, got {native!r}")
    native = native if native == "auto" else bool(native)
    pack_options = {
        "max_block_bytes": max_block_bytes,
        "codec": codec,
        "predictor": predictor,
        "block_rows": block_rows,
        "deduplicate": deduplicate,
        "level": level,
        "threads": threads,
        "element_bytes": QUANTIZED[kind],
        "dtype": kind,
    }
    encoding = _Encoding(source, kind)
    width = encoding.width
    fields = {"num_embeddings": source.rows, "embedding_dim": source.dim, "dtype": kind, "row_bytes": width}
    found = {}

    def fill(folder):
        plain, table = (os.path.join(folder, TABLE_FILES[backend]) for backend in ("python", "native"))
        rows = encoding.pieces()
        sizes = dict.fromkeys(("plain_bytes", "native_bytes"))
        if native is not True:
            sizes["plain_bytes"], digest = write_rows(plain, rows)
        if native:
            packed = pack_native(rows if native is True else plain, table, row_bytes=width, sha256=True, **pack_options)
            sizes["native_bytes"] = packed.file_bytes
        chosen = native if native != "auto" else sizes["native_bytes"] < sizes["plain_bytes"]
        if native == "auto":
            os.unlink(plain if chosen else table)
        if chosen:
            digest = packed.sha256
        found.update(encoding.outcome())
        # The member is filled in here, as the description is written after the table.
        fields["quantized"] = {**found, **sizes}
        size = sizes["native_bytes" if chosen else "plain_bytes"]
        entry = {
            "file": os.path.basename(table if chosen else plain),
            "backend": "native" if chosen else "python",
            "bytes": size,
            "sha256": digest,
        }
        return entry, {"native": chosen, "file_bytes": size, "sha256": digest, **sizes}

    bundle, outcome = write_bundle(out_dir, "quantized", fields, fill, overwrite)
    return QuantizedReport(bundle.path, kind, source.rows, source.dim, width, **found, **outcome)


class _Encoding:
    """The encoding of a source, and what is learnt from it.

    Parameters
    ----------
    source : FloatFile or Matrix
    kind : str
    """

    def __init__(self, source, kind):
        self.width = width_of(kind, source.dim)
        self._source, self._kind = source, kind_number(kind)
        self._before, self._after = hashlib.sha256(), hashlib.sha256()
        self._largest = self._sum = self._cosines = 0.0

    def pieces(self):
        """Yield the encoded rows as arrays of uint8; each array is used again for the next."""
        room = np.empty(0, np.uint8)
        decoded = np.empty(0, "<f4")
        first = 0
        for piece in self._source.pieces():
            rows, dim = piece.shape
            if len(room) < rows * self.width:
                room, decoded = np.empty(rows * self.width, np.uint8), np.empty(piece.size, "<f4")
            encoded, numbers = room[: rows * self.width], decoded[: piece.size]
            place = _engine.address(encoded), encoded.nbytes, self._kind
            _engine.check(_engine.lib.RowsEncode(_engine.address(piece), piece.size, dim, *place, first))
            _engine.check(_engine.lib.RowsDecode(_engine.address(numbers), piece.size, dim, *place))
            self._before.update(piece)
            self._after.update(numbers)
            self._compare(piece, numbers.reshape(piece.shape))
            first += rows
            yield encoded

    def _compare(self, before, after):
        with np.errstate(all="ignore"):
            x, y = before.astype(np.float64), after.astype(np.float64)
            errors = np.abs(y - x)
            if not np.isfinite(errors.max(initial=0.0)):
                errors[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
            self._largest = float(np.maximum(self._largest, errors.max(initial=0.0)))  # NaN stays
            self._sum += float(errors.sum())
            norms = np.sqrt(np.einsum("ij,ij->i", x, x)) * np.sqrt(np.einsum("ij,ij->i", y, y))
            cosines = np.clip(np.einsum("ij,ij->i", x, y) / norms, -1, 1)
            for row in np.flatnonzero(norms == 0):
                cosines[row] = float(not (x[row].any() or y[row].any()))
            self._cosines += float(cosines.sum())

    def outcome(self):
        """Return hashes and errors, once all pieces were made."""
        rows = self._source.rows
        return {
            "source_sha256": self._before.hexdigest(),
            "decoded_sha256": self._after.hexdigest(),
            "max_error": _finite(self._largest),
            "mean_error": _finite(self._sum / max(rows * self._source.dim, 1)),
            "cosine": _finite(self._cosines / rows) if rows else None,
        }


def _finite(number):
    return number if math.isfinite(number) else None
