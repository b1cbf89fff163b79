"""Building again: what starts a new build, what does not, and what a failure leaves."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from loaderx_build import BuildError, extension, toolchain


@pytest.fixture
def tools():
    return toolchain.Toolchain("/opt/go/bin/go", "go1.26.1", "/opt/zig cc -target x", "clang 20")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tiny source tree, and a list of the builds that took place in it."""
    (tmp_path / "pybind").mkdir()
    (tmp_path / "gopkg" / "mem").mkdir(parents=True)
    (tmp_path / "go.mod").write_text("module loaderx\n")
    (tmp_path / "pybind" / "pybind.go").write_text("package pybind\n")
    (tmp_path / "gopkg" / "mem" / "mem.go").write_text("package mem\n")
    builds = []

    def steps(root, scratch, made, tools):
        builds.append(tools)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_bytes(b"extension")

    monkeypatch.setattr(extension, "_run_steps", steps)
    return tmp_path, builds


def test_an_unchanged_tree_is_not_built_again(tree, tools):
    root, builds = tree
    assert extension.build(root, tools) == extension.build(root, tools)
    assert len(builds) == 1


@pytest.mark.parametrize(
    ("file", "again"),
    [
        ("pybind/pybind.go", True),
        ("go.mod", True),
        ("go.sum", True),
        ("gopkg/mem/mem.go", True),
        ("gopkg/mem/copy_amd64.s", True),
        ("gopkg/mem/mem_test.go", False),
        ("gopkg/mem/testdata/x.go", False),
        ("README.md", False),
    ],
)
def test_a_change_of_what_goes_into_the_extension_builds_again(tree, tools, file, again):
    root, builds = tree
    extension.build(root, tools)
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("changed\n")
    extension.build(root, tools)
    assert len(builds) == 1 + again


def test_another_compiler_builds_again(tree, tools):
    root, builds = tree
    extension.build(root, tools)
    extension.build(root, toolchain.Toolchain(tools.go, "go1.27", tools.cc, tools.cc_version))
    assert len(builds) == 2


def test_a_damaged_output_or_stamp_builds_again(tree, tools):
    root, builds = tree
    extension.build(root, tools).write_bytes(b"short")
    made = extension.build(root, tools)
    assert made.read_bytes() == b"extension"
    (extension.scratch_dir(root) / "stamp.json").write_text("{")
    extension.build(root, tools)
    assert len(builds) == 3


def test_a_failed_build_is_tried_again(tree, tools, monkeypatch):
    root, builds = tree
    extension.build(root, tools)
    (root / "go.mod").write_text("module broken\n")
    with monkeypatch.context() as broken:
        broken.setattr(extension, "_run_steps", lambda *_: (_ for _ in ()).throw(BuildError("no")))
        with pytest.raises(BuildError):
            extension.build(root, tools)
    (root / "go.mod").write_text("module loaderx\n")
    extension.build(root, tools)
    assert len(builds) == 2


def test_the_extension_is_replaced_not_overwritten(tmp_path):
    source, target = tmp_path / "new", tmp_path / "out" / "_native.so"
    source.write_bytes(b"one")
    extension.copy_atomically(source, target)
    with target.open("rb") as mapped:
        source.write_bytes(b"two")
        extension.copy_atomically(source, target)
        assert mapped.read() == b"one"
    assert target.read_bytes() == b"two"
    assert os.access(target, os.X_OK)
    assert os.listdir(target.parent) == [target.name]


def test_two_builds_at_once_build_once(tree, tools, monkeypatch):
    root, builds = tree
    quick = extension._run_steps

    def slow(*args):
        time.sleep(0.2)
        quick(*args)

    monkeypatch.setattr(extension, "_run_steps", slow)
    threads = [threading.Thread(target=extension.build, args=(root, tools)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_a_failed_step_shows_its_output_and_says_which_it_was(capfd):
    command = [sys.executable, "-c", "import sys; print('out'); sys.exit('err')"]
    with pytest.raises(BuildError, match=r"^pybindgen failed \(exit status 1\): its output is above\.$"):
        extension.run("pybindgen", command, ".", dict(os.environ))
    assert capfd.readouterr().err.split() == ["out", "err"]


def test_a_failed_download_is_called_that():
    command = [sys.executable, "-c", "import sys; sys.exit('dial tcp: no route')"]
    with pytest.raises(BuildError, match="could not download Go modules: connect to the network or set GOPROXY"):
        extension.run("go build", command, ".", dict(os.environ))
