"""Numbers that are to be encoded, a piece at a time, as float32."""

import os
import sys

import numpy as np

from loaderx import _engine
from loaderx._buffers import dense, masked
from loaderx._records import release_pages
from loaderx.errors import ArgumentError, DtypeError

from ._arguments import instead
from ._formats import refuse_formats

__all__ = ["FloatFile", "Matrix"]

#: Most bytes of a piece, but for one row.
_PIECE_BYTES = 4 << 20


def _step(chunk_rows, dim):
    return max(1, min(chunk_rows, _PIECE_BYTES // (4 * dim)))


class FloatFile:
    """A file of little-endian float32 numbers, rows back to back.

    Parameters
    ----------
    path : path_like
    dim, chunk_rows : int
    """

    def __init__(self, path, dim, chunk_rows):
        _engine.path_arg(path)  # refuses what is no path
        self._path = os.path.abspath(os.fsdecode(path))
        refuse_formats(self._path, " to pack_quantized")
        self.dim, self._step = dim, _step(chunk_rows, dim)
        try:
            size = os.stat(self._path).st_size
        except OSError as error:
            raise _engine.system_error(error, f"read {self._path}") from None
        if size % (4 * dim):
            raise ArgumentError(f"{self._path} has {size} bytes, which are no rows of {dim} float32 numbers")
        self.rows = size // (4 * dim)

    def pieces(self):
        """Yield arrays of float32, shape (some rows, dim), which are used before the next one is asked for."""
        buffer = np.empty((self._step, self.dim), "<f4")
        try:
            with open(self._path, "rb", buffering=0) as file:
                for start in range(0, self.rows, self._step):
                    piece = buffer[: min(self._step, self.rows - start)]
                    self._fill(file, memoryview(piece).cast("B"))
                    yield piece
        except OSError as error:
            raise _engine.system_error(error, f"read {self._path}") from None

    def _fill(self, file, view):
        while len(view):
            n = file.readinto(view)
            if not n:
                raise ArgumentError(f"{self._path} was shortened while it was read")
            view = view[n:]


class Matrix:
    """Floating-point numbers in two dimensions.

    Parameters
    ----------
    source : ndarray, torch.Tensor on the CPU, or what has a shape, a dtype and slices
    chunk_rows : int
    """

    def __init__(self, source, chunk_rows):
        torch = sys.modules.get("torch")
        self._tensor = torch is not None and isinstance(source, torch.Tensor)
        if self._tensor:
            source = dense(source, "matrix").detach()
            floats = source.dtype.is_floating_point
        elif isinstance(source, (list, tuple)) or not hasattr(source, "shape") or not hasattr(source, "dtype"):
            hint = instead(source)
            if isinstance(source, (str, os.PathLike)):
                hint = (
                    ": pass numpy.load(path, mmap_mode='r') of a .npy file; pack_quantized_file reads one of float32 "
                    "numbers alone"
                )
            raise DtypeError(f"matrix must be an array or a tensor, got {type(source).__name__}{hint}")
        else:
            if np.ma.isMaskedArray(source):
                raise masked("matrix")
            # bfloat16 and its like are of no kind of NumPy's own.
            floats = source.dtype.kind == "f" or (source.dtype.kind == "V" and source.dtype.names is None)
        if not floats:
            raise DtypeError(f"matrix must be of floating-point numbers, not of {source.dtype}")
        if len(source.shape) != 2 or source.shape[1] < 1:
            raise ArgumentError(f"matrix must have the shape (rows, dim), got {tuple(source.shape)}")
        self._source = source
        self.rows, self.dim = source.shape
        self._step = _step(chunk_rows, self.dim)

    def pieces(self):
        """Yield arrays of float32, shape (some rows, dim)."""
        source = self._source
        for start in range(0, self.rows, self._step):
            part = source[start : start + self._step]
            if self._tensor:
                part = part.resolve_neg().float().contiguous().numpy()
            with np.errstate(over="ignore"):  # too large for float32, so infinite
                yield np.ascontiguousarray(part, "<f4")
            if isinstance(source, np.memmap) and part.flags.c_contiguous:
                release_pages(source, part)
