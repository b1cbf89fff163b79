"""What the build makes: the extension, the notices, sdist and wheel."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from loaderx_build import extension, notices, toolchain

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "loaderx" / f"_native{extension.EXT_SUFFIX}"


# --- the extension ---------------------------------------------------------------------------


class Elf:
    """The dynamic section of a 64-bit little-endian ELF library, read without binutils."""

    def __init__(self, path: Path):
        self.data = path.read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01"
        at, size, count = struct.unpack_from("<40xQ10xHH", self.data)[0], *struct.unpack_from("<58xHH", self.data)
        self.sections = [struct.unpack_from("<IIQQQQIIQQ", self.data, at + i * size) for i in range(count)]

    def _strings(self, link: int, at: int) -> str:
        start = self.sections[link][4] + at
        return self.data[start : self.data.index(b"\0", start)].decode()

    def _entries(self, kind: int, layout: str):
        for section in self.sections:
            if section[1] == kind:
                for entry in struct.iter_unpack(layout, self.data[section[4] : section[4] + section[5]]):
                    yield section[6], entry

    def dynamic(self, tag: int) -> list[str]:
        """Return the strings of one tag: 1 needed, 15 rpath, 29 runpath."""
        return [self._strings(link, value) for link, (t, value) in self._entries(6, "<qQ") if t == tag]

    def exports(self) -> list[str]:
        """Return the names that other libraries could bind to."""
        symbols = self._entries(11, "<IBBHQQ")
        return [self._strings(link, name) for link, (name, info, _, where, _, _) in symbols if where and info >> 4]


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")


@linux
def test_the_extension_links_no_libpython_and_no_path():
    elf = Elf(BUILT)
    assert not [name for name in elf.dynamic(1) if "python" in name]
    assert set(elf.dynamic(1)) <= {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6", "libresolv.so.2"}
    assert elf.dynamic(15) + elf.dynamic(29) == []


@linux
def test_the_extension_exports_its_init_function_only():
    assert Elf(BUILT).exports() == ["PyInit__native"]


@linux
def test_the_extension_is_stripped():
    assert 2 not in {section[1] for section in Elf(BUILT).sections}, "a symbol table"


LOAD = """
import importlib.util, sys
from importlib.machinery import ExtensionFileLoader
loader = ExtensionFileLoader("_native", sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("_native", loader=loader))
loader.exec_module(module)
"""


def in_fresh_python(code: str) -> str:
    """Run code with `module`, the extension, in a Python that has loaded nothing else."""
    command = [sys.executable, "-c", LOAD + code, str(BUILT)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_extension_holds_the_functions_of_pybind_and_nothing_else():
    code = "print(*[n for n in dir(module) if not n.startswith('__')])"
    names = in_fresh_python(code).split()
    source = "\n".join(p.read_text() for p in (ROOT / "pybind").glob("*.go") if not p.name.endswith("_test.go"))
    assert sorted(names) == sorted("pybind_" + n for n in re.findall(r"^func ([A-Z]\w*)\(", source, re.MULTILINE))


def test_loading_the_extension_changes_neither_directory_nor_signal_handlers():
    code = """
import os, signal
print(os.getcwd(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert in_fresh_python(code).split() == [os.getcwd(), "True"]


# --- licences --------------------------------------------------------------------------------


def test_the_notices_name_every_module_that_is_linked_in():
    go, _ = toolchain.find_go()
    listing = subprocess.run([go, "version", "-m", str(BUILT)], capture_output=True, text=True, check=True).stdout
    linked = re.findall(r"^\tdep\t(\S+)\t(\S+)", listing, re.MULTILINE)
    text = (ROOT / notices.FILE_NAME).read_text(encoding="utf-8")
    assert linked
    for name, version in [*linked, ("Go standard library and runtime", "")]:
        section = text.partition(f"\n{name} {version}".rstrip() + "\n")[2].split("\n" + "-" * 80)[0]
        assert "Copyright" in section, name


def test_the_notices_follow_a_c_library_and_leave_alternatives_out(tmp_path):
    package = tmp_path / "gozstd"
    for path, text in {"LICENSE": "MIT", "zstd/LICENSE": "BSD", "zstd/COPYING": "GPL", "zstd/lib/x.h": ""}.items():
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text(text)
    module = {"Path": "example/gozstd", "Version": "v1", "Dir": str(package)}
    listed = [{"Dir": str(package), "Module": module, "CgoFiles": ["x.go"]}, {"Dir": "/go/src/os", "Standard": True}]
    text = notices.collect(listed, tmp_path)
    assert text.index("MIT") < text.index("BSD")
    assert "GPL" not in text


# --- distributions ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """The names in the sdist, and those in the wheel that is built from it."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    wanted = shutil.ignore_patterns(".*", "build", "dist", "data", "__pycache__", "*.egg-info", "bench-results")
    shutil.copytree(ROOT, copy, ignore=wanted)
    # What a developer's tree may hold besides: an extension for another Python.
    (copy / "loaderx" / "_native.cpython-39-x86_64-linux-gnu.so").write_bytes(b"stale")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    with tarfile.open(sdist) as archive:
        sources = [name.partition("/")[2] for name in archive.getnames()]
    with zipfile.ZipFile(wheel) as archive:
        return wheel.name, archive.namelist(), sources


@pytest.mark.slow
def test_the_wheel_is_binary_and_holds_one_extension(distributions):
    name, files, _ = distributions
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"loaderx_go-[0-9.]+-{tag}-{tag}t?-\w+\.whl", name)
    assert [f for f in files if f.endswith((".so", ".pyd", ".dylib"))] == [f"loaderx/{BUILT.name}"]


@pytest.mark.slow
def test_the_wheel_installs_two_packages_and_the_licences(distributions):
    _, files, _ = distributions
    tops = {f.split("/")[0] for f in files}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"loaderx", "ngram_store"}
    assert {"loaderx/py.typed", "ngram_store/py.typed"} <= set(files)
    licences = {f.rpartition("/")[2] for f in files if ".dist-info/licenses/" in f}
    assert licences == {"LICENSE", notices.FILE_NAME}
    sources = {str(p.relative_to(ROOT)) for top in ("loaderx", "ngram_store") for p in (ROOT / top).rglob("*.py")}
    assert {f for f in files if f.endswith(".py")} == sources


@pytest.mark.slow
def test_the_sdist_holds_all_sources_and_nothing_built(distributions):
    _, _, sources = distributions
    go = {str(p.relative_to(ROOT)) for top in ("gopkg", "pybind") for p in (ROOT / top).rglob("*.go")}
    wanted = {"go.mod", "go.sum", "setup.py", "pyproject.toml", "LICENSE", notices.FILE_NAME, "Makefile"}
    assert go | wanted | {"pybind/loaderx_build/backend.py", "tests/test_build.py"} <= set(sources)
    assert not [f for f in sources if f.endswith((".so", ".pyc")) or f.startswith("build/")]
