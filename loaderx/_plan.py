"""Which records one rank reads at which step: the engine's plans, seen from Python."""

import json
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from . import _engine

__all__ = ["Plan"]

_HALF = (1 << 64) - 1


@dataclass(frozen=True)
class Plan:
    """One rank's part of a run; an immutable value.

    Parameters
    ----------
    records, batch_size, mode, seed, rank, world_size : int
        `batch_size` is that of one rank.
    from_step, samples : int
        Step `from_step` begins after that many samples of the global order. Zeros, unless the
        run was resumed with other sizes.
    once : bool
        One pass in the order of the records instead of an endless stream.
    """

    records: int
    batch_size: int
    mode: int = 0
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    from_step: int = 0
    samples: int = 0
    once: bool = False

    def config(self):
        """Return the plan as the engine reads it."""
        return {
            "Length": self.records,
            "Batch": self.batch_size,
            "Mode": int(self.mode),
            "Seed": self.seed & _HALF,
            "Rank": self.rank,
            "World": self.world_size,
            "FromStep": self.from_step,
            "FromHi": self.samples >> 64,
            "FromLo": self.samples & _HALF,
            "Once": self.once,
        }

    @cached_property
    def _text(self):
        raw = np.frombuffer(json.dumps(self.config()).encode(), np.uint8)
        return raw, _engine.address(raw)

    def _call(self, name, *args):
        raw, address = self._text
        return _engine.check(getattr(_engine.lib, name)(address, raw.size, *args))

    def __getstate__(self):
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def most(self):
        """Records in the largest step; raises `ArgumentError` for an impossible plan."""
        return self._call("PlanMost")

    @cached_property
    def steps(self):
        """How many steps there are, counted from 0."""
        return self._call("PlanSteps")

    def position(self, step):
        """Return how many samples all ranks together draw before a step."""
        out = np.zeros(2, np.uint64)
        self._call("PlanPosition", step, _engine.address(out))
        return int(out[0]) << 64 | int(out[1])

    def indices(self, step):
        """Return the records of a step, int64."""
        out = np.empty(self.most, np.int64)
        return out[: self._call("PlanFill", step, _engine.address(out), out.size)]

    def resumed(self, step, samples):
        """Return the plan that is at that position at that step."""
        plain = self.restarted()
        if plain.position(step) == samples:
            return plain
        return replace(self, from_step=step, samples=samples)

    def restarted(self):
        """Return the plan of a run that had these sizes from its first step on."""
        return replace(self, from_step=0, samples=0)

    def pass_(self):
        """Return the plan of one pass over the records, in their order."""
        return replace(self, from_step=0, samples=0, once=True)
