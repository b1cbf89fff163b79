"""Calibration, interleaved rounds, and the figures made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from .case import Case, Target
from .loops import Run
from .peers.process import PeerError

__all__ = ["CaseResult", "Outcome", "Timing", "calibrate", "measure", "rotation"]

_MAX_ITERATIONS = 10**9


@dataclass(frozen=True)
class Timing:
    """Seconds per iteration of one contestant, one entry a round."""

    iterations: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """Distance between the slowest and the fastest round, as a share of the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


@dataclass(frozen=True)
class Outcome:
    """A target beside the ratio that was measured; `ratio` is None if one of the two is missing."""

    target: Target
    ratio: float | None

    @property
    def met(self) -> bool:
        return self.ratio is not None and self.ratio >= self.target.at_least


@dataclass(frozen=True)
class CaseResult:
    """The timings of a case by contestant, and bytes of memory where these are shown."""

    case: Case
    timings: dict[str, Timing]
    memory: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def ratio(self, contestant: str, against: str | None = None) -> float | None:
        """Return how many times as fast as `against` (the baseline) a contestant's median is."""
        mine = self.timings.get(contestant)
        theirs = self.timings.get(self.case.baseline if against is None else against)
        return None if mine is None or theirs is None else theirs.median / mine.median

    def outcomes(self) -> list[Outcome]:
        return [Outcome(t, self.ratio(t.contestant, t.against)) for t in self.case.targets]


def calibrate(run: Run, seconds: float) -> int:
    """Return how many iterations of `run` last about `seconds`.

    Starts at one iteration and grows until a quarter of the time is reached, so it is the warm-up
    as well: caches, page tables, thread pools and the allocator have settled afterwards.
    """
    n = 1
    while True:
        took = run(n)
        if took >= seconds / 4 or n >= _MAX_ITERATIONS:
            return min(_MAX_ITERATIONS, max(1, round(n * seconds / max(took, 1e-9))))
        growth = 1.2 * seconds / 4 / max(took, 1e-9)
        n = min(_MAX_ITERATIONS, int(n * min(100.0, max(2.0, growth))))


def rotation(names: Sequence[str], rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield the order of each round; everyone comes first, and last, equally often."""
    for r in range(rounds):
        at = r % len(names)
        yield (*names[at:], *names[:at])


def measure(case: Case, rounds: int, seconds: float) -> CaseResult:
    """Run a case's contestants in turn, round by round.

    A peer whose process fails is moved to the case's skipped ones: it must not take the other figures
    with it. Any other exception is a fault of what is measured, and passes through.
    """
    iterations: dict[str, int] = {}
    samples: dict[str, list[float]] = {}

    def drop(name: str, error: PeerError) -> None:
        case.skip(name, str(error))
        iterations.pop(name, None)
        samples.pop(name, None)

    for name, run in case.contestants.items():
        try:
            iterations[name] = calibrate(run, seconds)
            samples[name] = []
        except PeerError as error:
            drop(name, error)
    for order in rotation(list(iterations), rounds) if iterations else ():
        for name in order:
            if name not in iterations:
                continue
            try:
                samples[name].append(case.contestants[name](iterations[name]) / iterations[name])
            except PeerError as error:
                drop(name, error)
    memory = {}
    for name in [n for n in samples if case.show_memory and n in case.memory]:
        try:
            memory[name] = case.memory[name]()
        except PeerError as error:
            drop(name, error)
    timings = {name: Timing(iterations[name], tuple(taken)) for name, taken in samples.items()}
    return CaseResult(case, timings, {name: sizes for name, sizes in memory.items() if sizes})
