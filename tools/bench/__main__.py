"""Command line: ``python -m tools.bench [SECTION ...]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from . import machine, plot, registry, report
from .bench import Bench
from .measure import CaseResult, measure

_BUILD = Path(__file__).resolve().parents[2] / "build"


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    names = ", ".join(registry.SECTIONS)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {names}; default: all")
    parser.add_argument("--rounds", type=int, default=None, help="rounds a case (default 7; 5 if quick)")
    parser.add_argument("--seconds", type=float, default=None, help="a round's length (default 0.3; 0.05)")
    parser.add_argument("--quick", action="store_true", help="short rounds and less data")
    parser.add_argument("--json", metavar="FILE", help="write every figure")
    parser.add_argument("--plot", metavar="FILE", help="draw the ratios (needs matplotlib)")
    parser.add_argument("--work", metavar="DIR", type=Path, help="scratch directory (default build/)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 unless every target is met")
    options = parser.parse_args(argv)
    options.sections = options.sections or list(registry.SECTIONS)
    options.rounds = options.rounds or (5 if options.quick else 7)
    options.seconds = options.seconds or (0.05 if options.quick else 0.3)
    unknown = sorted(set(options.sections) - set(registry.SECTIONS))
    if unknown:
        parser.error(f"no section is called {unknown[0]!r}; there are {names}")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


@contextmanager
def _bench(options: argparse.Namespace) -> Iterator[Bench]:
    root = options.work or _BUILD
    root.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=root) as work,
        Bench(Path(work), _BUILD / "peers", options.quick) as bench,
    ):
        yield bench


def _run(section: registry.Section, bench: Bench, options: argparse.Namespace) -> list[CaseResult]:
    print(f"\n{section.name}: {section.title}\n{report.header()}", flush=True)
    results = []
    for case in section.cases(bench):
        try:
            results.append(measure(case, options.rounds, options.seconds))
        finally:
            case.close()
        print("\n".join(report.lines(results[-1])), flush=True)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections, print tables, write files; return the exit status."""
    options = _parse(argv)
    block = machine.describe()
    print("\n".join(report.machine_lines(block)), flush=True)
    results: dict[str, tuple[str, list[CaseResult]]] = {}
    with _bench(options) as bench:
        for name in dict.fromkeys(options.sections):
            section = registry.load(name)
            results[name] = section.title, _run(section, bench, options)
    settings = {"rounds": options.rounds, "seconds": options.seconds, "quick": options.quick}
    document = report.to_json(block, settings, results)
    if options.json:
        report.write_json(options.json, document)
    if options.plot:
        plot.draw(options.plot, document)
    outcomes = [o for _, cases in results.values() for case in cases for o in case.outcomes()]
    met = sum(o.met for o in outcomes)
    if outcomes:
        print(f"\n{met} of {len(outcomes)} targets met")
    return 1 if options.strict and met < len(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
