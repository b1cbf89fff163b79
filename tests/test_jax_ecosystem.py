"""`loaderx.jax`: batches on devices, sharded, ahead of their use, and resumable."""

import json
import socket
import subprocess

import jax
import numpy as np
import pytest

from loaderx.collate import Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, ClosedError, DtypeError
from loaderx.jax import DeviceIterator, DeviceLoader, batch_sharding, prefetch_to_device
from tests.processes import command, environment

N = 100
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
OPTIONS = {"batch_size": 16, "mode": 2, "seed": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("jax")
    from_numpy(path / "x", np.arange(N * 64, dtype=np.float32).reshape(N, 64))
    from_numpy(path / "y", np.arange(N, dtype=np.int32), codec="raw")
    from_iterator(path / "r", [np.full(1 + i % 4, i, np.int32) for i in range(N)])
    return path


@pytest.fixture
def streams(folder):
    with DenseDataset(folder / "x") as x, DenseDataset(folder / "y") as y:
        yield {"x": x, "y": y}


def labels(batches, count):
    return [next(batches)["y"].tolist() for _ in range(count)]


def expected(streams, count, **options):
    with DataLoader({"y": streams["y"]}, **options) as loader:
        return labels(loader, count)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_batches_are_the_loader_s_on_the_devices(streams, size):
    want = expected(streams, 12, **OPTIONS)
    with DeviceLoader(streams, size=size, **OPTIONS) as loader:
        kept = [next(loader) for _ in range(12)]
    for batch, y in zip(kept, want, strict=True):
        assert isinstance(batch["x"], jax.Array) and batch["x"].sharding.device_set == set(jax.local_devices())
        assert batch["y"].tolist() == y
        np.testing.assert_array_equal(batch["x"][:, 0], np.array(y) * 64)


def test_the_next_batch_is_begun_while_one_is_in_use(streams):
    asked = []

    def source():
        for step in range(4):
            asked.append(step)
            yield {"x": np.full(8, step)}

    batches = prefetch_to_device(source(), size=2)
    for step in range(4):
        assert next(batches)["x"][0] == step
        assert asked == list(range(min(step + 2, 4)))
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("k", [0, 1, 7])
def test_states_hold_the_first_batch_that_was_not_handed_out(streams, size, k):
    want = expected(streams, k + 5, **OPTIONS)
    with DeviceLoader(streams, size=size, **OPTIONS) as loader:
        assert labels(loader, k) == want[:k]
        assert loader.step == k
        state = json.dumps(loader.state_dict())
    with DeviceLoader(streams, size=2, **OPTIONS) as loader, DataLoader(streams, **OPTIONS) as plain:
        next(loader)
        loader.load_state_dict(json.loads(state))
        assert json.dumps(loader.state_dict()) == state
        assert labels(loader, 5) == want[k:]
        loader.seek(k + 1)
        assert labels(loader, 4) == want[k + 1 :]
        plain.load_state_dict(json.loads(state))
        assert labels(plain, 5) == want[k:]


def test_an_error_comes_at_its_step_and_not_before(streams):
    def transform(batch):
        if 48 in batch["y"]:
            raise KeyError("no such label")
        return batch

    with DeviceLoader(streams, size=3, batch_size=16, mode=0, transform=transform) as loader:
        assert [y[0] for y in labels(loader, 3)] == [0, 16, 32]
        assert loader.step == 3
        with pytest.raises(KeyError, match="no such label"):
            next(loader)
        with pytest.raises(ClosedError, match="step 3 failed with KeyError"):
            next(loader)


def test_one_pass_and_trees_of_any_form(streams):
    with DataLoader(streams, batch_size=16) as loader, prefetch_to_device(loader.epoch()) as batches:
        assert sum(labels(batches, 7), []) == list(range(N))  # noqa: RUF017
        with pytest.raises(DtypeError, match="generator has no state_dict"):
            batches.state_dict()
    tree = {"a": [np.zeros(8), (np.ones((8, 2)), 3)], "b": np.float32(1)}
    got = next(prefetch_to_device([tree]))
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(got))


def test_padded_streams(folder):
    with RaggedDataset(folder / "r") as r, DeviceLoader({"r": Pad(r, pad_value=-1)}, batch_size=4, mode=0) as loader:
        batch = next(loader)
        assert batch["r"].tolist()[1] == [1, 1, -1, -1]
        assert batch["r_lengths"].tolist() == [1, 2, 3, 4]


def test_what_is_refused(streams):
    for arguments, error, words in (
        ({"size": 0}, ArgumentError, "size must be"),
        ({"sharding": "batch"}, DtypeError, "must be a jax.sharding.Sharding"),
        ({"rank": 0}, ArgumentError, "rank and world_size go together"),
        ({"output": "torch"}, ArgumentError, "neither output nor pin_memory"),
        ({"batch_size": 0}, ArgumentError, "batch_size must be"),
    ):
        with pytest.raises(error, match=words):
            DeviceLoader(streams, **arguments)
    with pytest.raises(ArgumentError, match="devices is empty"):
        batch_sharding([])
    with pytest.raises(DtypeError, match=r"\['s'\]: JAX takes no <U1\(2,\)"):
        next(prefetch_to_device([{"s": np.array(["a", "b"])}]))


def test_closing(streams):
    loader = DeviceLoader(streams, **OPTIONS)
    assert loader
    with pytest.raises(TypeError, match=r"has no length; .* or one pass, with epoch\(\)"):
        len(loader)
    next(loader)
    loader.close()
    loader.close()
    assert loader.closed and loader.loader.closed
    with pytest.raises(ClosedError):
        next(loader)
    with pytest.raises(ClosedError):
        loader.seek(0)
    batches = DeviceIterator(iter([{"x": np.zeros(8)}]))
    batches.close()
    with pytest.raises(ClosedError):
        next(batches)


