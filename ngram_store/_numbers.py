"""Rows read as numbers: reduced in bags, or decoded."""

import sys

import numpy as np

from loaderx import _engine
from loaderx._buffers import dense
from loaderx.errors import ArgumentError, BufferSizeError, DtypeError, RecordIndexError, ZrecordError

from ._arguments import flag, padding_row
from ._ids import apart, id_memory
from ._kinds import bag_kind, float_kind

__all__ = ["NumberRows", "target_of"]

# Flags of the engine's spec.
_UNSIGNED, _INCLUDE_LAST, _PADDING, _HALF_WEIGHTS = 1 << 24, 2 << 24, 4 << 24, 8 << 24


class NumberRows:
    """The methods of `NativeRows` that take rows for numbers."""

    __slots__ = ()

    def embedding_bag(
        self,
        ids,
        offsets=None,
        mode="sum",
        weights=None,
        padding_idx=None,
        out=None,
        accumulate="torch",
        dtype=None,
        include_last_offset=None,
        dim=None,
        bits=False,
    ):
        """Reduce bags of rows, as `torch.nn.functional.embedding_bag` does.

        Parameters
        ----------
        ids : array_like of int, shape (n,) or (bags, k)
            Rows of all bags, one bag behind the other; with two dimensions and
            without `offsets` each line is a bag. Otherwise as for `gather`.
        offsets : array_like of int, shape (bags,) or (bags + 1,), optional
            Where in `ids` the bags begin: from 0 on, never falling.
        mode : {"sum", "mean", "max"}
            An empty bag is all zeros, whatever the mode.
        weights : array_like, shape of `ids`, optional
            Factors of the rows, for sums; of the rows' dtype, as in torch, and
            float32 for quantised rows. Lists are rounded to it as torch does.
        padding_idx : int, optional
            A row that is left out of all bags. Negative ones count from the end.
        out : ndarray, torch.Tensor on the CPU or other buffer, optional
            C-contiguous and writable: takes the results. Those of bfloat16 may
            also go into uint16. It must not overlap `ids`, `offsets` or
            `weights` in memory. After an error other than those about the
            arguments its content is undefined.
        accumulate : {"torch", "f64"}
            The arithmetic: that of torch's CPU kernels, bit for bit, or sums in
            float64 that are rounded once.
        dtype : str or dtype, optional
            What rows consist of: ``"fp32"``, ``"fp64"``, ``"fp16"``,
            ``"bf16"``, ``"int8"``, ``"uint8_rowwise"``, ``"int4_rowwise"``, or
            NumPy's or torch's dtype of the first four. The last three have a
            scale in each row; `pack_quantized` makes them of numbers. By
            default what the table records (see `dtype`), and ``"fp32"`` if it
            records nothing.
        include_last_offset : bool, optional
            Whether `offsets` has one more element, the number of ids. By
            default that is so if `out` has a row less than `offsets` has
            elements, and not without `out`, as in torch.
        dim : int, optional
            Columns of a row, for 4-bit rows of an odd number.
        bits : bool
            Return unsigned integers of the same bits: for bfloat16 where
            ``ml_dtypes`` is not installed.

        Returns
        -------
        ndarray, shape (bags, dim)
            Of the rows' dtype, or float32 for quantised rows; or `out`.

        Raises
        ------
        RecordIndexError
            An id is outside the table; the message names its position in
            ``ids.flat``, its value and the range.
        ArgumentError
            Offsets do not cover all ids in order, shapes do not agree, or
            weights come with another mode than sum.
        DtypeError
            Something is of a dtype that does not go with the rows, or `dtype`
            is another than the table records.
        BufferSizeError
            `out` has another size.

        Notes
        -----
        No gathered rows are made of a raw table: they are reduced where they
        lie in the file's mapping. Other tables decode a chunk of ids at a time
        (``query_chunk_rows``), each row once. Results are the same either way,
        whatever the number of threads. Errors of arguments come before
        anything is written. Ctrl-C ends a long call.

        Examples
        --------
        >>> rows = NativeRows("table.men")  # doctest: +SKIP
        >>> rows.embedding_bag([0, 42, 0], [0, 2], mode="mean").shape  # doctest: +SKIP
        (2, 128)
        """
        number = self._id()
        bits = flag("bits", bits)
        if include_last_offset is not None:
            include_last_offset = flag("include_last_offset", include_last_offset)
        kind = _kind(bag_kind, dtype, dim, self._row_bytes, self._recorded, mode, accumulate)
        spec = kind.spec
        where, n, unsigned, shape, ids = id_memory(ids)
        if unsigned:
            spec |= _UNSIGNED
        if offsets is None:
            offsets = _even(shape)
            bags, include_last_offset = len(offsets), True
            bounds = _engine.address(offsets)
        else:
            if len(shape) != 1:
                raise ArgumentError(f"ids with offsets must have one dimension, got the shape {tuple(shape)}")
            offsets, bounds, bags = _bounds(offsets)
        first = number, where, n, bounds, bags
        if include_last_offset is None and out is not None:
            include_last_offset = _one_less(out, kind, bags)
        if include_last_offset:
            spec |= _INCLUDE_LAST
            bags -= 1
            if bags < 0:
                raise ArgumentError("offsets are empty, and with include_last_offset the number of ids is one of them")
        if out is None:
            out = owner = kind.empty((bags,), bits)
            where, size = _engine.address(out), out.nbytes
        else:
            where, size, owner = target_of(out, kind, (bags,))
            apart(where, size, "ids", first[1], 8 * n)
            apart(where, size, "offsets", bounds, 8 * first[4])
        factors = padding = 0
        if weights is not None:
            if mode != "sum":
                raise ArgumentError(f"weights go with mode 'sum' only, not with {mode!r}")
            weights, factors = kind.weights(weights, shape)
            apart(where, size, "weights", factors, weights.nbytes)
            if kind.half:
                spec |= _HALF_WEIGHTS
        if padding_idx is not None:
            padding = padding_row(padding_idx, self._described()["rows"])
            spec |= _PADDING
        # What the addresses are of stays alive until the end of the call: by the names here.
        rest = where, size, factors, spec, padding
        done = n + 2
        if n <= self._short:
            bag = _engine.lib.RowsBag
            done = bag(*first, 0, *rest)
            while done <= n:
                done = bag(*first, self._result(_engine.check, done), *rest)
        if done == n + 2:
            self._result(_engine.run, _engine.lib.RowsBagAll, *first, *rest, keep=(ids, offsets, weights, owner))
        return out

    def gather_floats(self, ids, dtype=None, out=None, dim=None):
        """Return rows decoded to float32.

        Parameters
        ----------
        ids : array_like of int, any shape
            As for `gather`.
        dtype, dim
            What rows consist of, as for `embedding_bag`. Numbers of 64 bits are
            rounded, all others are exact.
        out : ndarray or torch.Tensor on the CPU, shape (*ids.shape, dim), optional
            C-contiguous, writable, of float32, and apart from `ids` in memory.

        Returns
        -------
        ndarray of float32, shape (*ids.shape, dim)
            Or `out`.

        Notes
        -----
        Rows are decoded into the result straight from where they lie. Otherwise
        as for `gather`.
        """
        number = self._id()
        kind = _kind(float_kind, dtype, dim, self._row_bytes, self._recorded)
        address, n, unsigned, shape, ids = id_memory(ids)
        if out is None:
            out = owner = kind.empty(shape, False)
            where, size = _engine.address(out), out.nbytes
        else:
            where, size, owner = target_of(out, kind, tuple(shape))
            apart(where, size, "ids", address, 8 * n)
        if where & 3:
            raise ArgumentError("out is not aligned to 4 bytes")
        rest = where, size // 4, kind.spec | (_UNSIGNED if unsigned else 0)
        if n <= self._short:
            gather = _engine.lib.RowsFloats
            done = gather(number, address, n, 0, *rest)
            while done < n:
                done = gather(number, address, n, self._result(_engine.check, done), *rest)
        else:
            self._result(_engine.run, _engine.lib.RowsFloatsAll, number, address, n, *rest, keep=(ids, owner))
        return out


