"""Samplers: the index sequence itself, and the object that hands it out."""

import copy
import itertools
import json
import os
import pathlib
import pickle
import signal
import threading

import numpy as np
import pytest

from loaderx.errors import ArgumentError, DtypeError, ZrecordError
from loaderx.sampler import Mode, Sampler

GOLDEN = pathlib.Path(__file__).parent.parent / "gopkg" / "sampler" / "testdata"
WORD = (1 << 64) - 1
LAST = (1 << 63) - 1


def mix(seed, v, k):
    z = seed ^ (v * 0x9E3779B97F4A7C15 & WORD) ^ (k * 0xD1B54A32D192ED03 & WORD)
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & WORD
    return z ^ z >> 31


def word(seed, high, low, attempt):
    first, second = mix(seed, 2 * attempt, 1 + high), mix(seed, 2 * attempt + 1, 1 + high)
    z = (first + low * 0x9E3779B97F4A7C15) & WORD
    product = z * (z ^ second)
    return product >> 64 ^ product & WORD


def draw(length, seed, number):
    high, low, attempt = number >> 64, number & WORD, 0
    if length <= 1 << 28:
        half = word(seed, high, low >> 1, 0) >> 32 * (low & 1) & 0xFFFFFFFF
        if half * length % 2**32 >= 2**32 % length:
            return half * length >> 32
        attempt = 1
    while (product := word(seed, high, low, attempt) * length) & WORD < 2**64 % length:
        attempt += 1
    return product >> 64


