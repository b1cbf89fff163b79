"""The command line: output, exit status, and no traceback for a user's mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loaderx import __version__, cli
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataset import DenseDataset
from loaderx.zrecord import CODECS, Zrecord

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def rows(rng):
    return rng.integers(0, 9, (500, 6, 4)).astype(np.float32)


@pytest.fixture
def store(tmp_path, rows):
    from_numpy(tmp_path / "s", rows)
    return str(tmp_path / "s")


@pytest.fixture
def run(capfdbinary):
    """Run a command in this process; return its status and what it printed."""

    def call(*args):
        status = cli.main([str(arg) for arg in args])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return call


@pytest.fixture
def run_json(run):
    def call(*args):
        status, out, _ = run(*args, "--json")
        assert out.count(b"\n") == 1
        return status, json.loads(out)

    return call


def test_info(store, rows, run, run_json):
    status, got = run_json("info", store)
    assert status == 0
    assert got["records"] == 500 and got["kind"] == "dense" and got["dtype"] == "<f4" and got["item_shape"] == [6, 4]
    assert got["record_bytes"] == rows.nbytes and got["append_codec"] == "zstd" and got["dictionary"] is False
    assert got["ratio"] == round(rows.nbytes / got["live_bytes"], 3)
    status, out, _ = run("info", store)
    assert status == 0 and b"records       500\n" in out and b"KiB" in out


def test_info_counts_the_codecs_of_the_records(store, rows, run, run_json):
    from_numpy(store, rows[:7], codec="raw")
    status, got = run_json("info", store)
    assert status == 0
    assert got["codecs"] == {"raw": 7, "zstd": 500, "zstd_dict": 0}
    assert got["append_codec"] == "raw"
    out = run("info", store)[1]
    assert b"codecs        7 raw, 500 zstd\n" in out and b"append codec  raw\n" in out
    Path(store, "schema.msgpack").unlink()  # a store of bytes
    got = run_json("info", store)[1]
    assert got["codecs"]["zstd"] == 500 and "append_codec" not in got


def test_verify_of_a_sound_store(store, run, run_json):
    expected = {"store": store, "records": 500, "bad": 0, "schema": "ok", "bad_records": []}
    assert run_json("verify", store) == (0, expected)
    assert run("verify", store)[0] == 0


def test_verify_lists_every_bad_record_and_fails(store, run, run_json):
    with open(store + "/meta.zr", "r+b") as f:
        for idx in (7, 400):
            f.seek(16 + 16 * idx)
            f.write(b"\xff" * 16)
    status, got = run_json("verify", store)
    assert status == 1 and got["bad"] == 2
    assert [one["index"] for one in got["bad_records"]] == [7, 400]
    status, out, _ = run("verify", store)
    assert status == 1 and b"record 7: " in out and b"record 400: " in out


def test_verify_compares_lengths_with_the_schema(store, run_json):
    with Zrecord(store, mode="a") as raw:
        raw.append(b"x" * 96 + b"y" * 95, [0, 96])
    status, got = run_json("verify", store)
    assert status == 1
    assert got["bad_records"] == [{"index": 501, "error": "has 95 bytes, a row of the schema has 96"}]
    Path(store, "schema.msgpack").write_bytes(b"\xff")
    status, got = run_json("verify", store)
    assert status == 1 and "schema" in got["schema"] and got["bad"] == 0
    Path(store, "schema.msgpack").unlink()
    assert run_json("verify", store)[0] == 0


def test_compact(store, rows, run_json, run):
    with Zrecord(store, mode="a") as raw:
        raw.delete(range(200))
    status, got = run_json("compact", store)
    assert status == 0 and got["records"] == 300 and got["freed"] > 0 and got["reclaimable"] == 0
    with DenseDataset(store) as ds:
        np.testing.assert_array_equal(ds[250], rows[250])
        # Somebody has it open.
        status, _, err = run("compact", store)
        assert status == 1 and "the store is in use: close the datasets" in err and "Traceback" not in err


def test_cat(tmp_path, store, rows, run, run_json):
    assert run("cat", store, 3) == (0, rows[3].tobytes(), "")
    assert run("cat", store, -1)[1] == run("cat", store, "--", -1)[1] == rows[-1].tobytes()
    assert run("cat", "--text", store, -500)[1].decode() == f"{rows[0]}\n"
    assert run("cat", "--text", store, 3)[1].decode() == f"{rows[3]}\n"
    status, got = run_json("cat", store, 3)
    assert status == 0 and got == {
        "index": 3,
        "bytes": 96,
        "dtype": "float32",
        "shape": [6, 4],
        "values": rows[3].tolist(),
    }
    from_iterator(tmp_path / "r", [b"abc", b"defgh"])
    assert run("cat", tmp_path / "r", 1)[1] == b"defgh"
    status, _, err = run("cat", store, 500)
    assert status == 1 and "index 500 of 500 records" in err


@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd_dict"])
def test_convert(tmp_path, rows, run_json, codec):
    np.save(tmp_path / "in.npy", rows)
    for times in (1, 2):  # the second time appends
        status, got = run_json("convert", tmp_path / "in.npy", tmp_path / "out", "--codec", codec)
        assert status == 0 and got["converted"] == 500 and got["records"] == 500 * times
    with DenseDataset(tmp_path / "out") as ds:
        assert ds.codec == codec
        np.testing.assert_array_equal(ds[500:], rows, strict=True)


@pytest.mark.parametrize(
    "args",
    [
        ["info", "missing"],
        ["verify", "missing"],
        ["compact", "missing"],
        ["cat", "missing", "0"],
        ["convert", "missing.npy", "out"],
        ["convert", "text.npy", "out"],
        ["convert", "text.npy", "out", "--no-append"],
    ],
)
def test_failures_say_what_is_wrong(tmp_path, monkeypatch, run, run_json, args):
    monkeypatch.chdir(tmp_path)
    Path("text.npy").write_text("no array")
    status, out, err = run(*args)
    assert status == 1 and out == b"" and err.startswith("loaderx: ") and "Traceback" not in err
    status, got = run_json(*args)
    assert status == 1 and got["error"] and got["kind"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.npy"]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["frobnicate"],
        ["info"],
        ["cat", "s", "x"],
        ["convert", "a", "b", "--codec", "lzma"],
        ["convert", "a", "b", "--codec", "raw", "--level", "3"],
        ["convert", "a", "b", "--dict-size", "9000"],
    ],
)
def test_wrong_usage_is_status_2(args, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(args)
    assert error.value.code == 2
    assert "usage: loaderx" in capsys.readouterr().err


def test_cat_prints_all_values_of_a_long_record(tmp_path, run):
    from_numpy(tmp_path / "s", np.arange(5000).reshape(1, 5000))
    out = run("cat", "--text", tmp_path / "s", 0)[1].decode()
    assert out.replace("[", " ").replace("]", " ").split() == [str(n) for n in range(5000)]


def save_objects(path):
    np.save(path, np.array([{}, []], dtype=object))


def save_short(path):
    np.save(path, np.arange(1000))
    with open(path, "r+b") as file:
        file.truncate(500)


@pytest.mark.parametrize(
    ("name", "save", "message"),
    [
        (
            "a.npz",
            lambda path: np.savez(path, a=np.arange(3)),
            "is an archive, perhaps of several arrays: save the one",
        ),
        ("a.npy", lambda path: path.write_text("1,2,3\n"), "is not a .npy file"),
        ("a.npy", lambda path: path.write_bytes(b""), "is not a .npy file"),
        ("a.npy", lambda path: path.write_bytes(b"\x93NUMPY\x01"), "is a damaged .npy file"),
        ("a.npy", save_short, "is a damaged .npy file"),
        ("a.npy", save_objects, "holds references to Python objects, which can't be stored"),
    ],
)
def test_convert_says_of_other_files_what_they_are(tmp_path, run, name, save, message):
    save(tmp_path / name)
    status, out, err = run("convert", tmp_path / name, tmp_path / "out")
    assert (status, out) == (1, b"") and err.startswith(f"loaderx: {tmp_path / name} {message}")
    assert "pickle" not in err and "asarray" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_convert_can_refuse_to_append(tmp_path, rows, run, run_json):
    np.save(tmp_path / "in.npy", rows)
    assert run_json("convert", tmp_path / "in.npy", tmp_path / "out", "--no-append")[1]["records"] == 500
    status, _, err = run("convert", tmp_path / "in.npy", tmp_path / "out", "--no-append")
    assert status == 1 and f"{tmp_path / 'out'} holds a store of 500 records" in err
    assert run_json("convert", tmp_path / "in.npy", tmp_path / "out")[1]["records"] == 1000


@pytest.mark.parametrize("codec", [[], ["--codec", "raw"], ["--codec", "zstd"]])
def test_the_size_of_a_dictionary_without_one_is_wrong_usage(tmp_path, rows, codec, capsys):
    np.save(tmp_path / "in.npy", rows)
    with pytest.raises(SystemExit) as error:
        cli.main(["convert", str(tmp_path / "in.npy"), str(tmp_path / "out"), "--dict-size", "1000", *codec])
    assert error.value.code == 2
    assert "--dict-size goes with --codec zstd_dict" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--level", "99", "level must be in 1..22, got 99"),
        ("--level", "0", "level must be in 1..22, got 0"),
        ("--dict-size", "1", "dict_size must be in 256..16777216, got 1"),
        ("--dict-size", "999999999", "dict_size must be in 256..16777216, got 999999999"),
    ],
)
def test_numbers_that_no_conversion_takes(tmp_path, rows, run, option, value, message):
    np.save(tmp_path / "in.npy", rows)
    status, _, err = run("convert", tmp_path / "in.npy", tmp_path / "out", "--codec", "zstd_dict", option, value)
    assert (status, err) == (1, f"loaderx: {message}\n")
    assert not (tmp_path / "out").exists()


def test_the_codecs_are_those_of_the_engine(capsys):
    with pytest.raises(SystemExit):
        cli.main(["convert", "--help"])
    assert f"Codecs: {', '.join(CODECS)}." in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["convert", "a", "b", "--codec", "lzma"])
    assert f"unknown codec 'lzma', expected one of {sorted(CODECS)}" in capsys.readouterr().err


def test_the_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "loaderx", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.startswith("usage: loaderx [")


def test_version_and_help_do_not_load_the_engine(python):
    out = python(
        """
        import sys
        from loaderx import cli
        for args in (["--version"], ["--help"]):
            try:
                cli.main(args)
            except SystemExit as end:
                assert end.code == 0
        assert "loaderx._native" not in sys.modules
        """
    )
    assert f"loaderx-go {__version__}" in out and "convert" in out


def test_a_closed_pipe_is_quiet(store):
    code = f"import sys; from loaderx.cli import main; sys.exit(main(['cat', {store!r}, '0', '--json']))"
    command = f'{sys.executable} -W error -c "{code}" | true; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == "" and done.stdout == "0\n"


def test_the_console_command_is_declared():
    # tomllib comes with Python 3.11 only.
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.scripts]\nloaderx = "loaderx.cli:main"\n' in text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (np.array([[1.5, np.nan], [np.inf, -2]]), [1.5, None]),
        (np.array([1 + 2j, 3 - 4j]), [1.0, 2.0]),
        (np.array(["2026-01-02", "2026-01-03"], "M8[D]"), "2026-01-02"),
        (np.array([True, False]), True),
        (np.array(["ab", "c"]), "ab"),
    ],
)
def test_values_are_json_whatever_their_dtype(tmp_path, run, values, shown):
    from_numpy(tmp_path / "v", values)
    status, out, err = run("cat", tmp_path / "v", 0, "--json", "--text")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    got = json.loads(out, parse_constant=refuse)["values"]
    assert status == 0 and err == "" and got == shown


def test_a_reader_that_stops_does_not_hide_what_was_found(tmp_path):
    from_numpy(tmp_path / "s", np.arange(50_000), codec="zstd")
    with open(tmp_path / "s" / "0.zr", "r+b") as f:
        f.truncate(1000)
    command = [sys.executable, "-m", "loaderx", "verify", str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 1


@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-"])
@pytest.mark.parametrize("options", ["", "--json"])
def test_an_output_that_takes_nothing_is_no_traceback(tmp_path, redirection, options):
    command = f"{sys.executable} -m loaderx info {options} {tmp_path / 'missing'} {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize("harm", ["missing", "short"])
def test_info_says_that_records_are_lost(store, run, run_json, harm):
    assert run_json("info", store)[1]["lost"] == 0
    chunk = Path(store, "0.zr")
    chunk.unlink() if harm == "missing" else os.truncate(chunk, 1)
    status, got = run_json("info", store)
    assert status == 1 and got["lost"] == got["records"] == 500
    status, out, err = run("info", store)
    assert status == 1 and b"lost          500\n" in out
    assert err == f"loaderx: {store}: 500 of 500 records can't be read: a chunk file is missing or too short\n"


@pytest.mark.parametrize("name", [b"a\nrecord 7: forged", b"\xff\xfe", "\x1b[31m\u202e".encode(), b"a\rb\x7f"])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_names_of_any_bytes_neither_crash_nor_forge_lines(tmp_path, name, locale):
    place = os.path.join(os.fsencode(tmp_path), name)
    from_numpy(os.fsdecode(place), np.arange(5))
    env = {**os.environ, "LC_ALL": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}

    def lines(*args):
        done = subprocess.run([sys.executable, "-m", "loaderx", *args], capture_output=True, cwd=ROOT, env=env)
        assert b"Traceback" not in done.stderr
        for stream in (done.stdout, done.stderr):
            assert all(c.isprintable() or c == "\n" for c in stream.decode()), stream
        return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()

    status, out, err = lines("info", place)
    assert status == 0 and len(out) == len(set(out)) == 14 and err == []
    status, out, err = lines("verify", place)
    assert status == 0 and len(out) == 4 and err == []
    status, out, err = lines("info", place + b"x")
    assert status == 1 and out == [] and len(err) == 1 and err[0].startswith(b"loaderx: ")
    status, out, err = lines("cat", place, "9")
    assert status == 1 and len(err) == 1
    os.remove(place + b"/0.zr")
    status, out, err = lines("info", place)
    assert status == 1 and len(out) == 14 and len(err) == 1
    for args in (("verify", place, "--json"), ("info", place, "--json"), ("info", place + b"x", "--json")):
        status, out, err = lines(*args)
        assert status == 1 and len(out) == 1 and json.loads(out[0])
    status, out, err = lines("verify", place)
    assert status == 1 and len(out) == 4 + 5