def _kind(make, *args):
    try:
        return make(*args)
    except (TypeError, ValueError) as error:  # what has no hash
        if isinstance(error, ZrecordError):
            raise
        raise DtypeError(f"dtype, mode and accumulate must be names, and dim an int: {error}") from None


def _even(shape):
    """Return where bags begin that are lines of ids, and the end."""
    if len(shape) != 2:
        raise ArgumentError(f"ids without offsets must have two dimensions, (bags, k), got the shape {tuple(shape)}")
    bags, each = shape
    return np.arange(0, (bags + 1) * each, each) if each else np.zeros(bags + 1, np.int64)


def _bounds(offsets):
    """Return offsets as the engine takes them, their address and how many they are."""
    try:
        where, n, unsigned, shape, owner = id_memory(offsets, "offsets")
    except RecordIndexError:
        raise ArgumentError("offsets must lie within the ids") from None
    if len(shape) != 1:
        raise ArgumentError(f"offsets must have one dimension, got the shape {tuple(shape)}")
    if unsigned and n and owner.max() >> np.uint64(63):
        raise ArgumentError(f"offset {owner.max()} at position {owner.argmax()} is outside the ids")
    return owner, where, n


def _one_less(out, kind, offsets):
    """Whether memory for results has room for one bag less than there are offsets."""
    try:
        return out.nbytes == (offsets - 1) * kind.row_bytes
    except (AttributeError, RuntimeError):  # a sparse tensor has no one size
        return isinstance(out, bytearray) and len(out) == (offsets - 1) * kind.row_bytes


def target_of(out, kind, rows):
    """Return address, size and owner of the caller's memory for results."""
    like = type(out) is np.ndarray and out.dtype is kind.dtype and out.shape == (*rows, kind.dim)
    if like and (address := _engine.plain(out)) is not None:
        return address, out.nbytes, out
    torch = sys.modules.get("torch")
    if (
        torch is not None
        and type(out) is torch.Tensor
        and out.dtype is getattr(torch, kind.result)
        and out.is_cpu
        and out.layout is torch.strided
        and not out.is_nested
        and out.shape == (*rows, kind.dim)
        and out.is_contiguous()
        and not out.is_neg()
    ):
        return _engine.tensor_address(out), out.nbytes, out
    if torch is not None and isinstance(out, torch.Tensor):
        dense(out, "out")
    kind.check_out(out, rows)
    where, size, owner = _engine.pin(out, writable=True)
    needed = kind.row_bytes
    for length in rows:
        needed *= length
    if size != needed:
        raise BufferSizeError(f"results of shape {(*rows, kind.dim)} are {needed} bytes, and out has {size}")
    return where, size, owner
