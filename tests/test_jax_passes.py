"""Batches on JAX's devices: interruptions, short last batches, and numbers of 64 bits."""

import sys
import warnings

import jax
import numpy as np
import pytest

import loaderx.jax
from loaderx.collate import Flat
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, PrecisionWarning
from loaderx.jax import DeviceLoader, batch_sharding, prefetch_to_device

N = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("passes")
    from_numpy(path / "x", np.arange(N, dtype=np.int32), codec="raw")
    from_numpy(path / "long", np.arange(N) + 2**33)
    from_numpy(path / "double", np.full(N, 1.5))
    from_iterator(path / "r", (np.full(k % 3 + 1, k, np.int32) for k in range(N)))
    return path


@pytest.fixture
def streams(folder):
    return {"x": DenseDataset(folder / "x")}


def one_device():
    return batch_sharding(jax.local_devices()[:1])


class Interrupts:
    """Raise KeyboardInterrupt before the nth line of a module that is run."""

    def __init__(self, n):
        self.left = n

    def __call__(self, frame, event, _arg):
        if frame.f_code.co_filename != loaderx.jax.__file__:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, *_exc):
        sys.settrace(self.before)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("remainder", [None, "drop"])
def test_an_interruption_at_any_line_loses_and_repeats_nothing(streams, size, remainder):
    with DataLoader(streams, 0, 2, mode=0) as source:
        if remainder is None:
            loader = DeviceLoader(streams, size=size, sharding=one_device(), num_workers=0, batch_size=2, mode=0)
        else:
            loader = prefetch_to_device(source, size, one_device(), remainder)
        hits = step = 0
        for n in range(1, 400):
            try:
                with Interrupts(n % 80 + 1):
                    batch = next(loader)
            except KeyboardInterrupt:
                hits += 1
                assert loader.state_dict()["step"] == step
                continue
            assert batch["x"].tolist() == [2 * step % N, 2 * step % N + 1]
            step += 1
            assert loader.state_dict()["step"] == step
        assert hits > 50 and step > 50
        loader.close()


def test_what_the_source_handed_out_is_not_lost(streams):
    """However the source lost it on the way."""

    class Losing(DataLoader):
        lose = False

        def __next__(self):
            batch = super().__next__()
            if self.lose:
                self.lose = False
                raise KeyboardInterrupt
            return batch

    with Losing(streams, 2, 10, mode=0) as source, prefetch_to_device(source, 2, one_device()) as batches:
        for step in range(30):
            source.lose = step % 3 == 1
            if source.lose:
                with pytest.raises(KeyboardInterrupt):
                    next(batches)
            assert next(batches)["x"][0] == 10 * step % N


FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}


def test_short_last_batches_on_four_devices(folder, python):
    code = """
        import sys
        import jax, numpy as np
        from loaderx.collate import Flat
        from loaderx.dataset import DenseDataset, RaggedDataset
        from loaderx.errors import ArgumentError
        from loaderx.jax import DeviceLoader, prefetch_to_device

        streams = {"x": DenseDataset(f"{sys.argv[1]}/x")}
        with DeviceLoader(streams, batch_size=32, mode=0, records=94) as loader:
            next(loader)
            batches = list(loader.epoch())
            assert [batch["x"].shape[0] for batch in batches] == [32, 32, 30]
            assert np.concatenate([batch["x"] for batch in batches]).tolist() == list(range(94))
            shards = [[part.data.shape[0] for part in batch["x"].addressable_shards] for batch in batches]
            assert shards == [[8] * 4, [8] * 4, [30] * 4]
            assert float(jax.jit(lambda x: x.sum())(batches[-1]["x"])) == sum(range(64, 94))
            assert [batch["x"].shape[0] for batch in loader.epoch(remainder="drop")] == [32, 32]
            errors = loader.epoch("error")
            next(errors), next(errors)
            try:
                next(errors)
            except ArgumentError as error:
                assert "['x']: int32(30,) can't be split evenly over 4 devices" in str(error), error
            else:
                raise AssertionError("not refused")
            assert loader.step == 1 and next(loader)["x"][0] == 32
        # The splits of a flat stream are one more than its records.
        ragged = {"r": Flat(RaggedDataset(f"{sys.argv[1]}/r"))}
        with DeviceLoader(ragged, batch_size=32) as loader:
            assert sum(len(batch["r_splits"]) - 1 for batch in loader.epoch()) == 100
        trees = [{"x": np.zeros(n)} for n in (8, 7, 4, 3)]
        assert [len(t["x"]) for t in prefetch_to_device(trees, remainder="drop")] == [8, 4]
        print("done")
    """
    assert python(code, folder, **FOUR) == "done\n"


def test_kinds_of_remainders_that_are_refused(streams):
    with pytest.raises(ArgumentError, match=r"remainder must be one of .*, got 'pad'"):
        prefetch_to_device([], remainder="pad")
    with DeviceLoader(streams, batch_size=32) as loader, pytest.raises(ArgumentError, match="remainder"):
        loader.epoch("pad")


@pytest.mark.parametrize(
    "make",
    [
        lambda streams, **options: DataLoader(streams, output="jax", **options),
        lambda streams, **options: DeviceLoader(streams, sharding=one_device(), **options),
    ],
)
def test_streams_of_64_bits_are_warned_of_once(folder, streams, make):
    wide = {name: DenseDataset(folder / name) for name in ("long", "double")}
    with pytest.warns(PrecisionWarning, match=r"\{'long': 'int64', 'double': 'float64'\}") as caught:
        loader = make({**streams, **wide}, batch_size=4)
    assert caught[0].filename == __file__
    with warnings.catch_warnings(), loader:
        warnings.simplefilter("error")
        assert next(loader)["long"].dtype == "int32"
        make({**streams, "r": Flat(RaggedDataset(folder / "r"))}, batch_size=4, indices=True).close()
        with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
            make(wide, batch_size=4).close()
