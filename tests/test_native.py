"""The C ABI of row tables, used by C and C++ programs: tests/native has them."""

import ctypes
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from loaderx import __version__, _engine
from loaderx_build import native, toolchain
from ngram_store import QuantizedRows, pack_native, pack_quantized
from tests.native_tables import Queries, mutations

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("arguments", "queries", "life", "faults", "loading", "hostile")
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
MODES = ("c", "c++", "asan")
ASAN = "-fsanitize=address"


def run(command, timeout=120, **env):
    """Run a program and return what it printed; fail if it does not end well."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout, env=env or None)
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def built():
    """The library, its header and the example, as `make native` builds them."""
    return native.build()


@pytest.fixture(scope="session")
def tools():
    return toolchain.find()


@pytest.fixture(scope="session")
def compilers(tools):
    """For each mode the command of a compiler and its language."""
    cxx = toolchain.find_cxx()
    assert cxx, "a C++ compiler is missing: install g++ or clang++, or pip install ziglang"
    c = [*shlex.split(tools.cc), "-std=c99", *STRICT]
    return {"c": c, "c++": [*shlex.split(cxx), "-x", "c++", "-std=c++17", *STRICT], "asan": [*c, "-g", ASAN]}


def has_asan(cc, folder):
    """Whether a compiler has AddressSanitizer: PyPI's zig has not, and gcc must have it in CI."""
    (folder / "empty.c").write_text("int main(void) { return 0; }\n")
    done = subprocess.run([*shlex.split(cc), ASAN, folder / "empty.c", "-o", folder / "empty"], capture_output=True)
    found = done.returncode == 0 and subprocess.run([folder / "empty"], capture_output=True).returncode == 0
    # Skipped where tests count, what it would find would go unseen.
    if os.environ.get("CI") and not found and shutil.which("gcc") and "zig" not in cc:
        pytest.fail(f"{cc} can't link AddressSanitizer, whose library is missing: {done.stderr.decode()[-500:]}")
    return found


@pytest.fixture(scope="session")
def asan(tools, tmp_path_factory):
    """Whether the compiler has AddressSanitizer."""
    return has_asan(tools.cc, tmp_path_factory.mktemp("asan"))


@pytest.fixture(scope="session")
def programs(built, compilers, asan, tmp_path_factory):
    """The paths of the test programs, by mode and name. Two are compiled at once."""
    modes = [mode for mode in MODES if mode != "asan" or asan]
    library = dict.fromkeys(modes, built.library)
    if asan:
        library["asan"] = native.build(sanitize=True).library
    folder = tmp_path_factory.mktemp("programs")

    def build(mode, name):
        target = folder / f"{name}-{mode.replace('+', 'p')}"
        source = ROOT / "tests" / "native" / f"{name}.c"
        flags = [f"-I{built.header.parent}", "-x", "none"] if mode == "c++" else [f"-I{built.header.parent}"]
        where = library[mode].parent
        link = [] if name == "loading" else [f"-L{where}", "-lmeft_rows", f"-Wl,-rpath,{where}"]
        before, after = compilers[mode], ["-lpthread", "-ldl", "-o", target]
        run([*before, flags[0], source, *flags[1:], *link, *after])
        return (mode, name), target

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(build, mode, name) for mode in modes for name in PROGRAMS]
        return dict(job.result() for job in jobs)


@pytest.fixture(params=MODES)
def program(request, programs, tmp_path):
    """Run one of the test programs in one of the modes."""
    if (request.param, PROGRAMS[0]) not in programs:
        pytest.skip("this compiler has no AddressSanitizer; the same programs run without it")

    # What the library's Go part refers to (it keeps decoders) looks lost: the sanitizer does not know Go's heap. And
    # it would keep what is freed, which looks as if memory grew.
    known = tmp_path / "known"
    known.write_text(f"leak:{native.LIBRARY}\n")
    env = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=1:quarantine_size_mb=1:thread_local_quarantine_size_kb=16",
        "LSAN_OPTIONS": f"suppressions={known}:print_suppressions=0",
    }

    def start(name, *args, timeout=120):
        return run([programs[request.param, name], *args], timeout, **env)

    return start


@pytest.fixture
def small(tmp_path, rng):
    """A table of 100 rows of 4 floats, and a file of its rows."""
    rows = rng.integers(-9, 9, (100, 4)).astype(np.float32)
    rows.tofile(tmp_path / "rows")
    pack_native(rows, tmp_path / "small.men", block_rows=8)
    return tmp_path / "small.men", tmp_path / "rows"


