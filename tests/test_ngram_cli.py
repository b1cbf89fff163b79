"""The command ngram-store: output, exit status, and no traceback for a user's mistake."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import torch

from loaderx import __version__
from ngram_store import NativeRows, QuantizedRows, cli, export_embedding, pack_native, pack_quantized
from tests.processes import ROOT


@pytest.fixture
def matrix(rng):
    return rng.integers(-3, 4, (500, 8)).astype(np.float32)


@pytest.fixture
def source(tmp_path, matrix):
    np.save(tmp_path / "in.npy", matrix)
    return tmp_path / "in.npy"


@pytest.fixture
def table(tmp_path, matrix):
    pack_native(matrix, tmp_path / "t.men", predictor="auto")
    return tmp_path / "t.men"


@pytest.fixture(params=["file", "embedding", "python", "quantized", "plain"])
def any_table(request, tmp_path, matrix):
    """Every sort of table, and the file in it that holds the rows."""
    path = tmp_path / "any"
    match request.param:
        case "file":
            pack_native(matrix, path)
            return path, path
        case "quantized" | "plain":
            native = request.param == "quantized"
            pack_quantized(matrix, path, "int4_rowwise", native)
            return path, path / ("table.men" if native else "rows.bin")
    backend = "native" if request.param == "embedding" else "python"
    export_embedding(torch.nn.Embedding.from_pretrained(torch.from_numpy(matrix)), path, backend)
    return path, path / ("table.men" if backend == "native" else "rows.bin")


def test_every_option_says_what_it_does_and_its_default():
    parser = cli._parser()
    commands = next(action.choices for action in parser._actions if action.choices)
    assert set(commands) == {"pack", "info", "cat", "verify", "bench"}
    for command, sub in commands.items():
        for action in sub._actions:
            if action.option_strings:
                assert action.help, f"{command} {action.option_strings[0]}"
                if action.default not in (None, False, "==SUPPRESS=="):
                    assert "default: " in action.help, f"{command} {action.option_strings[0]}"
        text = " ".join(sub.format_help().split())
        if command == "pack":
            for words in ("default: auto, which is both", "together; default: 256", "encoded at once; default: 4096"):
                assert words in text


@pytest.fixture
def run(capfd):
    """Run a command in this process; return its status and what it printed."""

    def call(*args):
        status = cli.main([str(arg) for arg in args])
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def run_json(run):
    def call(*args):
        status, out, err = run(*args, "--json")
        assert out.count("\n") == 1 and err == ""
        return status, json.loads(out)

    return call


def test_pack(tmp_path, source, matrix, run, run_json):
    status, got = run_json("pack", source, tmp_path / "t", "--codec", "zstd", "--predictor", "auto", "--level", 5)
    assert status == 0 and got["rows"] == 500 and got["row_bytes"] == 32
    assert got["file_bytes"] == os.path.getsize(tmp_path / "t") and got["encodings"][0]["codec"] == "zstd"
    matrix.tofile(tmp_path / "raw")
    raw = "pack", tmp_path / "raw", tmp_path / "u", "--row-bytes", 32, "--deduplicate", "--block-rows", 50
    status, out, err = run(*raw)
    assert status == 0 and err == "" and "encodings" in out and "raw bytes      16000  (15.62 KiB)\n" in out
    for name in "tu":
        with NativeRows(tmp_path / name) as rows:
            np.testing.assert_array_equal(rows.gather(np.arange(500), dtype="float32"), matrix)
    status, got = run_json(*raw)
    assert (status, got["kind"]) == (1, "StoreExistsError")
    assert run_json(*raw, "--overwrite")[0] == 0


def test_pack_quantised(tmp_path, source, matrix, run_json):
    status, got = run_json("pack", source, tmp_path / "q", "--kind", "int8", "--native", "no", "--chunk-rows", 7)
    assert status == 0 and got["kind"] == "int8" and got["width"] == 12 and got["file_bytes"] == 6000
    matrix.tofile(tmp_path / "raw")
    raw = "pack", tmp_path / "raw", tmp_path / "r", "--kind", "int8", "--dim", 8, "--native", "yes"
    status, again = run_json(*raw)
    assert status == 0 and again["decoded_sha256"] == got["decoded_sha256"] and again["native"]
    assert run_json(*raw)[1]["kind"] == "StoreExistsError"
    assert run_json(*raw, "--overwrite")[0] == 0
    with QuantizedRows(tmp_path / "q") as one, QuantizedRows(tmp_path / "r") as other:
        np.testing.assert_array_equal(one.gather(np.arange(500)), other.gather(np.arange(500)))


def test_errors_name_options_as_they_are_typed(tmp_path, source, run):
    folder = tmp_path / "row_bytes"
    folder.mkdir()
    raw = folder / "max_block_bytes"
    raw.write_bytes(bytes(32))
    status, _, err = run("pack", raw, tmp_path / "t")
    assert status == 1 and "--row-bytes is needed" in err and "row_bytes" not in err
    status, _, err = run("pack", raw, tmp_path / "t", "--row-bytes", 7)
    assert status == 1 and "not whole rows" in err
    status, _, err = run("pack", raw, raw, "--row-bytes", 8)
    assert status == 1 and f"{raw} is a file and no table" in err
    run("pack", source, tmp_path / "q", "--kind", "int8")
    status, _, err = run("pack", source, tmp_path / "q", "--kind", "int8")
    assert status == 1 and "already; --overwrite replaces it" in err


def test_pack_says_what_replaces_a_bundle(tmp_path, source, run):
    run("pack", source, tmp_path / "q", "--kind", "int8")
    for more in ((), ("--overwrite",)):
        status, _, err = run("pack", source, tmp_path / "q", *more)
        assert status == 1 and "is a bundle, which --kind writes and replaces" in err


def test_info(any_table, run, run_json):
    path, file = any_table
    status, got = run_json("info", path)
    assert status == 0 and got["rows"] == 500 and got["file_bytes"] == os.path.getsize(file)
    assert path == file or (got["sha256"] and got["embedding_dim"] == 8)
    status, out, err = run("info", path)
    assert status == 0 and err == "" and len(out.splitlines()) == len(got)


def test_cat(any_table, matrix, run, run_json):
    path, _ = any_table
    status, got = run_json("cat", path, 3, -1, 3)
    assert status == 0 and [row["id"] for row in got["rows"]] == [3, 499, 3]
    np.testing.assert_allclose([row["values"] for row in got["rows"]], matrix[[3, 499, 3]], atol=0.3)
    status, out, err = run("cat", path, 3, -1)
    lines = out.splitlines()
    assert (status, err) == (0, "") and lines[0].startswith("3: [") and lines[1].startswith("499: [")
    status, out, err = run("cat", path, 0, 500)
    assert (status, out) == (1, "") and "id 500 of 500 rows" in err


def test_cat_prints_what_rows_consist_of(tmp_path, run, run_json):
    path, values = tmp_path / "t", np.array([[1.5, np.nan], [-2, 1 / 3]])
    for name, dtype in (("fp64", np.float64), ("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        pack_native(values.astype(dtype), path)
        status, got = run_json("cat", path, 0, 1)
        assert (status, got["dtype"]) == (0, name)
        assert [row["values"] for row in got["rows"]] == [[1.5, None], [-2, float(dtype(1 / 3))]]
    integers = np.array([[1, 2], [3, -4]], np.int16)
    for rows in (integers, integers.view(np.uint8)):
        pack_native(rows, path)
        assert run("cat", path, 1)[1] == "1: [  3   0 252 255]\n"
        assert run("cat", path, 1, "--dtype", "int16")[1] == "1: [ 3 -4]\n"
    assert run("cat", path, 1, "--dtype", "half")[0] == 0
    assert run("cat", path, 1, "--dtype", "fp8")[0] == 1
    pack_native(np.arange(100000, dtype=np.float64).reshape(1, -1), path)
    assert run("cat", path, 0)[1].count("\n") == 1
    for kind in ("int4_rowwise", "fp32"):  # plain rows, of which only the bundle knows the kind
        pack_quantized(np.ones((3, 4), np.float32), tmp_path / kind, kind, native=False)
        assert run("cat", tmp_path / kind, 2)[:2] == (0, "2: [1. 1. 1. 1.]\n")
        status, _out, err = run("cat", tmp_path / kind, 0, "--dtype", "fp16")
        assert status == 1 and f"its rows are {kind}, and dtype says fp16" in err


def test_verify(any_table, run, run_json):
    path, file = any_table
    assert run_json("verify", path)[0] == 0
    whole = file.read_bytes()
    file.write_bytes(whole[:-3] + bytes([whole[-3] ^ 4]) + whole[-2:])
    status, got = run_json("verify", path)
    assert status == 1 and got["bad"] == len(got["faults"]) >= 1
    status, out, err = run("verify", path)
    assert status == 1 and err == "" and out.splitlines()[0].startswith(("block 1", str(file)))
    assert out.splitlines()[0].count("block 1") < 2
    file.write_bytes(whole[:100])
    assert run("verify", path)[0] == 1


def test_verify_of_another_table(tmp_path, matrix, run_json):
    pack_quantized(matrix, tmp_path / "q", "int8", True)
    pack_native(matrix[:9], tmp_path / "q" / "table.men")
    status, got = run_json("verify", tmp_path / "q")
    assert status == 1 and "its bundle says 500 rows of 12 bytes" in got["faults"][0]["error"]


def test_bench(any_table, run, run_json):
    path, _ = any_table
    options = "--seconds", 0.01, "--ids", 100, "--threads", 1, "--cache-bytes", 100000, "--cache-policy", "rows"
    status, got = run_json("bench", path, *options)
    assert status == 0 and got["ids"] == 100 and got["queries"] >= 1
    assert 0 < got["least_ms"] <= got["median_ms"] and got["rows_per_second"] > 0
    assert run("bench", path, *options)[0] == 0


@pytest.mark.parametrize(
    "args",
    [
        ("info", "missing"),
        ("cat", "missing", "0"),
        ("cat", "empty", "0"),
        ("verify", "missing"),
        ("bench", "missing"),
        ("info", "."),
        ("info", "in.npy"),
        ("pack", "missing", "out"),
        ("pack", "missing", "out", "--kind", "int8", "--dim", "3"),
        ("pack", ".", "out"),
        ("pack", "raw", "out"),
        ("pack", "raw", "out", "--kind", "fp16"),
        ("pack", "raw", "out", "--row-bytes", "7"),
        ("pack", "raw", "out", "--dim", "7", "--kind", "fp16"),
        ("pack", "in.npy", "out", "--dim", "7", "--kind", "fp16"),
        ("pack", "in.npy", "in.npy/out"),
        ("pack", "in.npy", "in.npy", "--overwrite"),
        ("pack", "in.npy", "notes", "--overwrite"),
        ("pack", "in.npy", "out", "--level", "30"),
        ("bench", "empty"),
        ("bench", "t.men", "--cache-bytes", "-1"),
    ],
)
def test_failures_are_one_line(tmp_path, monkeypatch, source, table, run, run_json, args):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").write_bytes(bytes(32))
    (tmp_path / "notes").write_text("x")
    before = source.read_bytes()
    pack_native(np.zeros((0, 4), np.float32), "empty")
    status, out, err = run(*args)
    assert status == 1 and out == "" and err.count("\n") == 1 and err.startswith("ngram-store: ")
    status, got = run_json(*args)
    assert status == 1 and set(got) == {"error", "kind"}
    assert not os.path.exists("out") and source.read_bytes() == before


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("tidy", "t"),
        ("pack", "a", "b", "--dim", "3"),
        ("pack", "a", "b", "--native", "yes"),
        ("pack", "a", "b", "--kind", "int9"),
        ("pack", "a", "b", "--kind", "int8", "--row-bytes", "8"),
        ("pack", "a", "b", "--codec", "raw", "--level", "3"),
        ("pack", "a", "b", "--block-rows", "0"),
        ("bench", "t", "--ids", "x"),
    ],
)
def test_wrong_calls(args, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(list(args))
    assert end.value.code == 2 and "usage: ngram-store" in capsys.readouterr().err


def test_the_module_is_the_command(table):
    command = [sys.executable, "-m", "ngram_store"]
    done = subprocess.run([*command, "info", str(table), "--json"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and json.loads(done.stdout)["rows"] == 500 and done.stderr == ""
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"loaderx-go {__version__}\n"
