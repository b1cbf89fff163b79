"""The trained model of ``examples/text_classification.py`` scoring held-out texts, one case for each kind of table."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch  # here, so that it is no part of a case's memory

from ..loops import Run, repeated

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))

import text_classification

__all__ = ["CASES"]


@contextmanager
def _model(kind: str, data: str) -> Iterator[Run]:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    test = torch.load(Path(data) / "test.pt")
    model = text_classification.opened(Path(data), kind)

    def score() -> None:
        for ids, offsets, _labels in test:
            model(ids, offsets)

    with torch.inference_mode():
        yield repeated(score)


CASES = {kind: partial(_model, kind) for kind in ("mapped", "resident")}
