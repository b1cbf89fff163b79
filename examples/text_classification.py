"""A text classifier whose largest layer, an EmbeddingBag, is trained, moved to a file, and served from there.

    pip install '.[torch,examples]'
    python examples/text_classification.py [--data DIR] [--texts N] [--rows N] [--epochs N] [--plot FILE]

The texts are real ones that every environment has: the docstrings of Python and of four of its packages. The
task is to tell which of the five one is from, by its words and pairs of words, hashed into the rows of a table,
without their names. The trained model is saved as a whole, and with its table replaced; each is then opened in a
process of its own, which measures its memory. Scores must be the same bits. Ends with a line that begins with
OK, or with an exit status other than 0.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import itertools
import json
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import needs_torch  # noqa: F401 - before torch, whose absence it explains
import torch
from quickstart import check, watched
from torch import nn

from ngram_store import open_embedding_bag, replace_embeddings

SOURCES = ("python", "numpy", "torch", "sklearn", "scipy")
NAMES = {*SOURCES, "np", "scikit", "learn", "pytorch"}  # would give the answer away
DIM, BATCH = 128, 64


def docstrings(source: str, count: int) -> Iterator[tuple[bool, str]]:
    """Yield `count` texts, and whether one is for the test; all of one file are for the same."""
    spec = None if source == "python" else importlib.util.find_spec(source)
    check(source == "python" or spec is not None, f"there is no {source}; pip install '.[torch,examples]'")
    folder = Path(sysconfig.get_path("stdlib") if spec is None else spec.submodule_search_locations[0])
    kept = (file.relative_to(folder) for file in folder.rglob("*.py"))
    files = sorted(file for file in kept if not {"site-packages", "test", "tests", "testing"} & set(file.parts))
    random.Random(1).shuffle(files)
    for file in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about other people's code
                tree = ast.parse((folder / file).read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node) or ""
                if len(text) > 150 and count > 0:
                    count -= 1
                    yield zlib.crc32(str(file).encode()) % 4 == 0, text
        if not count:
            return


def hashed(text: str, rows: int) -> list[int]:
    """Return the rows of the words and the pairs of words of a text."""
    words = [word for word in re.findall(r"[a-z]+|[^\sa-z]", text.lower()) if word not in NAMES]
    pairs = map(" ".join, itertools.pairwise(words))
    return [zlib.crc32(word.encode()) % rows for word in (*words, *pairs)]


def collect(texts: int, rows: int) -> dict[bool, list]:
    """Return pairs of ids and class, for training (False) and for the test (True)."""
    data = {False: [], True: []}
    for label, source in enumerate(SOURCES):
        for held_out, text in watched(docstrings(source, texts), texts, f"reading {source}"):
            data[held_out].append((hashed(text, rows), label))
    random.Random(2).shuffle(data[False])
    return data


def batches(examples: list) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield ids one after another, where each text begins in them, and classes."""
    for start in range(0, len(examples), BATCH):
        ids, labels = zip(*examples[start : start + BATCH], strict=True)
        ends = torch.tensor([0, *map(len, ids)]).cumsum(0)
        yield torch.tensor([row for text in ids for row in text]), ends[:-1], torch.tensor(labels)


class Classifier(nn.Module):
    """The mean of a text's rows, and a linear layer."""

    def __init__(self, bag: nn.Module) -> None:
        super().__init__()
        self.bag, self.head = bag, nn.Linear(DIM, len(SOURCES))

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(ids, offsets))


def train(examples: list, rows: int, epochs: int) -> Classifier:
    """Return a trained model."""
    torch.manual_seed(3)
    model = Classifier(nn.EmbeddingBag(rows, DIM, mode="mean", sparse=True))
    nn.init.normal_(model.bag.weight, std=0.02)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch warns unless told one way or the other
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        steps = -(-len(examples) // BATCH)
        for ids, offsets, labels in watched(batches(examples), steps, f"training, epoch {epoch + 1} of {epochs}"):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(ids, offsets), labels).backward()
            optimizer.step()
    return model.eval()


