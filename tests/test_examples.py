"""The examples beside the quickstart, run as a user runs them."""

import re
from pathlib import Path

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.slow


def test_training_resumes_in_the_middle_of_an_epoch(tmp_path, python):
    out = python(
        Path(ROOT / "examples" / "torch_resume.py"), "--steps", 30, "--data", tmp_path, silent=True
    ).splitlines()
    assert re.fullmatch(r"\d+ records, 19 steps an epoch; checkpoint at step 20, 1 into an epoch", out[0])
    assert out[-1].startswith("OK: 10 losses after the checkpoint are those of the run without a break")


def test_latents_are_stored_and_trained_on(tmp_path, python):
    path = tmp_path / "data"
    out = python(Path(ROOT / "examples" / "jax_latents.py"), "--steps", 40, "--data", path, silent=True).splitlines()
    assert "train: 4000 latents of (7, 7, 4), bfloat16" in out
    assert re.fullmatch(r"OK: trained on stored latents, \d\d\.\d% of held-out digits right", out[-1])
    assert sorted(p.name for p in (path / "train").iterdir()) == ["images", "labels", "latents"]


def told(out):
    """Return the lines behind the one that says how long it takes, without those that say how far it is."""
    first, *rest = out.splitlines()
    assert re.fullmatch(r"of the default sizes it takes .* on two cores", first)
    return [line for line in rest if not re.fullmatch(r"(reading|training).*: \d+ of \d+", line)]


def test_what_takes_long_says_how_far_it_is(python):
    code = "from quickstart import watched; assert list(watched('abc', 3, 'training', 0)) == list('abc')"
    out = python(f"import sys; sys.path.insert(0, {str(ROOT / 'examples')!r}); {code}")
    assert out.splitlines() == [f"training: {number} of 3" for number in range(3)]


def test_a_classifier_scores_texts_from_its_table(tmp_path, python):
    program, path = Path(ROOT / "examples" / "text_classification.py"), tmp_path / "data"
    sizes = "--texts", 200, "--rows", 100_000, "--epochs", 3, "--plot", tmp_path / "plot.png"
    out = told(python(program, *sizes, "--data", path, silent=True, timeout=600))
    assert re.fullmatch(r"\d+ texts to learn from, \d+ held out, of python, numpy, torch, sklearn, scipy", out[0])
    assert "bag (EmbeddingBag): 51,200,000 bytes freed" in out[1]
    assert re.fullmatch(r"OK: \d+ scores have the same bits, \d\d\.\d% of held-out texts right", out[-1])
    assert (path / "head.pt").stat().st_size < 10_000 < 51_200_000 < (path / "whole.pt").stat().st_size
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_language_model_reads_its_memory_from_a_table(tmp_path, python):
    program, path = Path(ROOT / "examples" / "engram_lm.py"), tmp_path / "data"
    sizes = "--texts", 300, "--rows", 40_000, "--steps", 60
    out = told(python(program, *sizes, "--data", path, silent=True, timeout=600))
    assert re.fullmatch(r"\d+ words to learn from, \d+ held out, of python, numpy, torch", out[0])
    assert re.fullmatch(r"loss on held-out words: \d\.\d+ without the memory, \d\.\d+ with it", out[-2])
    assert re.fullmatch(r"OK: \d+ logits have the same bits, .*; the memory helps", out[-1])
    assert (path / "mapped.pt").stat().st_size < 5_000_000 < 40_000_000 < (path / "resident.pt").stat().st_size
