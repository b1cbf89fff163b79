"""One call of a sampler: the record numbers of a batch.

The baseline is what people write without a sampler, ``rng.integers``, in every mode; nothing
in NumPy draws without replacement for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from loaderx.sampler import Sampler

from ..bench import Bench
from ..case import OURS, Case
from ..loops import repeated

_LENGTH = 1_000_000
_BATCHES = (256, 1024, 8192)
_MODES = {
    "sequential": Sampler.Mode.SEQUENTIAL,
    "iid": Sampler.Mode.IID,
    "cyclic": Sampler.Mode.CYCLIC,
}


def cases(bench: Bench) -> Iterator[Case]:
    """Yield every mode at every batch size."""
    for mode, number in _MODES.items():
        for batch in _BATCHES:
            case = Case(f"{mode}, batch {batch}", baseline="numpy")
            case.add(OURS, repeated(Sampler(_LENGTH, batch, number).next))
            rng = np.random.default_rng(42)
            case.add("numpy", repeated(partial(rng.integers, 0, _LENGTH, batch)))
            bench.enter_loaderx(case, "sampler", length=_LENGTH, batch=batch, mode=int(number))
            if mode != "cyclic":
                case.expect("numpy", 2.0)
            yield case
