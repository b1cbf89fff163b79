"""Encode a data set once, store what the encoder makes of it, and train on that.

    pip install '.[jax,examples]' flax optax
    python examples/jax_latents.py [--data DIR] [--steps N]

Trains a small Flax autoencoder on handwritten digits, encodes the store of images batch by batch,
writes the latents to a new store in bfloat16, and trains a classifier that sees nothing but latents. Memory
holds a few batches at a time, however large the stores are. Ends with a line that begins with OK, or
with an exit status other than 0.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from quickstart import check, real_images

from loaderx.collate import Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.jax import DeviceLoader, prefetch_to_device
from loaderx.sampler import Sampler

BATCH, SEED, CHANNELS = 200, 42, 4
SHUFFLED = Sampler.Mode.CYCLIC


class Encoder(nn.Module):
    """Images (batch, height, width) of uint8 to latents (batch, height / 4, width / 4, channels)."""

    @nn.compact
    def __call__(self, images):
        x = images[..., None].astype(jnp.float32) / 255
        x = nn.relu(nn.Conv(16, (3, 3), strides=2)(x))
        return nn.Conv(CHANNELS, (3, 3), strides=2)(x)


class Decoder(nn.Module):
    """Latents to images of floats."""

    @nn.compact
    def __call__(self, latents):
        x = nn.relu(nn.ConvTranspose(16, (3, 3), strides=(2, 2))(latents))
        return nn.ConvTranspose(1, (3, 3), strides=(2, 2))(x)[..., 0]


class Classifier(nn.Module):
    """Latents to the scores of ten classes."""

    @nn.compact
    def __call__(self, latents):
        x = latents.astype(jnp.float32).reshape(len(latents), -1)
        return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


encoder, decoder, classifier = Encoder(), Decoder(), Classifier()


@jax.jit
def encode(params, images):
    """Return latents as they are stored: half the bytes of float32."""
    return encoder.apply(params, images).astype(jnp.bfloat16)


def rebuilding(params, batch):
    """Return the error of images that went through the autoencoder."""
    rebuilt = decoder.apply(params[1], encoder.apply(params[0], batch["image"]))
    return jnp.mean((rebuilt - batch["image"] / 255) ** 2)


def classifying(params, batch):
    """Return the cross entropy of the classifier on latents."""
    scores = classifier.apply(params, batch["latent"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["label"]).mean()


def fit(loss, params, streams: dict, steps: int):
    """Minimise a loss over shuffled batches; return the parameters, and the losses of the first and the last."""
    optimizer = optax.adam(2e-3)

    @jax.jit
    def update(params, state, batch):
        value, slopes = jax.value_and_grad(loss)(params, batch)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(params, updates), state, value

    state, values = optimizer.init(params), []
    with DeviceLoader(streams, batch_size=BATCH, mode=SHUFFLED, seed=SEED) as loader:
        for _ in range(steps):
            params, state, value = update(params, state, next(loader))
            values.append(value)
    return params, float(values[0]), float(values[-1])


def latents(params, images: DenseDataset) -> Iterator[np.ndarray]:
    """Yield the latents of all records in their order, encoding a batch at a time."""
    with DataLoader({"image": images}, batch_size=BATCH) as loader:
        for batch in prefetch_to_device(loader.epoch()):
            yield from np.asarray(encode(params, batch["image"]))


def accuracy(params, streams: dict) -> float:
    """Return how often the classifier is right."""
    predict = jax.jit(lambda latents: classifier.apply(params, latents).argmax(axis=1))
    right = count = 0
    with DataLoader(streams, batch_size=BATCH) as loader:
        for batch in prefetch_to_device(loader.epoch()):
            right += int((predict(batch["latent"]) == batch["label"]).sum())
            count += len(batch["label"])
    return right / count


def convert(data: Path) -> dict[str, dict[str, DenseDataset]]:
    """Write images and labels in two parts and return their datasets."""
    name, images, labels = real_images()
    order = np.random.default_rng(SEED).permutation(len(images))
    held_out = len(images) // 5 // BATCH * BATCH
    last = len(images) // BATCH * BATCH  # whole batches, which any number of devices up to eight can share
    sets = {}
    for part, picked in (("test", order[:held_out]), ("train", order[held_out:last])):
        from_numpy(data / part / "images", images[picked], exist_ok=False)
        from_numpy(data / part / "labels", labels[picked].astype(np.int32), "raw", exist_ok=False)
        sets[part] = {kind: DenseDataset(data / part / kind) for kind in ("images", "labels")}
    print(f"{name}: {last - held_out} to train on, {held_out} held out; {jax.local_device_count()} device(s)")
    return sets


def run(data: Path, steps: int) -> None:
    """Convert, train the autoencoder, encode, and train on the latents."""
    sets = convert(data)
    shape = sets["train"]["images"].item_shape
    keys = jax.random.split(jax.random.key(SEED), 3)
    blank = jnp.zeros((1, *shape), jnp.uint8)
    encoder_params = encoder.init(keys[0], blank)
    latent = encoder.apply(encoder_params, blank)
    params = encoder_params, decoder.init(keys[1], latent)
    params, before, after = fit(rebuilding, params, {"image": sets["train"]["images"]}, steps)
    check(after < before, "the autoencoder did not learn")
    print(f"autoencoder: error {before:.4f} to {after:.4f} in {steps} steps")

    streams = {}
    for part, stores in sets.items():
        path = data / part / "latents"
        # One record at a time, in one go: the store is there when all of it is.
        count = from_iterator(path, latents(params[0], stores["images"]), exist_ok=False)
        check(count == len(stores["images"]), "there are not as many latents as images")
        store = RaggedDataset(path)
        # Every record has the same number of rows, so nothing is ever filled up.
        streams[part] = {"latent": Pad(store, max_len=latent.shape[1]), "label": stores["labels"]}
        print(f"{part}: {count} latents of {latent.shape[1:]}, {store.dtype}")

    again = np.asarray(encode(params[0], sets["test"]["images"][:BATCH]))
    stored = np.stack(streams["test"]["latent"].dataset[:BATCH])
    check(np.array_equal(again.view(np.uint16), stored.view(np.uint16)), "stored latents are not those of the encoder")

    head, before, after = fit(classifying, classifier.init(keys[2], latent), streams["train"], steps)
    check(after < before, "the classifier did not learn")
    print(f"classifier on latents: loss {before:.3f} to {after:.3f} in {steps} steps")
    right = accuracy(head, streams["test"])
    check(right > 0.5, f"only {right:.1%} right")
    print(f"OK: trained on stored latents, {right:.1%} of held-out digits right")


def main() -> None:
    """Run the whole example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="new directory for the stores; default: a temporary one")
    parser.add_argument("--steps", type=int, default=300, help="training steps of each network")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps must be at least 1")
    with tempfile.TemporaryDirectory() as scratch:
        run(options.data or Path(scratch), options.steps)


if __name__ == "__main__":
    main()
