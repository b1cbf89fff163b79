"""The same small network three times: for PyTorch, for JAX, and in plain NumPy.

Each class takes batches as the DataLoader hands them over: uint8 images of shape
(batch, height, width) and int64 labels of shape (batch,). This is no program: the other examples import it.
"""

from __future__ import annotations

import importlib.util

import numpy as np

__all__ = ["BACKENDS", "JaxModel", "NumpyModel", "TorchModel", "installed"]

HIDDEN, CLASSES, RATE = 64, 10, 0.2


def _initial(pixels: int) -> list[np.ndarray]:
    """Return the weights that every backend starts from."""
    rng = np.random.default_rng(1)
    w1 = rng.normal(0, (2 / pixels) ** 0.5, (pixels, HIDDEN))
    w2 = rng.normal(0, (2 / HIDDEN) ** 0.5, (HIDDEN, CLASSES))
    return [a.astype(np.float32) for a in (w1, np.zeros(HIDDEN), w2, np.zeros(CLASSES))]


class TorchModel:
    """PyTorch: ``torch.from_numpy`` takes a batch without copying it."""

    def __init__(self, pixels: int) -> None:
        import torch

        self._torch = torch
        w1, b1, w2, b2 = map(torch.from_numpy, _initial(pixels))
        first, second = torch.nn.Linear(pixels, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)
        with torch.no_grad():
            for layer, weight, bias in ((first, w1, b1), (second, w2, b2)):
                layer.weight.copy_(weight.T)
                layer.bias.copy_(bias)
        self._net = torch.nn.Sequential(torch.nn.Flatten(), first, torch.nn.ReLU(), second)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=RATE)

    def _logits(self, images: np.ndarray):
        return self._net(self._torch.from_numpy(images).float() / 255)

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Take one training step."""
        cross_entropy = self._torch.nn.functional.cross_entropy
        loss = cross_entropy(self._logits(images), self._torch.from_numpy(labels))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return the scores of each class, shape (batch, classes)."""
        with self._torch.no_grad():
            return self._logits(images).numpy()


class JaxModel:
    """JAX: a batch goes straight into a jitted function."""

    def __init__(self, pixels: int) -> None:
        import jax
        import jax.numpy as jnp

        def forward(weights, images):
            w1, b1, w2, b2 = weights
            flat = images.reshape(len(images), -1).astype(jnp.float32) / 255
            return jax.nn.relu(flat @ w1 + b1) @ w2 + b2

        def loss(weights, images, labels):
            scores = jax.nn.log_softmax(forward(weights, images))
            return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()

        @jax.jit
        def step(weights, images, labels):
            slopes = jax.grad(loss)(weights, images, labels)
            return jax.tree.map(lambda w, g: w - RATE * g, weights, slopes)

        self._weights = [jnp.asarray(w) for w in _initial(pixels)]
        self._step, self._forward = step, jax.jit(forward)

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Take one training step."""
        self._weights = self._step(self._weights, images, labels)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return the scores of each class, shape (batch, classes)."""
        return np.asarray(self._forward(self._weights, images))


class NumpyModel:
    """NumPy alone, for an environment with no framework: the gradients are written out."""

    def __init__(self, pixels: int) -> None:
        self._weights = _initial(pixels)

    def _forward(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        w1, b1, w2, b2 = self._weights
        flat = images.reshape(len(images), -1).astype(np.float32) / 255
        hidden = np.maximum(flat @ w1 + b1, 0)
        return flat, hidden, hidden @ w2 + b2

    def step(self, images: np.ndarray, labels: np.ndarray) -> None:
        """Take one training step."""
        w1, b1, w2, b2 = self._weights
        flat, hidden, scores = self._forward(images)
        slope = np.exp(scores - scores.max(axis=1, keepdims=True))
        slope /= slope.sum(axis=1, keepdims=True)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= len(labels)
        inner = (slope @ w2.T) * (hidden > 0)
        w2 -= RATE * (hidden.T @ slope)
        b2 -= RATE * slope.sum(axis=0)
        w1 -= RATE * (flat.T @ inner)
        b1 -= RATE * inner.sum(axis=0)

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return the scores of each class, shape (batch, classes)."""
        return self._forward(images)[2]


BACKENDS = {"torch": TorchModel, "jax": JaxModel, "numpy": NumpyModel}


def installed() -> str:
    """Return the first backend that this environment has."""
    return next(name for name in BACKENDS if importlib.util.find_spec(name))
