"""Training that is killed in the middle of an epoch and goes on as if nothing had happened.

    pip install '.[torch,examples]'
    python examples/torch_resume.py [--data DIR] [--steps N] [--kill-at K]

Trains a small network on handwritten digits three times over: once without a break; then in a
process that saves a checkpoint and is killed a few steps later; then in a new process that goes on from
the checkpoint. The losses of all steps must be the same bits. Ends with a line that begins with OK, or
with an exit status other than 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import needs_torch  # noqa: F401 - before torch, whose absence it explains
import torch
from quickstart import check, real_images
from torch import nn
from torch.utils.data import DataLoader

from loaderx.converter import from_numpy
from loaderx.dataset import DenseDataset
from loaderx.sampler import Sampler
from loaderx.torch import IterableLoader

BATCH, SEED = 256, 42


def convert(data: Path) -> tuple[int, int]:
    """Write images and labels, unless they are there; return the number of records and of steps in an epoch."""
    if not (data / "labels").exists():
        _name, images, labels = real_images()
        from_numpy(data / "images", images, exist_ok=False)
        from_numpy(data / "labels", labels, "raw", exist_ok=False)
    with DenseDataset(data / "labels") as labels:
        return len(labels), len(labels) // BATCH


class Run:
    """Everything that training consists of: what a checkpoint must bring back."""

    def __init__(self, data: Path) -> None:
        torch.manual_seed(SEED)
        streams = {"image": DenseDataset(data / "images"), "label": DenseDataset(data / "labels")}
        pixels = streams["image"].shape[1] * streams["image"].shape[2]
        # Dropout draws random numbers, so their state belongs to the checkpoint.
        layers = nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.loader = IterableLoader(streams, batch_size=BATCH, mode=Sampler.Mode.CYCLIC, seed=SEED)

    def save(self, path: Path) -> None:
        """Write a checkpoint so that it is never seen half-written."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.loader.state_dict(),
            "random": torch.get_rng_state(),
        }
        torch.save(state, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was written."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])

    def step(self, batch: dict[str, torch.Tensor]) -> float:
        """Train on one batch and return the loss."""
        scores = self.model(batch["image"].float() / 255)
        loss = nn.functional.cross_entropy(scores, batch["label"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(data: Path, steps: int, checkpoint: Path, kill_at: int | None) -> dict[int, str]:
    """Train up to a step, from the checkpoint if there is one; return the losses' exact values."""
    run = Run(data)
    if checkpoint.exists():
        run.load(checkpoint)
    losses = {}
    with run.loader:
        # The loader's threads read ahead; worker processes are not needed. When torch's loader begins it draws
        # a number, which without a generator of its own would shift those of the dropout.
        for batch in DataLoader(run.loader, batch_size=None, generator=torch.Generator()):
            number = run.loader.step - 1
            losses[number] = run.step(batch).hex()
            if run.loader.step == kill_at:
                run.save(checkpoint)
            if kill_at is not None and run.loader.step == kill_at + 3:
                os.kill(os.getpid(), signal.SIGKILL)  # no clean-up, and batches prepared ahead
            if run.loader.step == steps:
                return losses
    raise AssertionError("the stream is endless")


def in_process(data: Path, *options: object) -> subprocess.CompletedProcess:
    """Run this program's training alone in a new process."""
    command = [sys.executable, __file__, "--train", "--data", data, *options]
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True)


def main() -> None:
    """Run the whole example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="directory for stores and checkpoint; default: a temporary one")
    parser.add_argument("--steps", type=int, default=120, help="training steps")
    parser.add_argument("--kill-at", type=int, help="the step of the checkpoint; by default two thirds of them")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--checkpoint", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    if options.train:
        print(json.dumps(train(options.data, options.steps, options.checkpoint, options.kill_at)))
        return
    if options.steps < 10:
        parser.error("--steps must be at least 10")
    kill_at = options.kill_at or options.steps * 2 // 3
    if not 0 < kill_at <= options.steps - 4:
        parser.error("--kill-at must leave at least four steps")
    with tempfile.TemporaryDirectory() as scratch:
        compare(options.data or Path(scratch), options.steps, kill_at)


def compare(data: Path, steps: int, kill_at: int) -> None:
    """Train with and without a break and compare every loss."""
    data.mkdir(parents=True, exist_ok=True)
    records, epoch = convert(data)
    kill_at += kill_at % epoch == 0  # a checkpoint between two epochs would prove less
    print(f"{records} records, {epoch} steps an epoch; checkpoint at step {kill_at}, {kill_at % epoch} into an epoch")
    checkpoint = data / "checkpoint.pt"
    checkpoint.unlink(missing_ok=True)

    length = "--steps", steps, "--checkpoint"
    want = train(data, steps, data / "none.pt", None)
    killed = in_process(data, *length, checkpoint, "--kill-at", kill_at)
    check(killed.returncode == -signal.SIGKILL, f"the process was to be killed, and ended with {killed.returncode}")
    check(checkpoint.exists(), "there is no checkpoint")
    print(f"killed three steps later; the checkpoint has {checkpoint.stat().st_size:,} bytes")
    resumed = in_process(data, *length, checkpoint)
    check(resumed.returncode == 0, "the resumed training ended with an error")

    got = {int(step): loss for step, loss in json.loads(resumed.stdout).items()}
    check(list(got) == list(range(kill_at, steps)), "the resumed run made other steps")
    differs = [step for step in got if got[step] != want[step]]
    check(not differs, f"losses differ from step {differs[:1]} on")
    first, last = (float.fromhex(want[step]) for step in (0, steps - 1))
    check(last < first, "the loss did not fall")
    print(f"OK: {len(got)} losses after the checkpoint are those of the run without a break; {first:.3f} to {last:.3f}")


if __name__ == "__main__":
    main()
