"""A small language model with an n-gram memory like Engram's, which is moved to a file and served from there.

    pip install '.[torch]'
    python examples/engram_lm.py [--data DIR] [--texts N] [--rows N] [--steps N]

The model learns docstrings of Python, NumPy and PyTorch, word by word. Beside a small transformer it has a
memory: the last two and the last three words at each place are hashed into rows of a large table, once for each of
several heads, and a gate decides how much of what lies there is added. The same transformer is trained without
it, on the same batches, to tell what the memory is good for. Then the table is exported, and the model is
opened in two processes, with the table in memory and with the mapped one, each of which measures its memory. Logits
must be the same bits, and what the model writes the same words. Ends with a line that begins with OK, or with
an exit status other than 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import needs_torch  # noqa: F401 - before torch, whose absence it explains
import numpy as np
import torch
import torch.nn.functional as F
from quickstart import check, watched
from text_classification import docstrings, memory
from torch import nn

from ngram_store import MappedMultiHeadEmbedding, export_demo_embedding

SOURCES = ("python", "numpy", "torch")
PAD, UNKNOWN = 0, 1
WORDS = 3000  # that the model knows; the rest are UNKNOWN
DIM, LAYERS, HEADS, CONTEXT, BATCH, TEST = 96, 2, 4, 64, 16, 20_000
ORDERS, TABLES, WIDTH = (2, 3), 4, 32  # words of an n-gram; heads for each order, and columns of their rows
START = "\n Returns \n - - - - - - - \n"  # what it goes on with


def primes(start: int) -> Iterator[int]:
    """Yield the primes from `start` on."""
    for number in range(start, 2 * start * start):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield number


class MultiHeadEmbedding(nn.Module):
    """Tables of several heads in one, as Engram has it."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.num_heads, self.embedding_dim = len(sizes), WIDTH
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0))
        self.embedding = nn.Embedding(sum(sizes), WIDTH, sparse=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(ids + self.offsets)


class Memory(nn.Module):
    """Rows of hashed n-grams, through a gate that depends on them and on the model's state."""

    def __init__(self, folded: torch.Tensor, rows: int) -> None:
        super().__init__()
        found = primes(rows)
        sizes = [next(found) for _ in range(len(ORDERS) * TABLES)]
        half = ((1 << 63) - 1) // (int(folded.max()) + 1) // 2
        odd = np.random.default_rng(5).integers(0, half, max(ORDERS)) * 2 + 1  # products stay below 2^63
        # All of it is saved with the model, so that a version of NumPy with other numbers changes nothing.
        self.register_buffer("folded", folded)  # words that differ in case alone are one
        self.register_buffer("factors", torch.from_numpy(odd))
        self.register_buffer("sizes", torch.tensor(sizes))
        self.tables = MultiHeadEmbedding(sizes)
        self.key, self.value = (nn.Linear(len(sizes) * WIDTH, DIM, bias=False) for _ in range(2))
        self.key_norm, self.state_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM)

    def ids(self, words: torch.Tensor) -> torch.Tensor:
        """Return a row for each head at each place, counted within the head."""
        words, columns, mix = self.folded[words], [], None
        for back, factor in enumerate(self.factors):
            term = F.pad(words, (back, 0), value=PAD)[:, : words.shape[1]] * factor
            mix = term if mix is None else mix ^ term
            if back + 1 in ORDERS:
                first = ORDERS.index(back + 1) * TABLES
                columns.append(mix[..., None] % self.sizes[first : first + TABLES])
        return torch.cat(columns, -1)

    def forward(self, state: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        found = self.tables(self.ids(words)).flatten(-2)
        match = (self.key_norm(self.key(found)) * self.state_norm(state)).sum(-1, keepdim=True) / DIM**0.5
        gate = torch.sigmoid(match.abs().clamp_min(1e-6).sqrt() * match.sign())
        return gate * self.value(found)


class Block(nn.Module):
    """Attention to what came before, and a layer for each place."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(DIM) for _ in range(2))
        self.mix, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.inner = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        parts = self.mix(self.norms[0](state)).unflatten(-1, (3, HEADS, -1)).unbind(2)
        seen = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), is_causal=True)
        state = state + self.out(seen.transpose(1, 2).flatten(2))
        return state + self.inner(self.norms[1](state))


class Model(nn.Module):
    """Scores of the next word at each place."""

    def __init__(self, extra: Memory | None) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, DIM), nn.Embedding(CONTEXT, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.memory = nn.RMSNorm(DIM), extra
        nn.init.normal_(self.words.weight, std=0.05)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        state = self.words(words) + self.places.weight[: words.shape[1]]
        for number, block in enumerate(self.blocks):
            if self.memory is not None and number == LAYERS - 1:
                state = state + self.memory(state, words)
            state = block(state)
        return F.linear(self.norm(state), self.words.weight)

    @torch.inference_mode()
    def write(self, words: list[int], count: int) -> list[int]:
        """Return words and the likeliest that follow; each step reads as much as fits, the memory's words included."""
        words = list(words)
        for _ in range(count):
            words.append(int(self(torch.tensor([words[-CONTEXT:]]))[0, -1].argmax()))
        return words


def collect(texts: int) -> tuple[dict[bool, torch.Tensor], list[str], torch.Tensor]:
    """Return words to learn from (False) and held-out ones (True), what they mean, and which are the same."""
    data: dict[bool, list[str]] = {False: [], True: []}
    for source in SOURCES:
        for held_out, text in watched(docstrings(source, texts), texts, f"reading {source}"):
            data[held_out] += re.findall(r"[A-Za-z]+|\d|\n|[^\sA-Za-z\d]", text + "\n\n")
    kept = Counter(data[False]).most_common(WORDS - 2)
    names = ["<pad>", "<?>", *(word for word, _ in kept)]
    number = {name: place for place, name in enumerate(names)}
    lower: dict[str, int] = {}
    folded = torch.tensor([lower.setdefault(name.lower(), len(lower)) for name in names])
    ids = {held: torch.tensor([number.get(word, UNKNOWN) for word in found]) for held, found in data.items()}
    return ids, names, folded


def windows(words: torch.Tensor, starts: torch.Tensor, batch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of words from each start on, and the ones that follow each."""
    for part in starts.split(batch):
        both = words[part[:, None] + torch.arange(CONTEXT + 1)]
        yield both[:, :-1], both[:, 1:]


def train(words: torch.Tensor, extra: Memory | None, steps: int) -> Model:
    """Return a trained model; those with and without a memory see the same batches."""
    torch.manual_seed(3)
    model, order = Model(extra), torch.Generator().manual_seed(4)
    torch.sparse.check_sparse_tensor_invariants.disable()  # torch warns unless told one way or the other
    dense, sparse = [], []
    for name, parameter in model.named_parameters():
        (sparse if name.startswith("memory.tables.") else dense).append(parameter)
    optimizers = [torch.optim.AdamW(dense, lr=3e-3)]
    optimizers += [torch.optim.Adagrad(sparse, lr=0.1)] if sparse else []
    schedules = [torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.05, steps) for one in optimizers]
    starts = torch.randint(len(words) - CONTEXT, (steps * BATCH,), generator=order)
    doing = f"training {'without' if extra is None else 'with'} the memory"
    for given, wanted in watched(windows(words, starts, BATCH), steps, doing):
        loss = F.cross_entropy(model(given).flatten(0, 1), wanted.flatten())
        for one in optimizers:
            one.zero_grad()
        loss.backward()
        for one in (*optimizers, *schedules):
            one.step()
    return model.eval()


@torch.inference_mode()
def score(model: Model, test: torch.Tensor) -> tuple[float, str]:
    """Return the mean loss over held-out words, and a hash of all logits."""
    losses, digest = [], hashlib.sha256()
    for given, wanted in windows(test, torch.arange(0, len(test) - CONTEXT, CONTEXT), 4):  # few, as memory is measured
        logits = model(given)
        digest.update(logits.numpy())
        losses.append(F.cross_entropy(logits.flatten(0, 1), wanted.flatten()))
    return torch.stack(losses).mean().item(), digest.hexdigest()


def serve(data: Path, kind: str) -> None:
    """Open a model, score and write, and print what that took; runs in a process of its own."""
    test, start = torch.load(data / "test.pt")
    before, began = memory(), time.perf_counter()
    model = torch.load(data / f"{kind}.pt", weights_only=False)  # of a mapped table the file has only where it is
    opened = time.perf_counter()
    loss, digest = score(model, test)
    written = model.write(start, 40)
    done, after = time.perf_counter(), memory()
    said = {"loss": loss, "logits": digest, "written": written, "open_s": opened - began, "run_s": done - opened}
    print(json.dumps(said | {name: after[name] - before[name] for name in after}))


def run(data: Path, texts: int, rows: int, steps: int) -> None:
    """Train, export, replace, and compare."""
    print("of the default sizes it takes a minute or two on two cores", flush=True)
    words, names, folded = collect(texts)
    test = words[True][:TEST]
    print(f"{len(words[False])} words to learn from, {len(test)} held out, of {', '.join(SOURCES)}", flush=True)
    plain, _ = score(train(words[False], None, steps), test)
    model = train(words[False], Memory(folded, rows), steps)
    torch.save((test, [names.index(word) for word in START.split(" ")]), data / "test.pt")
    torch.save(model, data / "resident.pt")
    table = model.memory.tables
    size = table.embedding.weight.nbytes
    export_demo_embedding(table, model.memory.sizes.tolist(), data / "table", overwrite=True)
    model.memory.tables = MappedMultiHeadEmbedding(data / "table")
    torch.save(model, data / "mapped.pt")
    found = {}
    for kind in ("resident", "mapped"):
        command = [sys.executable, __file__, "--data", str(data), "--serve", kind]
        # glibc would keep freed memory for later in one process more than in the other.
        env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "1"}
        found[kind] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env).stdout)
        line = "opened in {open_s:.3f} s, ran for {run_s:.2f} s".format(**found[kind])
        mib = {name: found[kind][name] / (1 << 20) for name in ("resident", "own")}
        print(f"{kind:>8}: {line}, memory {mib['resident']:.0f} MiB, {mib['own']:.0f} of them its own")
    one, other = found["resident"], found["mapped"]
    print("writes:", " ".join(names[word] for word in other["written"]).replace("\n", "/"))
    print(f"loss on held-out words: {plain:.3f} without the memory, {other['loss']:.3f} with it")
    check(one["logits"] == other["logits"] and one["loss"] == other["loss"], "the logits differ")
    check(one["written"] == other["written"], "the models write different words")
    check(other["loss"] < plain, "the memory is good for nothing")
    check(one["own"] - other["own"] > size // 2, "the table takes as much memory as before")
    count = (len(test) - 1) // CONTEXT * CONTEXT * WORDS
    print(f"OK: {count} logits have the same bits, and so do the words that are written; the memory helps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where models are kept (default: a temporary directory)")
    parser.add_argument("--texts", type=int, default=1000, help="of each source (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1 << 16, help="of the table of a head (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=150, help="of training (default: %(default)s)")
    parser.add_argument("--serve", choices=("resident", "mapped"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        serve(options.data, options.serve)
        return
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch)
        data.mkdir(parents=True, exist_ok=True)
        run(data, options.texts, options.rows, options.steps)


if __name__ == "__main__":
    main()
