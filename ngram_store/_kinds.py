"""How the bytes of a row are read as numbers."""

import functools

import numpy as np

from loaderx import _engine
from loaderx._buffers import dense
from loaderx.dtypes import from_name, is_tensor
from loaderx.errors import ArgumentError, DtypeError, StoreFormatError

from ._arguments import array_of, count, one_of

__all__ = [
    "ACCUMULATE",
    "KINDS",
    "MODES",
    "OTHER",
    "Kind",
    "bag_kind",
    "check_element",
    "dtype_of",
    "dtype_of_kind",
    "element",
    "float_kind",
    "float_name",
    "kind_name",
    "kind_number",
    "kind_of_dtype",
    "recorded_kind",
    "same_kind",
    "width_of",
]

#: Name, the engine's number, bytes of a column, bytes behind the columns, type of results.
KINDS = {
    "fp32": (0, 4, 0, "float32"),
    "fp64": (1, 8, 0, "float64"),
    "fp16": (2, 2, 0, "float16"),
    "bf16": (3, 2, 0, "bfloat16"),
    "int8": (4, 1, 4, "float32"),
    "uint8_rowwise": (5, 1, 8, "float32"),
    "int4_rowwise": (6, 0.5, 4, "float32"),
}
#: What rows are taken for where neither the table nor the caller says it.
_UNKNOWN = "fp32"
#: What a table records of numbers that are of none of the kinds.
OTHER = "other"
_BY_DTYPE = {result: name for name, (_, _, tail, result) in KINDS.items() if not tail}
#: Names of torch's that mean something else to NumPy, or nothing.
_TORCH = {"torch.half": "float16", "torch.float": "float32", "torch.double": "float64"}
#: How bags are reduced and in which arithmetic, and the engine's numbers of that.
MODES = {"sum": 0, "mean": 1, "max": 2}
ACCUMULATE = {"torch": 0, "f64": 1}
_DIM_AT = 32


