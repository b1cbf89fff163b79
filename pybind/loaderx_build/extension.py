"""Turn the Go package ``loaderx/pybind`` into the extension module ``_native``.

The steps are those of ``gopy build``, with four differences: libpython is not linked, the code is
compiled with -O2, the header of the exported functions needs no extra link of the whole library,
and everything but the module's init function stays hidden from other libraries in the process.
"""

from __future__ import annotations

__all__ = ["EXT_SUFFIX", "build", "copy_atomically", "digest", "lock", "run", "scratch_dir"]

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from . import ROOT, BuildError, notices, toolchain

NAME = "native"
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
_ABI = EXT_SUFFIX.strip(".").removesuffix(".so")
_SOURCES = (
    "go.mod",
    "go.sum",
    "pybind/*.go",
    "pybind/loaderx_build/*.py",
    "gopkg/**/*.go",
    "gopkg/**/*.s",
    "gopkg/**/*.[ch]",
)
_OTHERS = ("gopkg/capi",)


def build(root: Path = ROOT, tools: toolchain.Toolchain | None = None) -> Path:
    """Build the extension unless it is up to date, and return its path below ``build/``.

    Safe to call from several processes at once: the second waits for the first.

    Raises
    ------
    BuildError
        A prerequisite is missing or a step failed.
    """
    tools = tools or toolchain.find()
    scratch = scratch_dir(root)
    scratch.mkdir(parents=True, exist_ok=True)
    made = scratch / "out" / f"_{NAME}{EXT_SUFFIX}"
    stamp = scratch / "stamp.json"
    with lock(root / "build" / "_gen" / ".lock"):
        inputs = digest(root, _SOURCES, [*tools.identity(), sys.version, _ABI, sysconfig.get_path("include")], _OTHERS)
        if _read_stamp(stamp, made) != inputs:
            stamp.unlink(missing_ok=True)
            _run_steps(root, scratch, made, tools)
            stamp.write_text(json.dumps({"inputs": inputs, "output": _mark(made)}))
    return made


def copy_atomically(source: Path, target: Path, mode: int = 0o755) -> None:
    """Put a copy of `source` at `target` unless an equal file is there.

    The file is replaced, not written to: a running Python may have the old one mapped.
    """
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as f:
        temporary = Path(f.name)
    try:
        shutil.copyfile(source, temporary)
        temporary.chmod(mode)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def scratch_dir(root: Path = ROOT) -> Path:
    """Return the directory below ``build/`` that belongs to the running Python.

    Its underscore keeps the generated Go code out of patterns such as ``./...``.
    """
    return root / "build" / "_gen" / _ABI


@contextlib.contextmanager
def lock(path: Path):
    """Hold an exclusive lock on `path`; the system lets go of it when the process ends."""
    import fcntl

    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def digest(root: Path, patterns: tuple[str, ...], facts: list, others: tuple[str, ...] = ()) -> str:
    """Return a hash over facts and the files of patterns, but for tests and what lies in the folders `others`."""
    total = hashlib.sha256()
    total.update(json.dumps(facts).encode())
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if path.name.endswith("_test.go") or "testdata" in path.parts:
                continue
            if any(path.is_relative_to(root / other) for other in others):
                continue
            total.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


def _mark(made: Path) -> list[int]:
    facts = made.stat()
    return [facts.st_size, facts.st_mtime_ns]


def _read_stamp(stamp: Path, made: Path) -> str | None:
    """Return the hash that `made` was built from, or None when that is not known."""
    try:
        content = json.loads(stamp.read_text())
        return content["inputs"] if content["output"] == _mark(made) else None
    except (OSError, ValueError, KeyError):
        return None


def run(step: str, command: list[str], cwd: Path, env: dict[str, str]) -> str:
    """Run one step; its output is shown only when it fails."""
    done = subprocess.run(command, cwd=cwd, env=env, text=True, capture_output=True)
    if done.returncode != 0:
        report = done.stdout + done.stderr
        print(report, file=sys.stderr, flush=True)
        if any(sign in report for sign in ("dial tcp", "proxyconnect", "lookup ")):
            raise BuildError(f"{step} could not download Go modules: connect to the network or set GOPROXY.")
        raise BuildError(f"{step} failed (exit status {done.returncode}): its output is above.")
    return done.stdout