def test_four_devices_share_each_batch_and_kept_arrays_stay_as_they_are(folder, python):
    code = """
        import sys
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P, SingleDeviceSharding
        from loaderx.dataset import DenseDataset
        from loaderx.dataloader import DataLoader
        from loaderx.jax import DeviceLoader, batch_sharding, prefetch_to_device
        assert len(jax.local_devices()) == 4
        streams = {name: DenseDataset(f"{sys.argv[1]}/{name}") for name in "xy"}
        options = dict(batch_size=32, mode=2, seed=7)

        with DataLoader(streams, **options) as plain, DeviceLoader(streams, size=3, **options) as loader:
            norm = jax.jit(lambda x: (x * x).sum(axis=1))
            kept = []
            for step in range(60):
                batch, want = next(loader), next(plain)
                want = {name: array.copy() for name, array in want.items()}
                kept.append((batch, norm(batch["x"]), want))
                if step % 3:
                    del kept[-1]  # some memory goes round, some does not
            for batch, norms, want in kept:
                for name in "xy":
                    parts = batch[name].addressable_shards
                    assert [part.data.shape[0] for part in parts] == [8] * 4
                    assert {part.device for part in parts} == set(jax.devices())
                    np.testing.assert_array_equal(batch[name], want[name])
                    np.testing.assert_array_equal(np.concatenate([part.data for part in parts]), want[name])
                np.testing.assert_allclose(norms, (want["x"] ** 2).sum(axis=1), rtol=1e-5)

        def refused(call, *words):
            try:
                call()
            except ValueError as error:
                assert all(word in str(error) for word in words), error
            else:
                raise AssertionError("not refused")

        refused(lambda: DeviceLoader(streams, batch_size=30), "30 records can't be split evenly over 4 devices")
        with DataLoader(streams, batch_size=30) as loader:
            refused(lambda: next(prefetch_to_device(loader, remainder="error")),
                    "['x']: float32(30, 64) can't be split evenly over 4 devices, and remainder is 'error'")
            batches = prefetch_to_device(loader.epoch(), sharding=batch_sharding(jax.local_devices()[:2]))
            assert [len(batch["y"]) for batch in batches] == [30, 30, 30, 10]

        mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
        for sharding, shape in ((NamedSharding(mesh, P("data")), (16, 64)), (NamedSharding(mesh, P()), (32, 64)),
                                (NamedSharding(mesh, P(("data", "model"))), (8, 64)),
                                (SingleDeviceSharding(jax.devices()[2]), (32, 64))):
            with DeviceLoader(streams, sharding=sharding, batch_size=32) as loader:
                assert next(loader)["x"].addressable_shards[0].data.shape == shape
        print("done")
    """
    assert python(code, folder, **FOUR) == "done\n"


def test_two_processes_make_one_global_batch(folder):
    code = """
        import sys
        import jax, jax.numpy as jnp, numpy as np
        from loaderx.dataset import DenseDataset
        from loaderx.dataloader import DataLoader
        from loaderx.jax import DeviceLoader, batch_sharding
        folder, address, rank = sys.argv[1:]
        jax.distributed.initialize(address, 2, int(rank))
        assert len(jax.devices()) == 8 and jax.process_count() == 2
        streams = {name: DenseDataset(f"{folder}/{name}") for name in "xy"}
        total = jax.jit(lambda x: x.sum())
        options = dict(mode=2, seed=7)
        with DataLoader(streams, batch_size=32, **options) as whole, \\
                DeviceLoader(streams, batch_size=16, **options) as loader:
            for _ in range(6):
                batch, want = next(loader), next(whole)
                assert batch["y"].shape == (32,) and len(batch["y"].addressable_shards) == 4
                for part in batch["y"].addressable_shards:
                    np.testing.assert_array_equal(part.data, want["y"][part.index])
                assert total(batch["y"]) == want["y"].sum()
            assert loader.state_dict()["world_size"] == 2
            for remainder in ("replicate", "error"):
                try:
                    loader.epoch(remainder)
                except ValueError as error:
                    assert "has 4 records of 32, which 2 processes can't make one array of" in str(error), error
                else:
                    raise AssertionError("not refused")
            batches = list(loader.epoch("drop"))
            parts = [part for batch in batches for part in batch["y"].addressable_shards]
            assert len(batches) == 3 and len(parts) == 12 and {part.data.shape for part in parts} == {(4,)}
            assert [int(total(batch["y"])) for batch in batches] == [sum(range(k, k + 32)) for k in (0, 32, 64)]
        try:
            DeviceLoader(streams, batch_size=6)
        except ValueError as error:
            assert "12 records can't be split evenly over 8 devices" in str(error), error
        # Of devices of its own a process makes batches of its own part.
        with DeviceLoader(streams, sharding=batch_sharding(jax.local_devices()), batch_size=16, mode=0) as loader:
            assert next(loader)["y"].tolist() == list(range(16 * int(rank), 16 * int(rank) + 16))
        print("done")
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    ranks = [
        subprocess.Popen(command(code, folder, address, rank), **pipes, text=True, env=environment(**FOUR))
        for rank in range(2)
    ]
    try:
        done = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    # Before it JAX prints what it is connected to.
    assert [out.splitlines()[-1:] for out, _err in done] == [["done"], ["done"]], done