class Kind:
    """Rows of one kind and width, and what is done with them.

    Parameters
    ----------
    dtype : str, dtype or None
        As the caller says.
    dim : int or None
    row_bytes : int
    recorded : str or None
        As the table says.
    result : str, optional

    Attributes
    ----------
    spec : int
        What the engine takes, without flags.
    dim : int
        Columns of a row.
    result : str
        Name of the dtype of results.
    dtype : numpy.dtype or None
        Of results; None for bfloat16 where NumPy has none.
    row_bytes : int
        Of a row of results.
    half : bool
        Whether numbers have two bytes.
    """

    def __init__(self, dtype, dim, row_bytes, recorded, result=None):
        name = same_kind(dtype, recorded) or _UNKNOWN
        number, column, tail, own = KINDS[name]
        if dim is None:
            dim = int((row_bytes - tail) / column)
        else:
            dim = count(dim, "dim", 1)
        if dim < 1 or -(-dim * column // 1) + tail != row_bytes:
            hint = "; pack_quantized makes such rows of numbers, and QuantizedRows reads them" if tail else ""
            raise ArgumentError(f"rows of {row_bytes} bytes are no {name} rows of {dim} columns{hint}")
        self.name, self.dim, self.result = name, dim, result or own
        self.spec = number | dim << _DIM_AT
        try:
            self.dtype = from_name(self.result)
        except DtypeError:
            self.dtype = None
        self.item_bytes = 2 if self.dtype is None else self.dtype.itemsize
        self.row_bytes = self.item_bytes * dim
        self.half = name in ("fp16", "bf16")

    def empty(self, rows, bits):
        """Return an array for results."""
        if bits:
            return np.empty((*rows, self.dim), f"u{self.item_bytes}")
        if self.dtype is None:
            raise DtypeError(
                "NumPy has arrays of bfloat16 only with ml_dtypes: pip install ml_dtypes, or pass bits=True "
                "for unsigned integers of the same bits, or a torch tensor as out"
            )
        return np.empty((*rows, self.dim), self.dtype)

    def check_out(self, out, rows):
        """Refuse memory that has a dtype or shape other than that of results."""
        if not hasattr(out, "dtype"):
            return
        name = str(out.dtype).removeprefix("torch.")
        if name != self.result and name != f"uint{8 * self.item_bytes}":
            raise DtypeError(f"out must be of {self.result}, not of {name}")
        if tuple(out.shape) != (*rows, self.dim):
            raise ArgumentError(f"out must have the shape {(*rows, self.dim)}, not {tuple(out.shape)}")

    def weights(self, given, shape):
        """Return what keeps weights alive, and their address; they are of the results' dtype."""
        if is_tensor(given):
            self._check_weights(str(given.dtype).removeprefix("torch."))
            owner = dense(given, "weights").detach().resolve_neg().contiguous()
            where = _engine.tensor_address(owner)
        else:
            array = array_of(given, "weights", "numbers")
            if isinstance(given, (list, tuple)):
                if array.size and array.dtype.kind not in "iuf":
                    raise DtypeError(f"weights must be numbers, got {array.dtype}")
                array = _rounded(array, self.result)
            elif array.dtype is not self.dtype:
                self._check_weights(array.dtype.name)
            plain = array.dtype.isnative and array.flags.carray
            owner = array if plain else np.require(array, array.dtype.newbyteorder("="), ("C", "A"))
            where = _engine.address(owner)
        if owner.shape != shape:
            raise ArgumentError(f"weights have the shape {tuple(owner.shape)}, and ids {tuple(shape)}")
        return owner, where if 0 not in shape else 0

    def _check_weights(self, name):
        if name != self.result:
            raise DtypeError(f"weights of {self.name} rows must be of {self.result}, not of {name}")


def _rounded(numbers, result):
    """Return numbers in the dtype of results as torch makes tensors of them, those of bfloat16 as their bits.

    torch goes by way of float32, and needs no ``ml_dtypes``.
    """
    with np.errstate(over="ignore", under="ignore"):
        if result in ("float32", "float64"):
            return numbers.astype(result)
        single = numbers.astype(np.float32)
        if result == "float16":
            return single.astype(result)
    bits = single.view(np.uint32)
    halves = ((bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), halves)


@functools.lru_cache(maxsize=256)
def bag_kind(dtype, dim, row_bytes, recorded, mode, accumulate):
    """Return the `Kind` of a reduction."""
    one_of("mode", mode, MODES)
    one_of("accumulate", accumulate, ACCUMULATE)
    kind = Kind(dtype, dim, row_bytes, recorded)
    kind.spec |= MODES[mode] << 8 | ACCUMULATE[accumulate] << 16
    return kind


@functools.lru_cache(maxsize=256)
def float_kind(dtype, dim, row_bytes, recorded):
    """Return the `Kind` of rows that are decoded."""
    return Kind(dtype, dim, row_bytes, recorded, "float32")


def element(given, row_bytes, recorded):
    """Return the dtype of a row's elements; numbers must be those that the table records."""
    spelled = _spelled(given)
    if isinstance(spelled, str) and spelled in KINDS and spelled != "int8":  # which is also one of NumPy's
        raise DtypeError(f"{spelled} rows do not consist of elements of one dtype: gather_floats decodes them")
    try:
        dtype = from_name(spelled) if isinstance(spelled, str) else np.dtype(spelled)
    except (StoreFormatError, TypeError, ValueError):
        raise DtypeError(f"dtype must be one of NumPy's or torch's or its name, got {_shown(given)}") from None
    if dtype.hasobject or dtype.itemsize == 0 or row_bytes % dtype.itemsize:
        raise DtypeError(f"rows of {row_bytes} bytes do not consist of {dtype}")
    check_element(dtype, recorded, "dtype says")
    return dtype


def dtype_of(out):
    """Return NumPy's or torch's dtype of memory, None if it does not say what it holds."""
    if hasattr(out, "dtype"):
        return out.dtype
    try:
        return np.dtype(memoryview(out).format)
    except (TypeError, ValueError, SyntaxError, BufferError):
        return None


def check_element(dtype, recorded, what):
    """Refuse floating-point numbers that are not what a table records.

    Parameters
    ----------
    dtype : numpy.dtype or torch.dtype
    recorded : str or None
    what : str
        For the message: who says that rows are of that dtype.
    """
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
    part = f"float{int(name.removeprefix('complex')) // 2}" if name.startswith("complex") else name
    # Those of foreign byte order, and of kinds that no table records, have no kind.
    kind = _BY_DTYPE.get(part) if getattr(dtype, "isnative", True) else None
    other = recorded == OTHER and (kind is None or name.startswith("complex"))
    if recorded not in (None, kind) and "float" in part and not other:
        raise DtypeError(
            f"the table records that its rows are {recorded}, and {what} {dtype}: gather_floats converts them to "
            "float32, and bytes or integers take them as they are"
        )


def width_of(kind, dim):
    """Return the bytes of a row of a kind, given by its name; 0 if there is no such row."""
    if kind not in KINDS or dim < 1:
        return 0
    _, column, tail, _ = KINDS[kind]
    return (dim + 1) // 2 + tail if column == 0.5 else dim * column + tail


def kind_number(kind):
    """Return the engine's number of a kind."""
    return KINDS[kind][0]


def same_kind(dtype, recorded):
    """Return the name of the kind of a table's rows, None if nobody says it.

    Parameters
    ----------
    dtype : str, dtype or None
        As the caller says.
    recorded : str or None
        As the table says.

    Raises
    ------
    DtypeError
        The two differ.
    """
    if dtype is None:
        if recorded == OTHER:
            raise DtypeError(
                f"the table records that its rows are of none of the kinds {list(KINDS)}; "
                "gather(ids, dtype=...) reads integers and other numbers"
            )
        return recorded
    name = kind_name(dtype)
    if recorded not in (None, name):
        raise DtypeError(f"the table records that its rows are {recorded}, and dtype says {name}")
    return name


def kind_of_dtype(dtype):
    """Return the name of the kind of rows of a dtype of NumPy's or torch's, None if there is none."""
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return None
    return _BY_DTYPE.get(dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch."))


def recorded_kind(dtype):
    """Return what a table records of an array of a dtype of NumPy's or torch's; None of one of bytes."""
    kind = kind_of_dtype(dtype)
    if kind is not None or dtype is None:
        return kind
    if isinstance(dtype, np.dtype):
        plain = dtype == np.uint8 or (dtype.kind == "V" and dtype.names is None and "float" not in dtype.name)
    else:
        plain = str(dtype) == "torch.uint8"
    return None if plain else OTHER


def dtype_of_kind(kind):
    """Return the name of the dtype of rows of a kind that are nothing but numbers; else None."""
    return next((dtype for dtype, name in _BY_DTYPE.items() if name == kind), None)


def kind_name(dtype):
    """Return the name of a kind that is given by its name or by a dtype.

    Raises
    ------
    DtypeError
        There is none.
    """
    if isinstance(dtype, str) and dtype in KINDS:
        return dtype
    name = _spelled(dtype)
    if not isinstance(name, str) or name not in _BY_DTYPE:  # bfloat16 is one also where NumPy lacks it
        try:
            found = None if dtype is None else np.dtype(name)
        except (TypeError, ValueError, SyntaxError):
            found = None
        if found is not None and not found.isnative:
            raise DtypeError(f"rows are little-endian, and {found.str} is not")
        name = getattr(found, "name", "")
    if name not in _BY_DTYPE:
        raise DtypeError(f"dtype must be one of {list(KINDS)} or what NumPy or torch call them, got {_shown(dtype)}")
    return _BY_DTYPE[name]


def float_name(dtype):
    """Return the name of the dtype of rows that are nothing but numbers, given in any spelling.

    Raises
    ------
    DtypeError
        There is none.
    """
    name = dtype_of_kind(kind_name(dtype))
    if name is None:
        raise DtypeError(f"dtype must be one of {list(_BY_DTYPE)} or another name of one, got {_shown(dtype)}")
    return name


def _spelled(dtype):
    """Return a dtype as NumPy spells it: names of kinds and of torch's by its own, the rest as given."""
    text = str(dtype) if type(dtype).__module__ == "torch" else dtype
    if not isinstance(text, str):
        return text
    if text.startswith("torch."):
        text = _TORCH.get(text, text.removeprefix("torch."))
    return dtype_of_kind(text) or text


def _shown(dtype):
    """Return a dtype as messages show it."""
    return f"{dtype.__module__}.{dtype.__name__}" if isinstance(dtype, type) else repr(dtype)
