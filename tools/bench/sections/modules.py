"""Modules on mapped tables, beside the engine alone and torch's own.

The table has 1,000,000 rows of 128 float32 columns, ids are uniform, and every module is called under
``inference_mode``. ``engine`` is the same look-up by `NativeRows` into memory that is given, as the module's
is after the first calls, so that what is between the two is the module.

The classifier is the whole model of ``examples/text_classification.py``, trained here, and measured in two
processes, which hold its table in memory and map it: time for all held-out texts, and memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ngram_store import MappedEmbedding, MappedEmbeddingBag, NativeRows, export_embedding

from ..bench import Bench
from ..case import OURS, Case
from ..loops import Run, over
from ..peers.process import PeerProcess

_DIM, _BAGS, _EACH, _POOL = 128, 4096, 20, 16
_TORCH, _ENGINE = "torch", "engine"

#: A module may take a tenth longer than the engine.
_OF_ENGINE = 1 / 1.1
_EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "text_classification.py"
_SIZES = {True: ("--texts", "200", "--rows", "100000", "--epochs", "2"), False: ()}

#: Single look-ups, and what is expected as a ratio to torch.
_LOOKUPS = {16384: 1.0, 65536: 2.0}


def cases(bench: Bench) -> Iterator[Case]:
    """Yield look-ups and bags of ids in two dimensions, and single look-ups."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = 100_000 if bench.quick else 1_000_000
    rng = np.random.default_rng(1)
    weight = torch.from_numpy(rng.standard_normal((rows, _DIM), np.float32) * np.float32(0.05))
    folder = bench.work / "modules"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        original = torch.nn.Embedding.from_pretrained(weight)
        export_embedding(original, folder / "rows")
        pool = [torch.from_numpy(rng.integers(0, rows, (_BAGS, _EACH))) for _ in range(_POOL)]
        yield _embedding(torch, original, folder / "rows", pool, None)
        for mode in ("sum", "mean", "max"):
            bag = torch.nn.EmbeddingBag.from_pretrained(weight, mode=mode)
            yield _bag(torch, bag, folder / "rows", pool)
        for count, least in _LOOKUPS.items():
            pool = [torch.from_numpy(rng.integers(0, rows, count)) for _ in range(_POOL)]
            yield _embedding(torch, original, folder / "rows", pool, least)
        yield _classifier(torch, bench, folder / "classifier")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _case(name: str, ids: int, baseline: str) -> Case:
    return Case(name, baseline=baseline, unit="ids", amount=ids)


def _calls(torch, module: object, pool: list) -> Run:
    """Return a run of a module's forward."""
    run = over(module, pool)

    def inside(n: int) -> float:
        with torch.inference_mode():
            return run(n)

    return inside


def _engine(case: Case, path: Path) -> NativeRows:
    table = NativeRows(path / "table.men")
    case.on_close(table.close)
    return table


def _embedding(torch, original, path: Path, pool: list, least: float | None) -> Case:
    shape = " x ".join(map(str, pool[0].shape))
    case = _case(f"MappedEmbedding, {shape}", pool[0].numel(), _TORCH if least else _ENGINE)
    mapped, table = MappedEmbedding(path), _engine(case, path)
    case.on_close(mapped.close)
    with torch.inference_mode():
        assert torch.equal(mapped(pool[0]), original(pool[0]))
    out = np.empty((*pool[0].shape, _DIM), np.float32)
    case.add(OURS, _calls(torch, mapped, pool))
    case.add(_ENGINE, over(lambda ids: table.gather_into(ids, out), [ids.numpy() for ids in pool]))
    case.add(_TORCH, _calls(torch, original, pool))
    if least:
        case.expect(_TORCH, least)
    else:
        case.expect(_ENGINE, _OF_ENGINE)
    return case


def _bag(torch, original, path: Path, pool: list) -> Case:
    case = _case(f"MappedEmbeddingBag, {original.mode}, {_BAGS} x {_EACH}", _BAGS * _EACH, _ENGINE)
    mapped, table = MappedEmbeddingBag(path, original.mode), _engine(case, path)
    case.on_close(mapped.close)
    with torch.inference_mode():
        assert torch.equal(mapped(pool[0]), original(pool[0]))
    offsets, out = np.arange(0, _BAGS * _EACH, _EACH), np.empty((_BAGS, _DIM), np.float32)
    flat = [ids.numpy().reshape(-1) for ids in pool]
    case.add(OURS, _calls(torch, mapped, pool))
    case.add(_ENGINE, over(lambda ids: table.embedding_bag(ids, offsets, original.mode, out=out), flat))
    case.add(_TORCH, _calls(torch, original, pool))
    case.expect(_ENGINE, _OF_ENGINE)
    return case


def _classifier(torch, bench: Bench, data: Path) -> Case:
    case = Case("classifier", baseline=_TORCH, unit="texts", show_memory=True)
    command = [sys.executable, str(_EXAMPLE), "--data", str(data), *_SIZES[bench.quick]]
    env = {**os.environ, "PYTHONPATH": str(_EXAMPLE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        for name in (OURS, _TORCH):
            case.skip(name, f"{_EXAMPLE.name} ended with {done.returncode}: {said[-1] if said else 'nothing said'}")
        return case
    case.amount = sum(len(labels) for *_, labels in torch.load(data / "test.pt"))
    for name, kind in ((OURS, "mapped"), (_TORCH, "resident")):
        process = PeerProcess("tools.bench.peers.classifier", [])
        case.on_close(process.close)
        process.enter(case, name, kind, data=str(data))
    return case
