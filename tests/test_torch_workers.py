"""Datasets under `torch.utils.data.DataLoader` with worker processes."""

import pytest

# What a user would write, in a process of its own: a hang there ends with the timeout.
CODE = """
    import sys, threading
    import numpy as np, torch
    from torch.utils.data import DataLoader
    from loaderx.converter import from_iterator, from_numpy
    from loaderx.dataset import DenseDataset, RaggedDataset

    class All(torch.utils.data.Dataset):
        def __init__(self, path):
            self.images, self.labels = DenseDataset(path + "/images"), DenseDataset(path + "/labels")
            self.records = RaggedDataset(path + "/records")
        def __len__(self):
            return len(self.labels)
        def __getitem__(self, index):
            return self.images[index], self.labels[index], self.records[index]

    def collate(batch):
        images, labels, records = zip(*batch)
        return torch.from_numpy(np.stack(images)), torch.tensor(labels), [torch.from_numpy(r) for r in records]

    def main(path, method, used):
        images = np.arange(1000 * 12, dtype=np.float32).reshape(1000, 3, 4)
        labels = np.arange(1000, dtype=np.int64)
        records = [np.full(1 + i % 5, i) for i in range(1000)]
        from_numpy(path + "/images", images)
        from_numpy(path + "/labels", labels, codec="raw")
        from_iterator(path + "/records", records)
        data = All(path)

        if used:  # the engine has run in several threads of the parent, and goes on in some
            def work():
                for i in range(200):
                    data.images[np.arange(64) * 7 % 1000], data.records[[i, i]]
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads[:2]: thread.join()

        options = dict(batch_size=64, num_workers=4, multiprocessing_context=method)
        # Starting a worker takes seconds where it imports torch: they stay for both epochs.
        loader = DataLoader(data, shuffle=True, persistent_workers=True, collate_fn=collate, **options)
        for epoch in range(2):
            seen = []
            for x, y, several in loader:
                assert torch.equal(x, torch.from_numpy(images[y]))
                for record, i in zip(several, y.tolist(), strict=True):
                    assert record.tolist() == records[i].tolist()
                seen.append(y)
            assert torch.cat(seen).sort().values.tolist() == labels.tolist()
        if method == "fork":  # cheap enough for new workers in each epoch, and the loader's own batches
            loader = DataLoader(data.images, **options)
            for epoch in range(2):
                assert torch.equal(torch.cat(list(loader)), torch.from_numpy(images))
        assert data.images[999, 2, 3] == 11999
        print("done", len(seen))

    if __name__ == "__main__":
        main(sys.argv[1], sys.argv[2], sys.argv[3] == "used")
"""


@pytest.mark.parametrize(
    ("method", "used"), [("fork", "fresh"), ("fork", "used"), ("spawn", "used"), ("forkserver", "used")]
)
def test_two_epochs_with_four_workers(tmp_path, script, method, used):
    import torch  # noqa: F401 - what is tested uses it

    assert script(CODE, tmp_path, method, used, timeout=600) == "done 16\n"


def test_workers_inherit_a_dataset_that_was_read_in_this_process(tmp_path, script):
    code = """
        import sys, os
        import numpy as np
        from loaderx.converter import from_numpy
        from loaderx.dataset import DenseDataset
        from_numpy(sys.argv[1] + "/s", np.arange(100))
        ds = DenseDataset(sys.argv[1] + "/s")
        assert ds[5] == 5
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                ok = ds[[7, 99]].tolist() == [7, 99] and len(list(ds)) == 100
                ds.close()
                os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
            assert ds[6] == 6
        print("done")
    """
    assert script(code, tmp_path) == "done\n"
