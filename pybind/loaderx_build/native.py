"""Build the C ABI of row tables from ``gopkg/capi``: ``build/libmeft_rows.so``, its header, and an example.

The library exports what the header declares and nothing else.
"""

from __future__ import annotations

__all__ = ["Native", "build", "exports"]

import json
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from . import ROOT, extension, toolchain

PACKAGE = "gopkg/capi"
LIBRARY = "libmeft_rows.dylib" if sys.platform == "darwin" else "libmeft_rows.so"
HEADER = "meft_rows.h"
EXAMPLE = "native_gather"
_SOURCES = ("go.mod", "go.sum", "pybind/loaderx_build/*.py", "gopkg/**/*.go", "gopkg/**/*.s", "gopkg/**/*.[ch]")


class Native(NamedTuple):
    """What the build makes."""

    library: Path
    header: Path
    example: Path


def exports(header: Path) -> list[str]:
    """Return the names of the functions that a header declares."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    return re.findall(r"\b(meft_rows_\w+)\(", text)


def build(root: Path = ROOT, tools: toolchain.Toolchain | None = None, sanitize: bool = False) -> Native:
    """Build library and example unless they are up to date, and return their paths below ``build/``.

    Parameters
    ----------
    sanitize : bool
        Whether to build the library's C files with AddressSanitizer, into a directory of its own.

    Raises
    ------
    BuildError
        A prerequisite is missing or a step failed.
    """
    tools = tools or toolchain.find()
    out = root / "build" / "_capi_asan" if sanitize else root / "build"
    made = Native(out / LIBRARY, out / HEADER, out / EXAMPLE)
    scratch = root / "build" / "_capi"
    scratch.mkdir(parents=True, exist_ok=True)
    stamp = scratch / f"stamp{'_asan' if sanitize else ''}.json"
    with extension.lock(scratch / ".lock"):
        inputs = extension.digest(root, _SOURCES, [*tools.identity(), sys.platform, sanitize])
        if _stamped(stamp, made) != inputs:
            stamp.unlink(missing_ok=True)
            _make(root, scratch, made, tools, sanitize)
            stamp.write_text(json.dumps({"inputs": inputs, "outputs": _marks(made)}))
    return made


def _marks(made: Native) -> list[list[int]]:
    return [[path.stat().st_size, path.stat().st_mtime_ns] for path in made]


def _stamped(stamp: Path, made: Native) -> str | None:
    """Return the hash that `made` was built from, or None when that is not known."""
    try:
        content = json.loads(stamp.read_text())
        return content["inputs"] if content["outputs"] == _marks(made) else None
    except (OSError, ValueError, KeyError):
        return None


def _make(root: Path, scratch: Path, made: Native, tools: toolchain.Toolchain, sanitize: bool) -> None:
    env = tools.environ(root)
    source = root / PACKAGE
    extra = ["-fsanitize=address"] if sanitize else []
    if sanitize:
        env["CGO_CFLAGS"] += " -fsanitize=address -fno-omit-frame-pointer -g"
    fresh = Native(*(scratch / f"{path.name}.new" for path in made))
    link = _link_flags(scratch, exports(source / HEADER), extra)
    extension.run(
        "go build",
        [tools.go, "build", "-buildmode=c-shared", "-trimpath", f"-ldflags=-s -w {link}", "-o", str(fresh.library),
         f"./{PACKAGE}"],
        root,
        env,
    )  # fmt: skip
    # Go's own header, of what the C files call.
    fresh.library.with_suffix(".h").unlink(missing_ok=True)
    extension.copy_atomically(fresh.library, made.library)
    extension.copy_atomically(source / HEADER, made.header, mode=0o644)
    here = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    extension.run(
        "the example's compilation",
        [*shlex.split(tools.cc), "-std=c99", "-O2", *extra, f"-I{source}", "-o", str(fresh.example),
         str(source / "example" / f"{EXAMPLE}.c"), f"-L{made.library.parent}", "-lmeft_rows", f"-Wl,-rpath,{here}"],
        root,
        env,
    )  # fmt: skip
    extension.copy_atomically(fresh.example, made.example)
    for path in fresh:
        path.unlink(missing_ok=True)


def _link_flags(scratch: Path, names: list[str], extra: list[str]) -> str:
    """Return flags for Go's linker: the library's name, and that it exports some names and no others."""
    if sys.platform == "darwin":
        flags = [f"-Wl,-install_name,@rpath/{LIBRARY}", *(f"-Wl,-exported_symbol,_{name}" for name in names)]
        return f"'-extldflags={' '.join(extra + flags)}'"
    script = scratch / "exports.map"
    script.write_text(f"{{ global: {' '.join(f'{name};' for name in names)} local: *; }};\n")
    # Quoted twice, for go build and for the linker, because the path may hold spaces.
    flags = [*extra, f"-Wl,-soname,{LIBRARY}", f"'-Wl,--version-script={script}'"]
    return f'"-extldflags={" ".join(flags)}"'
