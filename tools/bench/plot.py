"""One bar chart of ratios per section, and one of memory where it was measured, drawn from the JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["draw"]

# Colours that stay apart for colour-blind readers and in grey print (Okabe-Ito).
_COLOURS = ("#0072B2", "#999999", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def _contestants(section: Mapping) -> list[str]:
    return list(dict.fromkeys(c["name"] for case in section["cases"] for c in case["contestants"]))


def _draw_section(axes, section: Mapping, colours: Mapping[str, str]) -> None:
    names = _contestants(section)
    height = 0.8 / len(names)
    longest = 0.0
    for place, name in enumerate(names):
        for row, case in enumerate(section["cases"]):
            found = [c for c in case["contestants"] if c["name"] == name and c["ratio"] is not None]
            if not found:
                continue
            ratio, y = found[0]["ratio"], row + (place - (len(names) - 1) / 2) * height
            longest = max(longest, ratio)
            axes.barh(y, ratio, height * 0.92, color=colours[name])
            axes.text(ratio, y, f" {ratio:.2f}", va="center", ha="left", fontsize=7)
    cases = section["cases"]
    baselines = list(dict.fromkeys(case["baseline"] for case in cases))
    # Where lines are ratios to different things, each says to what.
    labels = [f"{case['name']}\n(1 is {case['baseline']})" if baselines[1:] else case["name"] for case in cases]
    axes.set_yticks(range(len(cases)), labels, fontsize=8)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.12)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel(f"times as fast as {'what each line names' if baselines[1:] else baselines[0]}", fontsize=8)
    axes.set_title(f"{section['name']}: {section['title']}", fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _weighed(section: Mapping) -> list[tuple[str, str, Mapping]]:
    """Return case, contestant and sizes of what has a memory."""
    return [
        (case["name"], c["name"], c["memory"])
        for case in section["cases"]
        for c in case["contestants"]
        if c.get("memory")
    ]


def _draw_memory(axes, section: Mapping, colours: Mapping[str, str]) -> None:
    weighed = _weighed(section)
    for row, (_case, name, sizes) in enumerate(weighed):
        resident, own = (sizes[key] / (1 << 20) for key in ("resident", "own"))
        axes.barh(row, resident, 0.8, color=colours[name], alpha=0.4)
        axes.barh(row, own, 0.8, color=colours[name])
        axes.text(max(resident, own), row, f" {own:.0f} of {resident:.0f}", va="center", ha="left", fontsize=7)
    axes.set_yticks(range(len(weighed)), [f"{case}: {name}" for case, name, _ in weighed], fontsize=8)
    axes.set_ylim(len(weighed) - 0.5, -0.5)
    axes.set_xlim(0, max(1.0, *(sizes["resident"] / (1 << 20) for *_, sizes in weighed)) * 1.12)
    axes.set_xlabel("MiB of memory; dark what is the process's own, pale pages of files", fontsize=8)
    axes.set_title(f"{section['name']}: memory", fontsize=10, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(path: str | Path, document: Mapping) -> None:
    """Write the chart of a document of `report.to_json`; the file's suffix chooses the format.

    Raises
    ------
    ModuleNotFoundError
        matplotlib is not installed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    sections = [s for s in document["sections"] if any(c["contestants"] for c in s["cases"])]
    if not sections:
        raise ValueError("nothing was measured, so there is nothing to draw")
    names = list(dict.fromkeys(name for s in sections for name in _contestants(s)))
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
    charts = []  # how, of what, and how many bars
    for section in sections:
        charts.append((_draw_section, section, sum(len(c["contestants"]) for c in section["cases"])))
        if weighed := _weighed(section):
            charts.append((_draw_memory, section, len(weighed)))
    heights = [0.9 + 0.2 * bars for *_, bars in charts]
    figure = Figure(figsize=(9, sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)
    for axes, (paint, section, _bars) in zip(grid[:, 0], charts, strict=True):
        paint(axes, section, colours)
    machine = document["machine"]
    figure.suptitle(f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('kernel')}", fontsize=9)
    # Outside the axes, where it hides no bars; the colours mean the same in every section.
    handles = [Patch(color=colours[name], label=name) for name in names]
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=150)