def memory() -> dict[str, int]:
    """Return this process's resident memory in bytes: all of it, and what is not pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "RssAnon"))}
    return {"resident": kib["VmRSS"] << 10, "own": kib["RssAnon"] << 10}


def opened(data: Path, kind: str) -> Classifier:
    """Return the trained model with its table in memory ("resident") or in a file ("mapped")."""
    if kind == "mapped":
        model = Classifier(open_embedding_bag(data / "tables" / "bag"))
        model.load_state_dict(torch.load(data / "head.pt"))  # what is in a table is in no state_dict
    else:
        saved = torch.load(data / "whole.pt")
        model = Classifier(nn.EmbeddingBag.from_pretrained(saved.pop("bag.weight"), mode="mean"))
        model.load_state_dict(saved, strict=False)
    return model.eval()


def serve(data: Path, kind: str) -> None:
    """Open a model, score the test's texts, and print what that took; runs in a process of its own."""
    test = torch.load(data / "test.pt")
    before, start = memory(), time.perf_counter()
    model, ready = opened(data, kind), time.perf_counter()
    with torch.inference_mode():
        scores = torch.cat([model(ids, offsets) for ids, offsets, _ in test])
    done, after = time.perf_counter(), memory()
    torch.save(scores, data / f"{kind}.scores.pt")
    labels = torch.cat([labels for _, _, labels in test])
    said = {name: after[name] - before[name] for name in after}
    said |= {"open_s": ready - start, "score_s": done - ready}
    print(json.dumps({"accuracy": (scores.argmax(1) == labels).double().mean().item(), **said}))


def run(data: Path, texts: int, rows: int, epochs: int, plot: Path | None) -> None:
    """Train, save, replace, and compare."""
    print("of the default sizes it takes about a minute on two cores", flush=True)
    examples = collect(texts, rows)
    test = list(batches(examples[True]))
    print(
        f"{len(examples[False])} texts to learn from, {len(examples[True])} held out, of {', '.join(SOURCES)}",
        flush=True,
    )
    model = train(examples[False], rows, epochs)
    torch.save(test, data / "test.pt")
    torch.save(model.state_dict(), data / "whole.pt")
    print(replace_embeddings(model, data / "tables", overwrite=True))
    torch.save(model.state_dict(), data / "head.pt")
    found = {}
    for kind in ("resident", "mapped"):
        command = [sys.executable, __file__, "--data", str(data), "--serve", kind]
        found[kind] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        line = "{accuracy:.1%} right, opened in {open_s:.3f} s, scored in {score_s:.3f} s".format(**found[kind])
        mib = {name: found[kind][name] / (1 << 20) for name in ("resident", "own")}
        print(f"{kind:>8}: {line}, memory {mib['resident']:.0f} MiB, {mib['own']:.0f} of them its own")
    scores = [torch.load(data / f"{kind}.scores.pt") for kind in found]
    check(torch.equal(scores[0].view(torch.int32), scores[1].view(torch.int32)), "the scores differ")
    one, other = found["resident"], found["mapped"]
    check(one["accuracy"] == other["accuracy"], "the accuracies differ")
    check(one["accuracy"] > 0.6, "the model has not learned")
    check(one["own"] - other["own"] > rows * DIM * 4 // 2, "the table takes as much memory as before")
    if plot:
        draw(plot, found)
    print(f"OK: {scores[0].numel()} scores have the same bits, {other['accuracy']:.1%} of held-out texts right")


def draw(file: Path, found: dict[str, dict[str, float]]) -> None:
    """Draw time and memory of both models side by side."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(9, 3), layout="constrained")
    kinds = list(found)
    for axis, title, names, scale in (
        (axes[0], "opening, ms", ("open_s",), 1e3),
        (axes[1], "scoring, ms", ("score_s",), 1e3),
        (axes[2], "memory, MiB: all, and its own", ("resident", "own"), 1 / (1 << 20)),
    ):
        for number, name in enumerate(names):
            bars = axis.bar(kinds, [found[kind][name] * scale for kind in kinds], width=0.7 - 0.3 * number)
            axis.bar_label(bars, fmt="%.0f", label_type="center" if number else "edge")
        axis.set_title(title)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where models are kept (default: a temporary directory)")
    parser.add_argument("--texts", type=int, default=1000, help="of each source (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1 << 18, help="of the table (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="draw time and memory into this file (needs matplotlib)")
    parser.add_argument("--serve", choices=("resident", "mapped"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.serve:
        serve(options.data, options.serve)
        return
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch)
        data.mkdir(parents=True, exist_ok=True)
        run(data, options.texts, options.rows, options.epochs, options.plot)


if __name__ == "__main__":
    main()
