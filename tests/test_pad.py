"""`pad`: what it makes of ragged records, and what it refuses to fill them up with."""

import numpy as np
import pytest

from loaderx.dataset import pad
from loaderx.errors import ArgumentError, DtypeError


def records(dtype):
    return [np.ones(2, dtype), np.ones(1, dtype)]


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("u1", 255), ("u1", 7.0), ("u1", np.int64(3)), ("u1", True), ("u1", np.array(9)),
        ("u8", 2**64 - 1), ("i8", -(2**63)), (">i2", -2), ("?", True), ("?", 0),
        ("f4", 0.1), ("f4", 1e-60), ("f4", -np.inf), ("f4", 2**24 + 1), ("f2", 7), ("f8", 2**70), ("c8", 1.5 - 1j),
        ("M8[s]", np.datetime64("2020-01-01")), ("M8[s]", 0), ("m8[s]", np.timedelta64(3, "s")),
        ("U3", "abc"), ("S2", b"ab"), ("U3", ""),
    ],
)  # fmt: skip
def test_pad_fills_with_values_that_the_dtype_holds(dtype, value):
    padded, lengths = pad(records(dtype), pad_value=value)
    assert padded.dtype == np.dtype(dtype)
    assert padded[1, 1] == np.asarray(value).astype(dtype)
    assert lengths.tolist() == [2, 1]


@pytest.mark.parametrize("dtype, value", [("f4", np.nan), ("f2", np.float64("nan")), ("M8[s]", np.datetime64("NaT"))])
def test_pad_fills_with_what_equals_nothing(dtype, value):
    padded, _ = pad(records(dtype), pad_value=value)
    assert padded[1, 1] != padded[1, 1]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "int4"])
def test_pad_fills_types_of_ml_dtypes(name):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, name))
    for value in (0, -1, dtype.type(3)):
        assert pad(records(dtype), pad_value=value)[0][1, 1] == value
    fractions = name != "int4"
    if fractions:
        assert abs(float(pad(records(dtype), pad_value=0.1)[0][1, 1]) - 0.1) < 0.01
    for value in (1e60, np.nan if not fractions else 1e300):
        with pytest.raises(ArgumentError, match=f"records of {name} can't hold pad_value="):
            pad(records(dtype), pad_value=value)


@pytest.mark.parametrize(
    "dtype, value",
    [
        ("i4", 1.7), ("u1", 300), ("u1", -1), ("i8", 2**63), ("u8", 2**64), ("i4", 2**80), ("u1", np.nan),
        ("u1", np.inf), ("?", 2), ("f2", 1e6), ("f4", 1e39), ("f8", 2**2000), ("U3", "abcd"), ("S1", b"ab"),
        ("M8[s]", "no date"), ("M8[D]", np.datetime64("2020-01-01T12:00")),
    ],
)  # fmt: skip
def test_pad_refuses_values_that_the_dtype_cannot_hold(dtype, value):
    with pytest.raises(ArgumentError, match="can't hold pad_value="):
        pad(records(dtype), pad_value=value)


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "?"])
@pytest.mark.parametrize("value", ["1", b"1", None, 1j, np.datetime64("2020-01-01"), object()])
def test_pad_refuses_values_that_are_no_numbers(dtype, value):
    with pytest.raises(DtypeError, match=f"pad_value is a {type(value).__name__}, which does not go with records of"):
        pad(records(dtype), pad_value=value)


@pytest.mark.parametrize("value", [[1, 2], np.zeros(1), ()])
def test_pad_refuses_a_value_of_several_elements(value):
    with pytest.raises(ArgumentError, match="pad_value must be a scalar, got shape"):
        pad(records("f4"), pad_value=value)


@pytest.mark.parametrize("max_len", [3.9, 3.0, "3", True, [3]])
def test_pad_refuses_a_length_that_is_no_integer(max_len):
    with pytest.raises(DtypeError, match="max_len must be an integer, got"):
        pad(records("u1"), max_len=max_len)


@pytest.mark.parametrize("max_len", [-1, 1 << 40])
def test_pad_refuses_a_length_out_of_range(max_len):
    with pytest.raises(ArgumentError, match="max_len must be in 0"):
        pad(records("u1"), max_len=max_len)


def test_pad_takes_integers_of_any_type_as_a_length():
    for max_len in (3, np.int32(3), np.array(3)):
        assert pad(records("u1"), max_len=max_len)[0].shape == (2, 3)


@pytest.mark.parametrize("nothing", [None, 3, np.float32(1), np.array(1)])
def test_pad_refuses_what_is_no_sequence(nothing):
    with pytest.raises(DtypeError, match=f"records must be a sequence of arrays, got {type(nothing).__name__}"):
        pad(nothing)


def test_pad_takes_any_iterable_and_passes_on_what_it_raises():
    assert pad(iter(records("u1")))[0].tolist() == [[1, 1], [1, 0]]
    with pytest.raises(TypeError, match="of the source"):
        pad(one for one in _broken())


def _broken():
    yield np.ones(1)
    raise TypeError("of the source")
