"""Command line of the build: ``python -m loaderx_build``."""

from __future__ import annotations

import argparse
import os
import sys

from . import ROOT, BuildError, extension, native, notices, toolchain


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="loaderx_build", description="Build the extension loaderx._native.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--inplace", action="store_true", help="put the extension into loaderx/ of the source tree")
    what.add_argument("--native", action="store_true", help="build the C ABI and its example into build/")
    what.add_argument("--print", choices=sorted(_FACTS), help="print a fact about the toolchain of this machine")
    what.add_argument("--exec", nargs=argparse.REMAINDER, help="run a command with Go and the C compiler at hand")
    return parser


# requirements: PyPI packages that a build lacks here; test-requirements: what the tests lack, a C++ compiler; zig:
# the C compiler for wheels that run everywhere, and the PyPI package it comes from.
_FACTS = {
    "requirements": lambda: "\n".join(toolchain.requirements()),
    "test-requirements": lambda: "" if toolchain.find_cxx() else toolchain.PINS["ziglang"],
    "zig": toolchain.zig_command,
    "zig-requirement": lambda: toolchain.PINS["ziglang"],
}


def _build(inplace: bool) -> None:
    made = extension.build()
    notices.refresh(made)
    if inplace:
        target = ROOT / "loaderx" / made.name
        extension.copy_atomically(made, target)
        made = target
    print(made.relative_to(ROOT))


def main() -> int:
    """Do what the command line asks for; return the exit status."""
    args = _parser().parse_args()
    try:
        if args.print:
            print(_FACTS[args.print]())
        elif args.exec:
            env = toolchain.find().environ()
            try:
                os.execvpe(args.exec[0], args.exec, env)
            except OSError as error:
                raise BuildError(f"{args.exec[0]} cannot be run: {error.strerror}.") from None
        elif args.native:
            for made in native.build():
                print(made.relative_to(ROOT))
        else:
            _build(args.inplace)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
