"""What newcomers run first: the example, and the code in the README and the guide."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import loaderx
from loaderx.converter import from_numpy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = [
    block
    for name in ("README.md", "docs/GUIDE.md")
    for block in re.findall(r"^```python\n(.*?)^```$", (ROOT / name).read_text(), re.M | re.S)
]


def python(cwd, *args):
    """Run Python in `cwd` with the package that this process has imported."""
    env = dict(os.environ, PYTHONPATH=str(Path(loaderx.__file__).parents[1]), JAX_PLATFORMS="cpu")
    return subprocess.run(
        [sys.executable, *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )


def quickstart(cwd, *args):
    return python(cwd, ROOT / "examples" / "quickstart.py", *args)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_quickstart_trains_with_every_backend(tmp_path, backend):
    done = quickstart(tmp_path, "--backend", backend, "--steps", "150")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("OK: 150 batches compared with their source")
    assert list(tmp_path.iterdir()) == []


def test_quickstart_reuses_its_stores_and_repeats_its_results(tmp_path):
    first = quickstart(tmp_path, "--backend", "numpy", "--steps", "40", "--data", "stores")
    again = quickstart(tmp_path, "--backend", "numpy", "--steps", "40", "--data", "stores")
    assert (first.returncode, first.stderr, again.returncode, again.stderr) == (0, "", 0, "")
    assert "images written" in first.stdout
    assert "images found" in again.stdout
    assert first.stdout.splitlines()[-2:] == again.stdout.splitlines()[-2:]


def test_quickstart_refuses_stores_with_something_else_in_them(tmp_path):
    from_numpy(tmp_path / "images", np.zeros((3, 28, 28), np.uint8))
    done = quickstart(tmp_path, "--backend", "numpy", "--data", tmp_path)
    assert done.returncode == 1
    assert "FAILED" in done.stderr
    assert "does not hold these records" in done.stderr
    assert "OK" not in done.stdout


def test_quickstart_refuses_to_train_for_no_steps(tmp_path):
    done = quickstart(tmp_path, "--steps", "0")
    assert done.returncode == 2
    assert "--steps" in done.stderr


def test_quickstart_compares_a_compressed_and_a_raw_store(tmp_path):
    done = quickstart(tmp_path, "--backend", "numpy", "--steps", "1")
    images, labels, rates = done.stdout.splitlines()[1:4]
    assert re.fullmatch(r"images written: \d+ records, zstd, .* ratio \d\.\d\d", images)
    assert re.fullmatch(r"labels written: \d+ records, raw", labels)
    assert re.search(r"loader [\d,]+ zstd, [\d,]+ raw; NumPy [\d,]+", rates)


def test_readme_has_a_block_for_each_framework_resuming_ragged_records_tables_and_bytes():
    signs = [
        "optimizer",
        "import jax\n",
        "MappedEmbedding",
        "state_dict",
        "RaggedDataset",
        "pack_native",
        "pack_quantized",
        "Zrecord(",
    ]
    for k, sign in enumerate(signs):
        assert [sign in block for block in BLOCKS] == [i == k for i in range(len(signs))]


@pytest.mark.parametrize(
    "block", BLOCKS, ids=["torch", "jax", "modules", "resume", "ragged", "rows", "quantised", "bytes"]
)
def test_readme_code_runs_as_it_is_and_once_more(tmp_path, monkeypatch, block):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "block.py").write_text(block)
    for _ in range(2):
        done = python(tmp_path, "-W", "error::UserWarning", "block.py")
        assert (done.returncode, done.stderr) == (0, "")
