"""The sections: which there are, and how one is added.

A section is a module in ``sections/`` with a docstring whose first line is its title and a generator
``cases(bench)``. Each case is measured while the generator waits in its ``yield``, so files and
datasets can be opened and closed around it. To add a section, write the module and name it here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .bench import Bench
from .case import Case

__all__ = ["SECTIONS", "Section", "load"]

SECTIONS = ("sampler", "store", "loader", "rows", "modules")


@dataclass(frozen=True)
class Section:
    """A named group of cases."""

    name: str
    title: str
    cases: Callable[[Bench], Iterator[Case]]


def load(name: str) -> Section:
    """Import a section; only now, so that one section's needs are not another's.

    Raises
    ------
    ValueError
        No section has that name.
    """
    if name not in SECTIONS:
        raise ValueError(f"no section is called {name!r}; there are {', '.join(SECTIONS)}")
    module = importlib.import_module(f".sections.{name}", __package__)
    title = (module.__doc__ or name).strip().splitlines()[0].rstrip(".")
    return Section(name, title, module.cases)
