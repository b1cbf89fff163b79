"""The table on the terminal and the JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from .measure import CaseResult, Outcome

__all__ = ["SCHEMA_VERSION", "duration", "header", "lines", "machine_lines", "rate", "to_json", "write_json"]

SCHEMA_VERSION = 1

#: Room for the name of a case.
_NAME = 30
_ROW = f"{{:<{_NAME}}} " + "{:<22} {:>10} {:>20} {:>8} {:>8}"


def duration(seconds: float) -> str:
    """Return `seconds` with three digits and a unit."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def rate(per_second: float, unit: str) -> str:
    """Return a rate; bytes get a decimal prefix, countable things thousands separators."""
    if unit != "B":
        digits = 0 if per_second >= 100 else 1
        return f"{per_second:,.{digits}f} {unit}/s"
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}B/s"
    return f"{per_second:.3g} B/s"


def machine_lines(machine: Mapping[str, object]) -> list[str]:
    """Return the machine block as text, without what is unknown."""
    return [f"{key:<14} {value}" for key, value in machine.items() if value is not None]


def _verdict(outcome: Outcome) -> str:
    target = outcome.target
    wish = f"{target.contestant} at least {target.at_least:g}x {target.against}"
    if outcome.ratio is None:
        return f"  target {wish}: not measured"
    return f"  target {wish}: {outcome.ratio:.2f}x, {'met' if outcome.met else 'MISSED'}"


def _sizes(sizes: Mapping[str, int]) -> str:
    return "{resident:.0f} MiB, {own:.0f} of them its own".format(**{k: n / (1 << 20) for k, n in sizes.items()})


def header() -> str:
    """Return the line above a section's rows."""
    return _ROW.format("case", "contestant", "each", "rate", "spread", "ratio")


def lines(result: CaseResult) -> list[str]:
    """Return the rows of a case: contestants, those left out, targets."""
    case, rows, label = result.case, [], result.case.name
    if len(label) > _NAME:  # a line of its own, so that columns stay below each other
        rows, label = [label], ""
    for name, timing in result.timings.items():
        ratio = result.ratio(name)
        rows.append(
            _ROW.format(
                label,
                name,
                duration(timing.median),
                rate(case.amount / timing.median, case.unit),
                f"{timing.spread:.0%}",
                "-" if ratio is None else f"{ratio:.2f}x",
            )
        )
        label = ""
    rows += [f"{label:<{_NAME}} {name:<22} memory: {_sizes(sizes)}" for name, sizes in result.memory.items()]
    rows += [f"{label:<{_NAME}} {name:<22} skipped: {why}" for name, why in case.skipped.items()]
    return rows + [_verdict(outcome) for outcome in result.outcomes()]


def _case_json(result: CaseResult) -> dict[str, object]:
    case = result.case
    return {
        "name": case.name,
        "unit": case.unit,
        "amount": case.amount,
        "baseline": case.baseline,
        "contestants": [
            {
                "name": name,
                "iterations": timing.iterations,
                "seconds": list(timing.seconds),
                "median": timing.median,
                "min": min(timing.seconds),
                "max": max(timing.seconds),
                "rate": case.amount / timing.median,
                "ratio": result.ratio(name),
                "memory": dict(result.memory[name]) if name in result.memory else None,
            }
            for name, timing in result.timings.items()
        ],
        "skipped": [{"name": name, "reason": why} for name, why in case.skipped.items()],
        "targets": [
            {
                "contestant": outcome.target.contestant,
                "against": outcome.target.against,
                "at_least": outcome.target.at_least,
                "ratio": outcome.ratio,
                "met": outcome.met,
            }
            for outcome in result.outcomes()
        ],
    }


def to_json(
    machine: Mapping[str, object],
    options: Mapping[str, object],
    results: Mapping[str, tuple[str, Sequence[CaseResult]]],
) -> dict[str, object]:
    """Return the whole run as one JSON-able document.

    Parameters
    ----------
    machine, options : mapping
    results : mapping
        Section name to its title and the results of its cases.
    """
    return {
        "schema": SCHEMA_VERSION,
        "machine": dict(machine),
        "options": dict(options),
        "sections": [
            {"name": name, "title": title, "cases": [_case_json(r) for r in cases]}
            for name, (title, cases) in results.items()
        ],
    }


def write_json(path: str | Path, document: Mapping[str, object]) -> None:
    """Write a document of `to_json`."""
    Path(path).write_text(json.dumps(document, indent=1) + "\n")
