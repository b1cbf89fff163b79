"""`loaderx.indexing` against NumPy itself, without any store."""

import warnings

import numpy as np
import pytest

from loaderx._buffers import as_array
from loaderx.errors import RecordIndexError
from loaderx.indexing import Plan, select


def answer(array, index):
    """Answer ``array[index]`` as a dataset does: read rows, then index the block."""
    plan = Plan(index, array.shape)
    rows = plan.rows
    if rows.dtype.kind == "i" and rows.size and (rows.min() < -len(array) or rows.max() >= len(array)):
        raise RecordIndexError("outside")
    return array[rows][plan.inner]


def outcome(fn):
    """Return a result, or the exception class that stands for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return fn()
        except (IndexError, ValueError, TypeError) as error:
            return type(error)


def assert_same(array, index):
    expected, got = outcome(lambda: array[index]), outcome(lambda: answer(array, index))
    if isinstance(expected, type):
        assert isinstance(got, type), f"{index!r}: NumPy raises {expected.__name__}, got {got!r}"
        assert issubclass(got, IndexError) or got is expected, f"{index!r}: {got.__name__}"
    else:
        assert not isinstance(got, type), f"{index!r}: NumPy gives {expected!r}, got {got.__name__}"
        assert type(got) is type(expected), f"{index!r}"
        np.testing.assert_array_equal(got, expected, err_msg=repr(index), strict=isinstance(got, np.ndarray))


class Indexable:
    def __index__(self):
        return 2


SINGLE = [
    0, 4, -1, -5, 5, -6, 2**70, -(2**70), np.int8(-2), np.uint64(3), Indexable(),
    True, False, np.True_, np.False_, np.array(True), np.array(3), np.array(-9), None, ...,
    1.0, 1.5, np.float32(2), np.array(2.0), "1", b"1", object(), {}, {1}, 1j,
    slice(None), slice(1, 4), slice(None, None, -1), slice(10, -10, -2), slice(3, 3), slice(-2, None), slice(0, 5, 3),
    slice(1.0, 2), slice(None, None, 0),
    [], (), [[]], [0], [-1], [4, -5, 2, 2], [[0, 1], [2, 3]], [5], [-6], [1.0], [None], ["a"], [[0], [1, 2]], [2**70],
    range(3), range(0),
    np.array([], dtype=int), np.array([]), np.empty((0, 3), dtype=np.int16),
    np.array([1, 2], dtype=np.uint8), np.array([1, 2], dtype=">i2"), np.array([[[1]]]), np.arange(10)[::3] % 5,
    np.array([1.0]), np.array(["a"]), np.array([1], dtype=object), np.datetime64("2020-01-01"),
    [True, False, True, False, True], np.array([False] * 5), [True] * 4, [True] * 6, [[True] * 5],
    np.ones((5, 3), bool), np.ones((5, 4), bool), np.eye(5, 3, dtype=bool), np.ones((5, 3, 2), bool),
    np.ones((5, 3, 2, 1), bool), [True, 1, 0],
]  # fmt: skip


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2), (0, 3), (1,)])
def test_single_indices_behave_as_in_numpy(shape):
    array = np.arange(np.prod(shape)).reshape(shape)
    for index in SINGLE:
        assert_same(array, index)


def test_tuples_behave_as_in_numpy():
    rng = np.random.default_rng(5)
    shape = (5, 3, 2)
    array = np.arange(30).reshape(shape)

    def part():
        choice = rng.integers(12)
        n = int(rng.integers(1, 4))
        return [
            lambda: int(rng.integers(-3, 3)),
            lambda: slice(None),
            lambda: slice(*(int(v) for v in np.sort(rng.integers(-4, 5, 2)))),
            lambda: slice(None, None, -1),
            lambda: None,
            lambda: Ellipsis,
            lambda: rng.integers(-2, 2, n),
            lambda: rng.integers(-2, 2, (2, 1)),
            lambda: rng.integers(0, 2, 5).astype(bool),
            lambda: rng.integers(0, 2, (5, 3)).astype(bool),
            lambda: bool(rng.integers(2)),
            lambda: [0, -1],
        ][choice]()

    outcomes = {"value": 0, "error": 0}
    for _ in range(4000):
        index = tuple(part() for _ in range(rng.integers(0, 5)))
        assert_same(array, index)
        outcomes["error" if isinstance(outcome(lambda index=index: array[index]), type) else "value"] += 1
    assert min(outcomes.values()) > 500, outcomes


def test_only_the_selected_rows_are_read():
    shape = (1000, 4, 4)
    assert Plan((7, ..., 0), shape).rows.tolist() == [7]
    assert Plan((None, slice(2, 4), 1), shape).rows.tolist() == [2, 3]
    assert Plan((np.array([9, 1]), slice(None), 2), shape).rows.tolist() == [9, 1]
    assert Plan((..., slice(5), 0, 0), shape).rows.tolist() == [0, 1, 2, 3, 4]


def test_too_many_indices_are_refused_before_anything_is_read():
    with pytest.raises(RecordIndexError, match="too many indices: the dataset is 2-dimensional, but 3 were indexed"):
        Plan((slice(None), 0, 0), (10, 2))
    with pytest.raises(RecordIndexError, match="single ellipsis"):
        Plan((..., ...), (10, 2))


def test_indices_beyond_int64_do_not_wrap():
    rows, _ = select(np.array([2**64 - 1], dtype=np.uint64), range(10))
    assert rows.dtype == np.uint64
    assert rows[0] == 2**64 - 1
    with pytest.raises(RecordIndexError, match=str(2**63)):
        Plan(2**63, (10,))


def test_a_mask_must_have_one_element_per_record_even_when_it_is_empty():
    # NumPy lets an empty mask pass.
    for length in (0, 4, 6):
        with pytest.raises(RecordIndexError, match=rf"shape \({length},\) did not match the 5 records"):
            answer(np.arange(5), np.zeros(length, bool))


def test_a_tensor_of_one_dimension_is_an_array_of_indices():
    import torch

    assert answer(np.arange(5), torch.tensor([3])).shape == (1,)
    assert answer(np.arange(5), torch.tensor(3)) == 3


def test_rows_are_contiguous_and_share_no_memory_with_a_strided_index():
    index = np.arange(20)[::4]
    rows, shape = select(index, range(100))
    assert rows.flags.c_contiguous
    assert shape == (5,)
    assert rows.tolist() == index.tolist()


def test_a_masked_array_is_no_index():
    masked = np.ma.array([0, 1], mask=[False, True])
    for index in (masked, masked.astype(bool), (masked,), (slice(None), masked)):
        with pytest.raises(RecordIndexError, match=r"got a masked array; pass \.filled"):
            Plan(index, (2, 2))
    for index in (masked, [masked], [[masked, masked]], [([0, 1], [1, 0]), ([0, 1], masked)], [0, np.ma.masked]):
        with pytest.raises(RecordIndexError, match="masked array"):
            select(index, range(2))


@pytest.mark.parametrize(
    "index",
    [
        [5],
        [1, 2] * 20,
        [2**62] * 20,
        [2**63] * 20,
        [-1, 2] * 20,
        [np.int8(1)] * 20,
        [[1, 2]] * 20,
        [True, False] * 10,
        [],
        [[]],
        [[], []],
        [([1, 2], (3, 4))] * 9,
        [[2**63, 1]] * 20,
        [1.5] * 20,
        [[1, 2.5]] * 20,
        [np.array([1, 2])] * 9,
        [1, np.float32(2)],
        (1, 2),
    ],
)
def test_lists_become_what_numpy_makes_of_them(index):
    expected = np.asarray(index)
    found = as_array(index)
    assert (found.dtype, found.shape, found.tolist()) == (expected.dtype, expected.shape, expected.tolist())


@pytest.mark.parametrize("index", [[[1, 2] * 9, [3] * 9], [[[1] * 20, [2] * 20], [[3] * 20]], [[1] * 20, [[2] * 20]]])
def test_ragged_lists_are_no_arrays(index):
    with pytest.raises(ValueError, match="inhomogeneous"):
        as_array(index)
