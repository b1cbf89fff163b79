"""Page-locked batches, which nobody but torch's allocator may use again.

There is no GPU here: ordinary tensors stand in for those of the allocator, and whoever looks at
their memory for the copies that go on in the background.
"""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch

from loaderx._output import Output
from loaderx.collate import Flat, Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import OutOfMemoryError

N = 300


@pytest.fixture
def allocated(monkeypatch):
    """What was allocated so far: weak references to the memory."""
    made = []

    def page_locked(self, nbytes):
        memory = np.zeros(nbytes, np.uint8)  # lives as long as the tensor's storage
        made.append(weakref.ref(memory))
        return torch.from_numpy(memory)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Output, "_page_locked", page_locked)
    return made


def live(allocated):
    return [memory for ref in allocated if (memory := ref()) is not None]


@pytest.fixture
def streams(tmp_path):
    from_numpy(tmp_path / "x", np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3))
    from_numpy(tmp_path / "y", np.arange(N))
    from_numpy(tmp_path / "b", np.arange(N) % 3 == 0)
    from_numpy(tmp_path / "h", np.arange(N).astype(ml_dtypes.bfloat16))
    from_iterator(tmp_path / "r", (np.full(k % 9 + 1, k, np.int16) for k in range(N)))
    dense = {name: DenseDataset(tmp_path / name) for name in "xybh"}
    ragged = RaggedDataset(tmp_path / "r")
    return {**dense, "p": Pad(ragged), "f": Flat(ragged)}


@pytest.mark.parametrize("transform", [None, dict])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_are_tensors_of_the_allocator_s_storage(streams, allocated, num_workers, transform):
    options = {"num_workers": num_workers, "batch_size": 16, "output": "torch", "indices": True}
    with (
        DataLoader(streams, pin_memory=True, transform=transform, **options) as loader,
        DataLoader(streams, **options) as plain,
    ):
        for _ in range(20):
            batch, want = next(loader), next(plain)
            assert batch.keys() == want.keys()
            storages = {memory.ctypes.data for memory in live(allocated)}
            for name, tensor in batch.items():
                assert tensor.dtype == want[name].dtype and torch.equal(tensor, want[name])
                assert tensor.untyped_storage().data_ptr() in storages
                assert tensor.data_ptr() % 64 == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_memory_of_a_batch_is_never_written_again(streams, allocated, num_workers):
    """Whatever became of the batch: a copy may be on its way."""
    copies = []
    with DataLoader(streams, num_workers, 16, pin_memory=True, output="torch") as loader:
        for _, batch in zip(range(40), loader):  # noqa: B905 - endless
            for tensor in batch.values():
                copies.append((tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.clone()))
            del batch, tensor
    for storage, offset, shape, want in copies:
        now = torch.empty(0, dtype=want.dtype).set_(storage, offset, shape)
        assert torch.equal(now, want)


def test_the_loader_lets_go_of_what_it_delivered(streams, allocated):
    with DataLoader(streams, 2, 16, pin_memory=True, output="torch") as loader:
        first = len(live(allocated))
        for _ in range(100):
            next(loader)
        gc.collect()
        assert len(allocated) > 5 * first
        assert len(live(allocated)) <= 2 * first


def test_streams_in_python_are_page_locked_by_a_copy(streams, allocated, monkeypatch):
    class Plain:
        def __len__(self):
            return N

        def __getitems__(self, indices):
            return streams["x"][indices]

    copied = []
    monkeypatch.setattr(Output, "_copied", lambda self, tensor: copied.append(tensor) or tensor)
    with DataLoader({"x": Plain()}, 0, 16, pin_memory=True, output="torch") as loader:
        batch = next(loader)
        assert batch["x"] is copied[0] and len(copied) == 1


@pytest.mark.parametrize(
    ("error", "raised"),
    [(RuntimeError("CUDA error: out of memory"), OutOfMemoryError), (RecursionError(), RecursionError)],
)
def test_only_torch_s_own_refusal_is_taken_for_want_of_memory(streams, monkeypatch, error, raised):
    def page_locked(self, nbytes):
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Output, "_page_locked", page_locked)
    with pytest.raises(raised):
        DataLoader(streams, pin_memory=True, output="torch")
