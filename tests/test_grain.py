"""Datasets as sources of Grain, as they are."""

import itertools

import grain
import numpy as np
import pytest

from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset, RaggedDataset

N = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("grain")
    from_numpy(path / "x", np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3))
    from_numpy(path / "y", np.arange(N), codec="raw")
    from_iterator(path / "r", [np.full(1 + i % 4, i) for i in range(N)])
    return path


@pytest.fixture
def x(folder):
    with DenseDataset(folder / "x") as ds:
        yield ds


@pytest.fixture
def y(folder):
    with DenseDataset(folder / "y") as ds:
        yield ds


def test_both_kinds_are_random_access_sources(folder, x):
    with RaggedDataset(folder / "r") as r:
        for source in (x, r):
            assert isinstance(source, grain.sources.RandomAccessDataSource)
            assert len(grain.MapDataset.source(source)) == N
        assert grain.MapDataset.source(r)[6].tolist() == [6, 6, 6]
        lengths = grain.MapDataset.source(r).map(len).batch(50)
        assert lengths[0].tolist() == [1 + i % 4 for i in range(50)]


def test_shuffled_batches(x, y):
    both = grain.experimental.ZipMapDataset([grain.MapDataset.source(x), grain.MapDataset.source(y)])
    seen = []
    for images, numbers in both.shuffle(seed=3).batch(16):
        assert images.dtype == np.float32 and images.shape[1:] == (2, 3)
        np.testing.assert_array_equal(images[:, 0, 0], numbers * 6)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(N)) and seen != sorted(seen)


def test_iterators_resume(y):
    pipeline = grain.MapDataset.source(y).shuffle(seed=5).repeat(2).batch(16).to_iter_dataset()
    batches = iter(pipeline)
    list(itertools.islice(batches, 3))
    state = batches.get_state()
    want = [batch.tolist() for batch in itertools.islice(batches, 4)]
    again = iter(pipeline)
    again.set_state(state)
    assert [batch.tolist() for batch in itertools.islice(again, 4)] == want


def test_worker_processes(folder, script):
    code = """
        import sys
        import grain, numpy as np
        from absl import flags
        from loaderx.dataset import DenseDataset

        def main(path):
            flags.FLAGS.mark_as_parsed()  # absl.app.run does it; Grain's workers ask for it
            x, y = DenseDataset(path + "/x"), DenseDataset(path + "/y")
            assert y[5] == 5  # the engine is in use in this process
            both = grain.experimental.ZipMapDataset([grain.MapDataset.source(x), grain.MapDataset.source(y)])
            options = grain.MultiprocessingOptions(num_workers=2)
            seen = []
            for images, numbers in both.shuffle(seed=3).to_iter_dataset().batch(20).mp_prefetch(options):
                images, numbers = np.array(images), np.array(numbers)
                np.testing.assert_array_equal(images[:, 0, 0], numbers * 6)
                seen += numbers.tolist()
            assert sorted(seen) == list(range(100)), seen
            whole = grain.sharding.ShardOptions(0, 1)
            sampler = grain.samplers.IndexSampler(100, whole, shuffle=True, num_epochs=1, seed=3)
            by_16 = [grain.transforms.Batch(16)]
            loader = grain.DataLoader(data_source=y, sampler=sampler, operations=by_16, worker_count=2)
            assert sorted(np.concatenate([np.array(b) for b in loader]).tolist()) == list(range(100))
            print("done")

        if __name__ == "__main__":
            main(sys.argv[1])
    """
    assert script(code, folder, timeout=300) == "done\n"