def _run_steps(root: Path, scratch: Path, made: Path, tools: toolchain.Toolchain) -> None:
    env = tools.environ(root)
    go = tools.go
    commands = root / "build" / "_tools"
    for name, package in (
        ("gopy", "github.com/go-python/gopy"),
        ("goimports", "golang.org/x/tools/cmd/goimports"),
    ):
        target = str(commands / name)
        # CGO_ENABLED=0: these run on this machine only, and then no C compiler takes part.
        run(f"building {name}", [go, "build", "-o", target, package], root, {**env, "CGO_ENABLED": "0"})
    env["PATH"] = os.pathsep.join([str(commands), env["PATH"]])

    source = scratch / "go"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    run(
        "gopy",
        ["gopy", "gen", f"-vm={sys.executable}", f"-name={NAME}", f"-output={source}", "-no-make", "-no-warn",
         "loaderx/pybind"],
        root,
        env,
    )  # fmt: skip
    if not (source / f"{NAME}.go").exists():
        raise BuildError("gopy generated nothing: run `go vet ./pybind` to see what it cannot translate.")
    _rewrite(source, scratch)
    run("goimports", ["goimports", "-w", f"{NAME}.go"], source, env)
    run("pybindgen", [sys.executable, "build.py"], source, env)

    made.parent.mkdir(exist_ok=True)
    ldflags = f"-s -w {_hiding_flags(scratch)}"
    run(
        "go build",
        [go, "build", "-buildmode=c-shared", "-trimpath", f"-ldflags={ldflags}", "-o", str(made),
         f"./{source.relative_to(root)}"],
        root,
        env,
    )  # fmt: skip
    made.with_suffix(".h").unlink(missing_ok=True)
    listing = run("go list", [go, "list", "-deps", "-json", f"./{source.relative_to(root)}"], root, env)
    goroot = Path(run("go env", [go, "env", "GOROOT"], root, env).strip())
    made.with_name(notices.FILE_NAME).write_text(notices.collect(notices.parse(listing), goroot), encoding="utf-8")


def _rewrite(source: Path, scratch: Path) -> None:
    """Give the generated Go file our compiler flags, and make it the same in every environment.

    gopy writes its own command line, with the path of an isolated environment, and a link line
    with libpython into the file; both would spoil the build cache or the extension.
    """
    _trim(source / "build.py")
    file = source / f"{NAME}.go"
    text = file.read_text()
    # gnu17: the generated code says `typedef uint8_t bool`, which C23 compilers refuse.
    flags = f"#cgo CFLAGS: -std=gnu17 -w {_include_flags(scratch)}"
    text = re.sub(r"^gopy gen .*\n", "", text, flags=re.M)
    text, found = re.subn(r"^#cgo CFLAGS:.*\n", lambda _: flags + "\n", text, flags=re.M)
    text, linked = re.subn(r"^#cgo LDFLAGS:.*\n", "", text, flags=re.M)
    if (found, linked) != (1, 1):
        raise BuildError("gopy's output has an unknown form: use the version that go.mod names.")
    file.write_text(text)
    # cgo makes the header of the exported functions while it compiles this very package.
    (source / f"{NAME}_go.h").write_text('#include "_cgo_export.h"\n')


def _trim(script: Path) -> None:
    """Leave nothing in the module but the functions of ``loaderx/pybind``.

    gopy adds constructors and accessors for slices of every type, which the project does not use;
    called with a wrong handle they end the process.
    """
    text, dropped = re.subn(r"^mod\.add_function\(.*\n", "", script.read_text(), flags=re.M)
    if not dropped:
        raise BuildError("gopy's output has an unknown form: use the version that go.mod names.")
    script.write_text(text)


def _include_flags(scratch: Path) -> str:
    """Return the -I flags for Python's headers.

    Debian keeps pyconfig.h in a directory that only its own compiler searches, so that another one
    (zig) is given a view of it.
    """
    include = Path(sysconfig.get_path("include"))
    flags = [f'"-I{include}"']
    apart = Path(sysconfig.get_config_var("MULTIARCH") or "", include.name)
    config = include.parent / apart
    if apart.parent.name and config.is_dir():
        view = scratch / "include" / apart
        view.parent.mkdir(parents=True, exist_ok=True)
        view.unlink(missing_ok=True)
        view.symlink_to(config)
        flags.append(f'"-I{scratch / "include"}"')
    return " ".join(flags)


def _hiding_flags(scratch: Path) -> str:
    """Return the linker flags that keep all symbols but the init function inside the extension.

    Otherwise another copy of libzstd in the process could take the place of ours, or ours of it.
    """
    if sys.platform == "darwin":
        return f"'-extldflags=-Wl,-undefined,dynamic_lookup -Wl,-exported_symbol,_PyInit__{NAME}'"
    script = scratch / "exports.map"
    script.write_text(f"{{ global: PyInit__{NAME}; local: *; }};\n")
    # Quoted twice, for go build and for the linker, because the path may hold spaces.
    return f"\"-extldflags='-Wl,--version-script={script}'\""
