"""Bundles that are replaced while they are opened, written without success, or are no files that could be read."""

import contextlib
import errno
import json
import os
import resource
import shutil
import signal
import time

import numpy as np
import pytest
import torch

import ngram_store.bundle
from loaderx import errors
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    MappedMultiHeadEmbedding,
    QuantizedRows,
    export_embedding,
    export_embedding_bag,
    export_multihead,
    open_embedding_bag,
    pack_quantized,
    read_bundle,
)
from ngram_store.cli import main
from tests.mapped import MultiHeadEmbedding
from tests.processes import in_child


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


# ---- replaced while they are opened ------------------------------------------------------------


def _embedding(path, value, backend, **options):
    weight = torch.full((5 + value, 4), float(value))
    export_embedding(torch.nn.Embedding.from_pretrained(weight), path, backend, **options)


def _bag(path, value, backend, **options):
    weight, mode = torch.full((5, 4), float(value)), ["sum", "mean"][value % 2]
    export_embedding_bag(torch.nn.EmbeddingBag.from_pretrained(weight, mode=mode), path, backend, **options)


def _heads(path, value, backend, **options):
    module = MultiHeadEmbedding([1 + value, 4], 4)
    torch.nn.init.constant_(module.embedding.weight, value)
    export_multihead(module, path, backend, **options)


def _quantized(path, value, backend, **options):
    matrix = np.full((5, 4), value, np.float32)
    pack_quantized(matrix, path, ["fp16", "uint8_rowwise"][value % 2], backend == "native", **options)


def _all_of(opened, call):
    with opened as module:
        return call(module)