def permute(length, key, x):
    half = ((length - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = x >> half, x & mask
        for k in range(4):
            left, right = right, left ^ mix(key, right, k) & mask
        x = left << half | right
        if x < length:
            return x


def reference(length, batch, mode, seed, step):
    """Draw a batch as the specification in gopkg/sampler/doc.go says, in slow and plain steps."""
    seed %= 1 << 64
    if mode == Mode.SEQUENTIAL:
        return [(step * batch + j) % length for j in range(batch)]
    if mode == Mode.IID:
        return [draw(length, seed, step * batch + j) for j in range(batch)]
    batch = min(batch, length)
    cycle, k = divmod(step, length // batch)
    return [permute(length, mix(seed, cycle, 0), k * batch + j) for j in range(batch)]


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("length", [1, 3, 34, 1000, 2**28, 2**28 + 1, 3 << 61, LAST])
@pytest.mark.parametrize("batch", [1, 16, 33])
@pytest.mark.parametrize("seed", [0, -1, LAST])
def test_batches_are_those_of_the_specification(mode, length, batch, seed):
    sampler = Sampler(length, batch, mode, seed)
    for step in range(7):
        assert sampler.next().tolist() == reference(length, batch, mode, seed, step)
    for step in (10**6, 2**60):
        sampler.seek(step)
        assert sampler.next().tolist() == reference(length, batch, mode, seed, step)
        assert next(sampler).tolist() == reference(length, batch, mode, seed, step + 1)


@pytest.mark.parametrize("name", ["loaderx-0.9.4.json", "iid.json"])
def test_batches_are_those_of_earlier_runs(name):
    for case in json.loads((GOLDEN / name).read_text()):
        if case["step"] > LAST:
            continue
        sampler = Sampler(case["length"], case["batch"], case["mode"], case["seed"])
        sampler.seek(case["step"])
        assert sampler.next().tolist() == case["indices"], case


def test_batches_are_those_of_loaderx(oracle, rng):
    """Random arguments, side by side with the real loaderx."""
    cases = []
    for _ in range(300):
        length = int(rng.integers(1, 2 ** int(rng.integers(1, 63)), endpoint=True))
        batch, seed = int(rng.integers(1, 40)), int(rng.integers(0, 2**63))
        step = int(rng.integers(0, 2 ** int(rng.integers(1, 58))))  # loaderx wraps step * batch at 2**64
        cases.append((length, batch, int(rng.choice([0, 2])), seed, step))
    code = """
    import json, sys
    from loaderx.sampler import Sampler
    for *args, step in json.loads(sys.argv[1]):
        sampler = Sampler(*args)
        sampler.seek(step)
        print([sampler.next().tolist() for _ in range(3)])
    """
    for (*args, step), line in zip(cases, oracle(code, json.dumps(cases)).splitlines(), strict=True):
        sampler = Sampler(*args)
        sampler.seek(step)
        assert [sampler.next().tolist() for _ in range(3)] == json.loads(line), (args, step)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("batch", [1, 7, 256, 5000, 20000])
def test_drawing_ahead_does_not_show(mode, batch):
    """Blocks grow from one batch up; their borders, and seeks into them, change nothing."""
    sampler = Sampler(60_000, batch, mode, 9)
    count = 40 if batch > 1 else 30_000
    run = [sampler.next() for _ in range(count)]
    assert sampler.step == count
    for step in (0, 1, 2, 3, 6, 7, count // 2, count - 1):
        sampler.seek(step)
        assert sampler.step == step
        np.testing.assert_array_equal(sampler.next(), run[step])
        assert sampler.step == step + 1


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("batch", [3, 8192])
def test_arrays_are_the_callers(mode, batch):
    sampler, other = Sampler(10_000, batch, mode), Sampler(10_000, batch, mode)
    kept = []
    for _ in range(20):
        indices = sampler.next()
        assert indices.dtype == np.uint64
        assert indices.shape == (batch,)
        assert indices.flags.writeable
        assert indices.flags.c_contiguous
        kept.append(indices)
    for indices in kept[::2]:
        indices[:] = 77
    for k, indices in enumerate(kept):
        want = other.next()
        np.testing.assert_array_equal(indices, want if k % 2 else np.full(batch, 77))


def test_cyclic_covers_every_cycle_and_shortens_a_batch_larger_than_the_store():
    sampler = Sampler(34, 16, Mode.CYCLIC, 3)
    for _ in range(5):
        cycle = np.concatenate([sampler.next() for _ in range(2)])
        assert len(np.unique(cycle)) == 32
    short = Sampler(5, 16, Mode.CYCLIC, 3)
    for _ in range(5):
        assert sorted(short.next().tolist()) == [0, 1, 2, 3, 4]


def test_iid_does_not_depend_on_the_batch_size():
    whole = Sampler(1000, 64, Mode.IID, 5).next()
    parts = Sampler(1000, 16, Mode.IID, 5)
    np.testing.assert_array_equal(whole, np.concatenate([parts.next() for _ in range(4)]))


def test_negative_seeds_are_their_words():
    for seed in (-1, -(2**63), -42):
        assert Sampler(99, 9, 1, seed).next().tolist() == Sampler(99, 9, 1, seed + 2**64).next().tolist()


def test_defaults_and_attributes():
    sampler = Sampler(np.int32(10), np.uint8(4), np.int64(2))
    assert (sampler.length, sampler.batch_size, sampler.seed, sampler.step) == (10, 4, 42, 0)
    assert sampler.mode is Sampler.Mode.CYCLIC is Mode.CYCLIC
    assert (Mode.SEQUENTIAL, Mode.IID, Mode.CYCLIC) == (0, 1, 2)
    assert iter(sampler) is sampler
    assert next(iter(sampler)).tolist() == [4, 9, 2, 3]
    assert repr(sampler) == "Sampler(length=10, batch_size=4, mode=Mode.CYCLIC, seed=42, step=1)"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((0, 4, 1), "length must be in 1..9223372036854775807, got 0"),
        ((-3, 4, 1), "length must be in 1.., got -3"),
        ((2**63, 4, 1), "got 9223372036854775808"),
        ((10, 0, 1), "batch_size must be in 1.., got 0"),
        ((10, 4, 3), "mode must be in 0..2 (loaderx.sampler.Mode.SEQUENTIAL, IID, CYCLIC, or their names), got 3"),
        ((10, 4, -1), "mode must be in 0..2, got -1"),
        ((10, 4, "random"), "mode must be one of ['sequential', 'iid', 'cyclic'], got 'random'"),
        ((10, 4, 1, 2**64), "seed must be in -9223372036854775808..18446744073709551615, got"),
        ((10, 4, 1, -(2**63) - 1), "seed must be in, got"),
    ],
)
def test_values_that_are_refused(args, words):
    with pytest.raises(ArgumentError) as caught:
        Sampler(*args)
    for part in words.split(", "):
        assert part in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "args", [(True, 4, 1), (10.0, 4, 1), ("10", 4, 1), (10, None, 1), (10, 4, True), (10, 4, b"iid"), (10, 4, 1, 0.5)]
)
def test_types_that_are_refused(args):
    with pytest.raises(TypeError, match=r"must be an integer.*, got") as caught:
        Sampler(*args)
    assert isinstance(caught.value, DtypeError)
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_seeks_that_are_refused_move_nothing():
    sampler = Sampler(10, 4, 0)
    sampler.next()
    for step in (-1, 2**63):
        with pytest.raises(ArgumentError, match="step must be in 0"):
            sampler.seek(step)
    with pytest.raises(DtypeError):
        sampler.seek(1.5)
    assert sampler.next().tolist() == [4, 5, 6, 7]


def test_the_last_step_is_reached_and_not_passed():
    sampler = Sampler(10, 4, 2)
    sampler.seek(LAST - 1)
    assert sampler.next().tolist() == reference(10, 4, 2, 42, LAST - 1)
    assert sampler.next().tolist() == reference(10, 4, 2, 42, LAST)
    with pytest.raises(ArgumentError, match="ends with step"):
        sampler.next()


def test_a_batch_without_memory_is_a_memory_error():
    for batch in (2**46, LAST):
        with pytest.raises(MemoryError, match=f"batch of {batch} indices") as caught:
            Sampler(10, batch, 1).next()
        assert isinstance(caught.value, ZrecordError)


@pytest.mark.parametrize("clone", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_copies_go_on_by_themselves(clone, steps):
    sampler = Sampler(1000, 8, Mode.CYCLIC, -5)
    for _ in range(steps):
        sampler.next()
    other = clone(sampler)
    assert (other.step, other.seed, other.mode) == (steps, -5, Mode.CYCLIC)
    for _ in range(3):
        np.testing.assert_array_equal(other.next(), sampler.next())


def test_many_threads_share_the_steps():
    """Each step goes to exactly one thread, also where blocks end."""
    sampler = Sampler(2**62, 4, Mode.SEQUENTIAL)
    got = [[] for _ in range(4)]

    def take(mine):
        for _ in range(5000):
            mine.append(int(sampler.next()[0]))

    threads = [threading.Thread(target=take, args=(mine,)) for mine in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*got)) == [4 * k for k in range(20_000)]
    assert sampler.step == 20_000


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_goes_on_where_it_was():
    sampler = Sampler(1000, 300, Mode.IID, 7)
    for _ in range(3):
        sampler.next()
    want = [reference(1000, 300, 1, 7, step) for step in range(3, 60)]
    with sampler._lock:  # as another thread may hold it at that moment
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                signal.alarm(20)
                os.write(write, b"1" if [sampler.next().tolist() for _ in want] == want else b"0")
            finally:
                os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        assert answer.read() == b"1"
    os.waitpid(pid, 0)
    assert sampler.next().tolist() == want[0]


def test_modes_by_name():
    for mode in Sampler.Mode:
        for given in (mode, int(mode), np.int64(mode), mode.name, mode.name.lower()):
            assert Sampler(10, 4, given).mode is mode
    with pytest.raises(
        DtypeError, match=r"mode must be an integer \(loaderx\.sampler\.Mode\.SEQUENTIAL, IID, CYCLIC, or"
    ):
        Sampler(10, 4, None)
