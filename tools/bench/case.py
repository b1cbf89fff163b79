"""What is measured: a case, its contestants, and the ratios it is expected to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from .loops import Run

__all__ = ["OURS", "Case", "Target"]

OURS = "loaderx-go"


@dataclass(frozen=True)
class Target:
    """A ratio that a contestant should reach: `contestant` at least `at_least` times `against`."""

    contestant: str
    against: str
    at_least: float


@dataclass
class Case:
    """One question put to several contestants.

    Parameters
    ----------
    name : str
        Unique within its section.
    baseline : str
        The contestant that the others are divided by.
    unit : str, optional
        What one iteration handles, such as ``"calls"`` or ``"B"``; shown per second.
    amount : float, optional
        How many units one iteration handles.
    show_memory : bool, optional
        Whether the report tells the memory of contestants that have a process of their own; for cases where
        each has one to itself.
    """

    name: str
    baseline: str
    unit: str = "calls"
    amount: float = 1.0
    show_memory: bool = False
    contestants: dict[str, Run] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    memory: dict[str, Callable[[], Mapping[str, int]]] = field(default_factory=dict)
    _cleanup: ExitStack = field(default_factory=ExitStack, repr=False)

    def add(self, name: str, run: Run) -> None:
        """Enter a contestant; `run(n)` makes n iterations and returns the seconds they took."""
        if name in self.contestants:
            raise ValueError(f"case {self.name!r} has two contestants called {name!r}")
        self.contestants[name] = run

    def skip(self, name: str, reason: str) -> None:
        """Say why a contestant does not take part."""
        self.skipped[name] = reason

    def expect(self, against: str, at_least: float, contestant: str = OURS) -> None:
        """Declare a target; it is reported, never enforced here."""
        self.targets.append(Target(contestant, against, at_least))

    def on_close(self, cleanup: Callable[[], object]) -> None:
        """Call `cleanup` when the case is over."""
        self._cleanup.callback(cleanup)

    def close(self) -> None:
        """Release what the contestants hold."""
        self._cleanup.close()