def _json_of(capsys, *args):
    assert main([*map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _rows_of(module):
    return module.num_embeddings, module(torch.arange(module.num_embeddings)).tolist()


def _first_of(module):
    return module.head_sizes, module(torch.tensor([0, 0])).tolist()


def _sums_of(module):
    return module.mode, module(torch.tensor([[0, 1]])).tolist()


def _numbers_of(rows):
    return rows.kind, rows.gather([1]).tolist()


def _bench(path, capsys):
    return _json_of(capsys, "bench", path, "--seconds", "0", "--ids", "3")["dtype"]


#: What writes a bundle of a value, and what an opener makes of it, which is told by the value alone.
OPENERS = {
    "embedding": (_embedding, lambda path, _: _all_of(MappedEmbedding(path), _rows_of)),
    "verified": (_embedding, lambda path, _: _all_of(MappedEmbedding(path, verify=True), _rows_of)),
    "heads": (_heads, lambda path, _: _all_of(MappedMultiHeadEmbedding(path), _first_of)),
    "bag": (_bag, lambda path, _: _all_of(open_embedding_bag(path), _sums_of)),
    "plain bag": (_bag, lambda path, _: _all_of(MappedEmbeddingBag(path), _sums_of)),
    "quantized": (_quantized, lambda path, _: _all_of(QuantizedRows(path), _numbers_of)),
    "info": (_quantized, lambda path, capsys: _json_of(capsys, "info", path)),
    "verify": (_quantized, lambda path, capsys: _json_of(capsys, "verify", path)),
    "bench": (_quantized, _bench),
}


@pytest.fixture
def replaced_once_read(monkeypatch):
    """Have something done after a bundle's description was read, so many times."""
    read, left = ngram_store.bundle.read_bundle, []

    def patched(path):
        bundle = read(path)
        if left:
            left.pop()()
        return bundle

    for module in ("bundle", "embedding_bag", "quantized"):
        monkeypatch.setattr(f"ngram_store.{module}.read_bundle", patched)
    return left


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("opener", OPENERS)
def test_a_bundle_that_is_replaced_while_it_is_opened_is_seen_as_one(
    tmp_path, opener, backend, replaced_once_read, capsys
):
    write, see = OPENERS[opener]
    write(tmp_path / "new", 4, backend)
    expected = see(tmp_path / "new", capsys)
    write(tmp_path / "b", 1, backend)
    first = see(tmp_path / "b", capsys)
    replaced_once_read += [
        lambda value=value: write(tmp_path / "b", value, backend, overwrite=True) for value in (4, 3)
    ]
    found = see(tmp_path / "b", capsys)
    assert not replaced_once_read
    if isinstance(expected, dict):
        first, expected, found = ({**one, "table": None} for one in (first, expected, found))
    assert found == expected != first


def test_a_bundle_that_is_replaced_again_and_again_is_an_error(tmp_path, replaced_once_read):
    _embedding(tmp_path / "b", 1, "native")
    replaced_once_read += [lambda: _embedding(tmp_path / "b", 2, "native", overwrite=True)] * 100
    with pytest.raises(errors.StoreFormatError, match="was replaced while it was opened; try again"):
        MappedEmbedding(tmp_path / "b")


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_copy_that_is_restored_during_the_replacing_is_refused_or_right(tmp_path, backend, replaced_once_read):
    import pickle

    _embedding(tmp_path / "b", 1, backend)
    with MappedEmbedding(tmp_path / "b") as mapped:
        state = pickle.dumps(mapped)
    replaced_once_read.append(lambda: _embedding(tmp_path / "b", 1, backend, overwrite=True))
    assert pickle.loads(state)(torch.tensor(0))[0] == 1
    replaced_once_read.append(lambda: _embedding(tmp_path / "b", 2, backend, overwrite=True))
    with pytest.raises(errors.CorruptRecordError, match="replaced by another bundle"):
        pickle.loads(state)


def test_opening_in_the_midst_of_replacements_by_another_process(tmp_path):
    path = tmp_path / "b"
    _bag(path, 1, "native")
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            for turn in range(1 << 30):
                _bag(path, turn % 5, ["native", "python"][turn % 2], overwrite=True)
        os._exit(0)
    try:
        seen, opened, end = set(), 0, time.monotonic() + 60
        while opened < 150 or len(seen) < 2:
            assert time.monotonic() < end, f"{opened} openings saw {seen}"
            with open_embedding_bag(path) as bag:
                value = bag(torch.tensor([[0]]))[0, 0].item()
                assert bag.mode == ["sum", "mean"][int(value) % 2]
            seen.add(value)
            opened += 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# ---- replacing nothing but bundles -------------------------------------------------------------


def test_what_is_no_bundle_is_not_replaced_nor_what_lies_in_one(tmp_path):
    matrix = np.ones((3, 4), np.float32)
    for text in ('{"name": "a web app"}', "[]", "no json", '{"format": "other"}'):
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        (folder / "bundle.json").write_text(text)
        (folder / "thesis.tex").write_text("years")
        with pytest.raises(errors.StoreExistsError, match="no bundle that could be replaced"):
            pack_quantized(matrix, folder, "int8", overwrite=True)
    assert files(tmp_path) == ["project", "project/bundle.json", "project/thesis.tex"]
    shutil.rmtree(folder)
    _embedding(tmp_path / "b", 1, "native")
    before = (tmp_path / "b/bundle.json").read_bytes()
    (tmp_path / "b/notes").write_text("x")
    (tmp_path / "b/rows.bin").mkdir()
    for write in (
        lambda: _embedding(tmp_path / "b", 2, "native", overwrite=True),
        lambda: pack_quantized(matrix, tmp_path / "b", "int8", overwrite=True),
    ):
        with pytest.raises(errors.StoreExistsError, match=r"other things.*'notes', 'rows\.bin'"):
            write()
    np.save(tmp_path / "in.npy", matrix)
    assert main(["pack", str(tmp_path / "in.npy"), str(tmp_path / "b"), "--kind", "int8", "--overwrite"]) == 1
    assert (tmp_path / "b/bundle.json").read_bytes() == before
    assert files(tmp_path) == ["b", "b/bundle.json", "b/notes", "b/rows.bin", "b/table.men", "in.npy"]


def test_a_damaged_bundle_and_what_writers_left_in_one_is_replaced(tmp_path):
    _embedding(tmp_path / "b", 1, "native")
    meta = json.loads((tmp_path / "b/bundle.json").read_text())
    (tmp_path / "b/table.men").rename(tmp_path / "b/other")
    meta["table"]["file"], meta["num_embeddings"] = "other", -1
    (tmp_path / "b/bundle.json").write_text(json.dumps(meta))
    (tmp_path / "b/.other.0123.tmp").write_text("a part")
    _embedding(tmp_path / "b", 2, "native", overwrite=True)
    assert read_bundle(tmp_path / "b").meta["num_embeddings"] == 7
    assert files(tmp_path) == ["b", "b/bundle.json", "b/table.men"]


# ---- as a whole or not at all ------------------------------------------------------------------


def _failing_sync(monkeypatch, error):
    sync, failed = ngram_store.bundle.sync, []

    def fail(folder):
        if not failed:
            failed.append(folder)
            raise error
        sync(folder)

    monkeypatch.setattr("ngram_store.bundle.sync", fail)


@pytest.mark.parametrize("systems", [True, False])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_what_fails_after_the_publishing_takes_it_back(tmp_path, monkeypatch, error, systems):
    if not systems:
        monkeypatch.setattr("ngram_store._rename._exchanged", lambda *_: False)
    _embedding(tmp_path / "old", 1, "native")
    for name in ("old", "new/er/b"):
        with monkeypatch.context() as patch:
            _failing_sync(patch, error)
            with pytest.raises((errors.StoreIOError, KeyboardInterrupt)):
                _embedding(tmp_path / name, 2, "native", overwrite=True)
    assert files(tmp_path) == ["old", "old/bundle.json", "old/table.men"]
    with MappedEmbedding(tmp_path / "old", verify=True) as mapped:
        assert mapped.num_embeddings == 6


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_an_interrupted_replacing_without_the_systems_exchange_leaves_the_old_bundle(tmp_path, monkeypatch, fails_at):
    monkeypatch.setattr("ngram_store._rename._exchanged", lambda *_: False)
    _embedding(tmp_path / "b", 1, "native")
    rename, calls = os.rename, []

    def interrupted(*args):
        rename(*args)
        if args[0].endswith(".old") or args[1].endswith(".old") or calls:
            calls.append(args)
            if len(calls) == fails_at:
                raise KeyboardInterrupt

    monkeypatch.setattr("ngram_store._rename.os.rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _embedding(tmp_path / "b", 2, "native", overwrite=True)
    monkeypatch.undo()
    assert files(tmp_path) == ["b", "b/bundle.json", "b/table.men"]
    with MappedEmbedding(tmp_path / "b", verify=True) as mapped:
        assert mapped.num_embeddings == 6


@pytest.mark.parametrize("backend", ["native", "python"])
def test_without_free_descriptors_nothing_is_left(tmp_path, backend):
    _embedding(tmp_path / "warm", 1, backend)

    def work():
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        failed = 0
        for free in range(12):
            with contextlib.suppress(errors.ZrecordError):
                failed += 1
                _embedding(tmp_path / f"new{free}" / "b", 1, backend)
                failed -= 1
            os.close(held.pop())
        assert failed
        for number in held:
            os.close(number)
        left = [name for name in files(tmp_path) if name.startswith("new")]
        assert not [name for name in left if ".tmp" in name]
        for folder in tmp_path.glob("new*"):
            MappedEmbedding(folder / "b", verify=True).close()

    in_child(work)


# ---- pipes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "python"])
def test_pipes_are_refused_and_not_waited_for(tmp_path, backend, capsys):
    _embedding(tmp_path / "e", 1, backend)
    _quantized(tmp_path / "q", 1, backend)

    def refused():
        for call in (
            lambda: MappedEmbedding(tmp_path / "e"),
            lambda: MappedEmbedding(tmp_path / "e", verify=True),
            lambda: QuantizedRows(tmp_path / "q"),
            lambda: QuantizedRows(tmp_path / "q", verify=True),
        ):
            with pytest.raises(errors.StoreFormatError, match="no regular file"):
                call()
        for command in ("info", "verify", "bench"):
            assert main([command, str(tmp_path / "q")]) == 1
            assert "no regular file" in capsys.readouterr().err

    def work():
        for name in ({"native": "table.men", "python": "rows.bin"}[backend], "bundle.json"):
            for folder in ("e", "q"):
                os.unlink(tmp_path / folder / name)
                os.mkfifo(tmp_path / folder / name)
            refused()
        with pytest.raises(errors.StoreExistsError):
            _embedding(tmp_path / "e", 1, backend, overwrite=True)

    in_child(work)


def test_a_table_that_becomes_a_pipe_is_refused_by_its_hash(tmp_path):
    from ngram_store._identity import check_sha256

    os.mkfifo(tmp_path / "p")

    def work():
        with pytest.raises(errors.StoreFormatError, match="no regular file"):
            check_sha256(tmp_path / "p", 64 * "0")

    in_child(work)