def test_a_missing_sanitizer_fails_in_ci_and_skips_elsewhere(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'cannot find -lasan' >&2\nexit 1\n")
    broken.chmod(0o755)
    for ci, gcc, fails in (("", "gcc", False), ("true", None, False), ("true", "gcc", True)):
        monkeypatch.setenv("CI", ci)
        monkeypatch.setattr(shutil, "which", lambda _name, gcc=gcc: gcc)
        if fails:
            with pytest.raises(pytest.fail.Exception, match="cannot find -lasan"):
                has_asan(str(broken), tmp_path)
        else:
            assert not has_asan(str(broken), tmp_path)


# --- the build -------------------------------------------------------------------------------


def test_the_library_exports_what_the_header_declares(built):
    declared = native.exports(built.header)
    assert len(declared) == len(set(declared)) == 13
    # Loaded by a process of its own: this one has a Go runtime already.
    code = "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); [getattr(lib, name) for name in sys.argv[2:]]"
    run([sys.executable, "-c", code, built.library, *declared])
    if shutil.which("nm") and sys.platform == "linux":
        listing = run(["nm", "-D", "--defined-only", built.library])
        assert sorted(line.split()[-1] for line in listing.splitlines()) == sorted(declared)


@pytest.mark.parametrize(
    "language", ["c -std=c99", "c -std=c11", "c -std=gnu17", "c++ -std=c++11", "c++ -std=c++17", "c++ -std=c++20"]
)
def test_the_header_compiles_alone(built, compilers, language, tmp_path):
    kind, standard = language.split()
    source = tmp_path / "alone.c"
    source.write_text('#include "meft_rows.h"\n#include "meft_rows.h"\n')
    compiler = compilers[kind][0:1] if kind == "c" and "zig" not in compilers["c"][0] else compilers[kind]
    command = [part for part in compiler if not part.startswith("-std=") and part not in ("-x", "c++")]
    if "zig" in command[0] and kind == "c++":
        command.insert(1, "c++")
    run([*command, *STRICT, "-x", kind, standard, f"-I{built.header.parent}", "-c", source, "-o", tmp_path / "alone.o"])


def test_the_headers_codes_and_version_are_the_engines(built):
    text = built.header.read_text()
    assert f'#define MEFT_ROWS_VERSION "{__version__}"' in text
    codes = {name.lower(): int(code) for name, code in re.findall(r"MEFT_ROWS_(\w+) = (-\d+)", text)}
    known = {row["name"]: row["code"] for row in json.loads(_engine.text(_engine.lib.ErrorList))}
    assert len(codes) == 14 and codes.items() <= known.items()


def test_the_headers_kinds_are_the_formats(built):
    text = re.search(r"enum \{\s*MEFT_ROWS_UNKNOWN = .*?\}", built.header.read_text(), flags=re.DOTALL).group()
    codes = {name.lower(): int(code) for name, code in re.findall(r"MEFT_ROWS_(\w+) = (\d+)", text)}
    table = (ROOT / "gopkg" / "rowtable" / "FORMAT.md").read_text().split("## Kinds of rows")[1].split("## ")[0]
    assert codes == {name: int(number) for number, name in re.findall(r"\| (\d+) \| (\w+) \|", table)}


def test_the_headers_command_builds_the_headers_program(built, tools, small, tmp_path):
    text = built.header.read_text()
    command = re.search(r"^ \*     (cc .*)$", text, flags=re.MULTILINE).group(1)
    code = re.search(
        r"^ \*     meft_rows \*table;.*?meft_rows_close\(table\);$", text, flags=re.DOTALL | re.MULTILINE
    ).group()
    code = re.sub(r"^ \* ?", "", code, flags=re.MULTILINE).replace("...", 'printf("%s\\n", text); return 1;')
    os.symlink(built.library.parent, tmp_path / "build")
    os.rename(small[0], tmp_path / "table.men")
    (tmp_path / "program.c").write_text(
        '#include <stdio.h>\n#include "meft_rows.h"\n'
        + "int main(void) { int64_t ids[] = {42}, n = 1, width = 16; float out[4];\n"
        + code
        + '\nprintf("%g %g %g %g\\n", out[0], out[1], out[2], out[3]); return 0; }\n'
    )
    assert command.startswith("cc ")
    done = ["sh", "-c", f"{tools.cc} {command.removeprefix('cc ')} && ./program"]
    printed = subprocess.run(done, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert printed.returncode == 0, printed.stderr
    assert printed.stdout == " ".join(f"{v:g}" for v in np.fromfile(small[1], np.float32)[42 * 4 : 43 * 4]) + "\n"


# --- the example -----------------------------------------------------------------------------


def test_the_example_prints_rows(built, small):
    table, _ = small
    rows = np.fromfile(small[1], np.float32).reshape(-1, 4)
    lines = run([built.example, "-x", table, 0, 42, 0]).splitlines()
    assert lines == [rows[i].tobytes().hex() for i in (0, 42, 0)]
    for args in ([table, 42, 0], ["-f", table, 42, 0]):
        lines = run([built.example, *args]).splitlines()
        assert lines == [" ".join(f"{v:.9g}" for v in rows[i]) for i in (42, 0)]
    assert run([built.example, table]) == ""


def test_the_example_prints_what_a_table_records(built, tmp_path):
    values = np.array([[1.5, -0.0, 3, -4.25], [6e-8, np.inf, -np.inf, np.nan], [0.1, 1e-5, -65504, 2]], np.float64)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        rows = values.astype(dtype)
        pack_native(rows, tmp_path / "t.men")
        got = [
            list(map(float, line.split())) for line in run([built.example, tmp_path / "t.men", 0, 1, 2]).splitlines()
        ]
        np.testing.assert_array_equal(np.array(got).astype(dtype).astype(float), rows.astype(float))
    for kind in ("int8", "uint8_rowwise", "int4_rowwise"):
        pack_quantized(values[[0, 2]].astype(np.float32) % 5, tmp_path / kind, kind, native=True)
        got = run([built.example, tmp_path / kind / "table.men", 1, 0]).splitlines()
        with QuantizedRows(tmp_path / kind) as rows:
            want = rows.gather([1, 0])
        np.testing.assert_array_equal(np.array([line.split() for line in got], np.float32), want)
    pack_native(values.astype(np.float32).tobytes(), tmp_path / "u.men", row_bytes=16)
    assert run([built.example, tmp_path / "u.men", 0]) == f"{values[0].astype(np.float32).tobytes().hex()}\n"
    assert run([built.example, "-f", tmp_path / "u.men", 0]) == "1.5 -0 3 -4.25\n"


@pytest.mark.parametrize(
    "args, code, text",
    [
        (["{}", "100"], 1, "id 100 at position 0"),
        (["{}", "x"], 2, "x is no row number"),
        (["{}", "9" * 30], 2, "no row number"),
        (["/there/is/nothing", "1"], 1, "no such file"),
        (["-z", "{}"], 2, "usage"),
        ([], 2, "usage"),
    ],
)
def test_the_example_says_what_is_wrong(built, small, args, code, text):
    command = [built.example, *(arg.format(small[0]) for arg in args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code and text in done.stderr and done.stdout == ""
    assert "open: open" not in done.stderr


# --- the functions ---------------------------------------------------------------------------


def test_wrong_arguments_are_errors(program, small):
    program("arguments", *small)


def test_rows_and_bags_are_numpys(program, tmp_path, rng):
    queries = Queries(tmp_path, rng)
    for _ in range(25):
        queries.table()
    assert int(program("queries", queries.write())) == queries.count


def test_threads_storms_and_forks(program, small):
    program("life", *small)


@pytest.mark.parametrize("host", ["none", "simple", "info", "ignore", "blocked"])
@pytest.mark.parametrize("codec", ["raw", "zlib"])
def test_a_shortened_table_is_an_error_whatever_the_host_does_with_signals(program, tmp_path, host, codec):
    rows = np.arange(20_000 * 16, dtype=np.float32).reshape(-1, 16)
    if codec == "raw":
        rows = np.random.default_rng(1).standard_normal(rows.shape, np.float32)
    pack_native(rows, tmp_path / "t.men", codec="zlib")
    program("faults", host, tmp_path / "t.men")


def test_a_program_may_load_the_library_by_name(program, request, tmp_path, built):
    if request.node.callspec.params["program"] == "asan":
        built = native.build(sanitize=True)
    rows = np.random.default_rng(1).standard_normal((5000, 16), np.float32)
    rows.tofile(tmp_path / "rows")
    pack_native(rows, tmp_path / "t.men")
    program("loading", built.library, tmp_path / "t.men", tmp_path / "rows")


def test_damaged_files_give_errors_or_rows(program, tmp_path, rng):
    files = mutations(tmp_path, rng, 60)
    counts = Counter()
    for line in program("hostile", *files).splitlines():
        code, n = map(int, line.split())
        counts[code] = n
    assert sum(counts.values()) == len(files)
    assert counts[-7] + counts[-8] > len(files) / 4, counts


def test_structures_have_no_holes(built):
    """What the library reads as a field has no bytes between that a host leaves undefined."""
    sizes = {"q": ctypes.c_int64, "i": ctypes.c_int32}
    text = re.sub(r"/\*.*?\*/", "", built.header.read_text(), flags=re.DOTALL)
    for body in re.findall(r"typedef struct \w+ \{(.*?)\}", text, flags=re.DOTALL):
        fields = ["i" if kind == "int32_t" else "q" for kind in re.findall(r"\b(u?int\d+_t) \w+;", body)]
        struct = type("S", (ctypes.Structure,), {"_fields_": [(f"f{i}", sizes[k]) for i, k in enumerate(fields)]})
        assert ctypes.sizeof(struct) == sum(ctypes.sizeof(sizes[k]) for k in fields)
