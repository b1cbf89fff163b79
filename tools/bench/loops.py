"""The timed loops, the same ones for every contestant, in this process or in a peer's.

A *run* is a callable ``run(n) -> seconds`` that makes ``n`` iterations. Each loop drops a result
before the next call is made, and keeps the garbage collector out of the measurement.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice, repeat
from time import perf_counter

__all__ = ["Run", "each", "over", "repeated"]

Run = Callable[[int], float]


@contextmanager
def _collector_off() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def over(step: Callable[[object], object], pool: Iterable[object]) -> Run:
    """Return a run that calls `step` with the items of `pool` in turn, for ever.

    The pool goes on where the last run stopped, so that no run sees only items whose records are
    still in the processor's cache from the run before.
    """
    items = cycle(pool)

    def run(n: int) -> float:
        some = islice(items, n)
        with _collector_off():
            start = perf_counter()
            for item in some:
                step(item)
            return perf_counter() - start

    return run


def repeated(step: Callable[[], object], lead_in: int = 0) -> Run:
    """Return a run that calls `step` without arguments.

    Parameters
    ----------
    step : callable
    lead_in : int, optional
        Calls made before the clock starts. A loader that prefetches has filled its queue while the
        others were measured; the lead-in empties it, so that only steady state is timed.
    """

    def run(n: int) -> float:
        for _ in repeat(None, lead_in):
            step()
        with _collector_off():
            start = perf_counter()
            for _ in repeat(None, n):
                step()
            return perf_counter() - start

    return run


def each(step: Callable[[], object], before: Callable[[], object]) -> Run:
    """Return a run that calls `before` untimed ahead of every timed call of `step`."""

    def run(n: int) -> float:
        total = 0.0
        for _ in repeat(None, n):
            before()
            with _collector_off():
                start = perf_counter()
                step()
                total += perf_counter() - start
        return total

    return run
