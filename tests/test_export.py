"""Exporters: bundles that say what they hold, appear as a whole, and are refused where they would be wrong."""

import hashlib
import json
import os
import shutil
import signal
import threading
import time
import warnings

import pytest
import torch

from loaderx import __version__, errors
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    NativeRows,
    export_embedding,
    export_embedding_bag,
    export_multihead,
    open_embedding_bag,
    pack_quantized,
    read_bundle,
)
from ngram_store.bundle import TABLE_FILES, write_bundle
from tests.mapped import MultiHeadEmbedding, assert_same_bits
from tests.processes import in_child


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.fixture
def original():
    torch.manual_seed(1)
    return torch.nn.Embedding(100, 12, padding_idx=3)


@pytest.mark.parametrize(("backend", "file"), [("native", "table.men"), ("python", "rows.bin")])
def test_a_bundle_says_what_it_holds(original, tmp_path, backend, file):
    bundle = export_embedding(original, tmp_path / "deep" / "e", backend)
    assert files(tmp_path) == ["deep", "deep/e", "deep/e/bundle.json", f"deep/e/{file}"]
    content = (tmp_path / "deep/e" / file).read_bytes()
    meta = json.loads((tmp_path / "deep/e/bundle.json").read_text())
    assert meta == {
        "format": "ngram_store-bundle",
        "version": 1,
        "kind": "embedding",
        "producer": f"loaderx-go {__version__}",
        "num_embeddings": 100,
        "embedding_dim": 12,
        "dtype": "float32",
        "row_bytes": 48,
        "padding_idx": 3,
        "table": {
            "file": file,
            "backend": backend,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        },
    }
    assert bundle == read_bundle(tmp_path / "deep/e") and bundle.meta == meta
    assert bundle.table_path == str(tmp_path / "deep/e" / file)
    assert content.endswith(original.weight.detach().numpy().tobytes())
    for made in (tmp_path / "deep/e", *(tmp_path / "deep/e").iterdir()):
        assert made.stat().st_mode & 0o077 == 0


def test_bundles_of_bags_and_heads_say_more(tmp_path):
    bag = torch.nn.EmbeddingBag(9, 4, mode="max", padding_idx=-1, include_last_offset=True)
    meta = export_embedding_bag(bag, tmp_path / "b").meta
    assert (meta["kind"], meta["mode"], meta["padding_idx"], meta["include_last_offset"]) == (
        "embedding_bag", "max", 8, True
    )  # fmt: skip
    meta = export_multihead(MultiHeadEmbedding([3, 5], 4), tmp_path / "m").meta
    assert (meta["kind"], meta["head_sizes"], meta["offsets"]) == ("multihead", [3, 5], [0, 3])


def test_an_opened_bag_is_as_the_exported_one(tmp_path):
    weight = torch.randn(9, 4)
    for number, mode in enumerate(("sum", "mean", "max")):
        original = torch.nn.EmbeddingBag(9, 4, _weight=weight, mode=mode, padding_idx=2, include_last_offset=True)
        export_embedding_bag(original, tmp_path / mode)
        ids, offsets = torch.tensor([1, 2, 3, 2]), torch.tensor([0, 3, 4])
        with open_embedding_bag(tmp_path / mode, strategy=["fused", "unique", "chunked"][number]) as mapped:
            assert (mapped.mode, mapped.padding_idx, mapped.include_last_offset) == (mode, 2, True)
            assert_same_bits(mapped(ids, offsets), original(ids, offsets))
        with open_embedding_bag(tmp_path / mode, mode="sum", padding_idx=None) as mapped:
            assert mapped.mode == "sum" and mapped.padding_idx is None
    export_embedding(torch.nn.Embedding(3, 2), tmp_path / "e")
    with pytest.raises(errors.StoreFormatError, match="not one of an embedding bag"):
        open_embedding_bag(tmp_path / "e")
    with MappedEmbeddingBag(tmp_path / "e") as mapped:
        assert mapped.mode == "mean" and mapped.padding_idx is None


def test_options_of_the_table(tmp_path):
    original = torch.nn.Embedding.from_pretrained(torch.arange(40.0).view(-1, 1).repeat(1, 256).repeat(10, 1))
    sizes = {}
    for name, how in {
        "raw": {},
        "zlib": {"codec": "zlib"},
        "shared": {"deduplicate": True},
        "predicted": {"predictor": "auto", "codec": "zstd", "level": 9, "threads": 1},
        "small": {"codec": "zlib", "max_block_bytes": 3000},
        "blocks": {"block_rows": 10},
    }.items():
        bundle = export_embedding(original, tmp_path / name, **how)
        with NativeRows(bundle.table_path) as rows:
            sizes[name] = rows.info()
        with MappedEmbedding(tmp_path / name, verify=True) as mapped:
            assert_same_bits(mapped(torch.arange(400)), original.weight)
    assert sizes["raw"]["raw"] and sizes["shared"]["stored_rows"] == 40
    assert sizes["zlib"]["payload_bytes"] < sizes["raw"]["payload_bytes"] / 20
    assert sizes["small"]["block_rows"] == 2 and sizes["blocks"]["block_rows"] == 10


def test_weights_that_are_not_contiguous_and_tables_without_rows(tmp_path):
    wide = torch.randn(20, 50)
    for number, weight in enumerate((wide.T, wide[::2, ::3], wide[:, 5:9], wide[:0])):
        original = torch.nn.Embedding.from_pretrained(weight)
        for backend in ("native", "python"):
            export_embedding(original, tmp_path / f"{backend}{number}", backend)
            with MappedEmbedding(tmp_path / f"{backend}{number}", verify=True) as mapped:
                assert_same_bits(mapped(torch.arange(len(weight))), weight)


class Scaled(torch.nn.Embedding):
    def forward(self, input):
        return super().forward(input) * 2


class Own(torch.Tensor):
    pass


def _with_hook():
    module = torch.nn.Embedding(3, 2)
    module.register_forward_hook(lambda *_: None)
    return module


def _with_weight(weight):
    module = torch.nn.Embedding(3, 2)
    del module.weight
    module.weight = weight
    return module


def _quantised():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is going to drop them
        return torch.quantize_per_channel(torch.randn(3, 2), torch.ones(3), torch.zeros(3), 0, torch.quint8)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: torch.nn.Embedding(3, 2, max_norm=1.0), errors.UnsupportedError, "max_norm=1.0 rescales rows"),
        (lambda: torch.nn.EmbeddingBag(3, 2, max_norm=1.0), errors.UnsupportedError, "max_norm"),
        (lambda: Scaled(3, 2), errors.UnsupportedError, "Scaled has a forward of its own"),
        (_with_hook, errors.UnsupportedError, "hooks"),
        (lambda: torch.nn.EmbeddingBag(3, 2, mode="max", sparse=True), errors.UnsupportedError, "mode 'max'"),
        (lambda: torch.nn.EmbeddingBag(3, 2, mode="max", scale_grad_by_freq=True), errors.UnsupportedError, "'max'"),
        (lambda: torch.nn.EmbeddingBag(3, 2, mode="min"), errors.ArgumentError, "mode 'min'"),
        (lambda: torch.nn.Embedding(3, 2, device="meta"), errors.DtypeError, "meta device"),
        (lambda: torch.nn.EmbeddingBag(3, 2, device="meta"), errors.DtypeError, "meta device"),
        (lambda: _with_weight(torch.eye(3).to_sparse()), errors.DtypeError, "sparse_coo"),
        (lambda: _with_weight(_quantised()), errors.DtypeError, "quint8"),
        (lambda: _with_weight(torch.zeros(3, 2, dtype=torch.int8)), errors.DtypeError, "int8"),
        (lambda: _with_weight(torch.zeros(3, 2, dtype=torch.complex64)), errors.DtypeError, "complex64"),
        (lambda: _with_weight(torch.zeros(3, 2).to(torch.float8_e4m3fn)), errors.DtypeError, "float8"),
        (lambda: _with_weight(torch.nn.UninitializedParameter()), errors.DtypeError, "not initialised"),
        (lambda: _with_weight(torch.nn.Buffer(torch.zeros(3, 2))), None, None),
        (lambda: _with_weight(torch.zeros(3, 2).as_subclass(Own)), errors.DtypeError, "Own"),
        (lambda: _with_weight(torch.zeros(3, 0)), errors.ArgumentError, "shape"),
        (lambda: torch.nn.Linear(3, 2), errors.DtypeError, "expected a torch.nn.Embedding"),
        (lambda: torch.zeros(3, 2), errors.DtypeError, "expected a torch.nn.Embedding"),
    ],
)  # fmt: skip
def test_what_would_be_wrong_is_refused(tmp_path, make, kind, message):
    module = make()
    export = export_embedding_bag if isinstance(module, torch.nn.EmbeddingBag) else export_embedding
    if kind is None:
        export(module, tmp_path / "e")
        return
    with pytest.raises(kind, match=message):
        export(module, tmp_path / "e")
    assert not list(tmp_path.iterdir())


def test_gradients_that_are_sparse_mean_nothing(tmp_path):
    for mode in ("sum", "mean"):
        export_embedding_bag(torch.nn.EmbeddingBag(3, 2, mode=mode, sparse=True), tmp_path / mode)
    export_embedding(torch.nn.Embedding(3, 2, sparse=True, scale_grad_by_freq=True), tmp_path / "e")


def test_arguments_are_checked_before_anything_is_written(original, tmp_path):
    for options, kind in (
        ({"backend": "c"}, errors.ArgumentError),
        ({"backend": "python", "deduplicate": True}, errors.ArgumentError),
        ({"backend": "python", "codec": "zstd"}, errors.ArgumentError),
        ({"predictor": "guess"}, errors.ArgumentError),
        ({"codec": "lzma"}, errors.ArgumentError),
        ({"max_block_bytes": -1}, errors.ArgumentError),
    ):
        with pytest.raises(kind):
            export_embedding(original, tmp_path / "new" / "e", **options)
    with pytest.raises(errors.DtypeError, match="path"):
        export_embedding(original, None)
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays_unless_it_is_a_bundle_and_may_be_replaced(original, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("file", "folder"):
        for overwrite in (False, True):
            with pytest.raises(errors.StoreExistsError, match="no bundle"):
                export_embedding(original, tmp_path / name, overwrite=overwrite)
    export_embedding(original, tmp_path / "empty")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_embedding(torch.nn.Embedding(3, 2), tmp_path / "empty")
    other = torch.nn.Embedding(100, 12)
    (tmp_path / "empty").chmod(0o755)
    with MappedEmbedding(tmp_path / "empty") as mapped:
        export_embedding(other, tmp_path / "empty", overwrite=True)
        assert_same_bits(mapped(torch.arange(100)), original.weight)  # the file that it has open
    with MappedEmbedding(tmp_path / "empty") as mapped:
        assert_same_bits(mapped(torch.arange(100)), other.weight)
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o755
    assert files(tmp_path) == ["empty", "empty/bundle.json", "empty/table.men", "file", "folder", "folder/notes"]


@pytest.mark.parametrize("options", [{"codec": "raw", "predictor": "xor"}, {"codec": "raw", "level": 3}])
def test_an_export_that_is_refused_names_the_bundle_and_leaves_nothing(original, tmp_path, options):
    for call in (
        lambda path: export_embedding(original, path, **options),
        lambda path: pack_quantized(original.weight.detach(), path, "int8", True, **options),
    ):
        with pytest.raises(errors.ArgumentError) as caught:
            call(tmp_path / "new" / "e")
        assert str(tmp_path / "new" / "e" / "table.men") in str(caught.value) and ".bundle-" not in str(caught.value)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", ["native", "python"])
@pytest.mark.parametrize("exchanged", [True, False])
def test_a_bundle_that_is_replaced_keeps_the_permissions_of_its_files(
    original, tmp_path, before, exchanged, monkeypatch
):
    if not exchanged:
        monkeypatch.setattr("ngram_store._rename._exchanged", lambda *_: False)
    path = tmp_path / "e"
    export_embedding(original, path, before)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}
    path.chmod(0o750)
    (path / TABLE_FILES[before]).chmod(0o644)
    (path / "bundle.json").chmod(0o664)
    export_embedding(original, path, overwrite=True)
    modes = {file.name: file.stat().st_mode & 0o7777 for file in (path, *path.iterdir())}
    assert modes == {"e": 0o750, "table.men": 0o644, "bundle.json": 0o664}


def test_overwriting_without_the_systems_exchange(original, tmp_path, monkeypatch):
    monkeypatch.setattr("ngram_store._rename._exchanged", lambda *_: False)
    export_embedding(torch.nn.Embedding(3, 2), tmp_path / "e")
    export_embedding(original, tmp_path / "e", overwrite=True)
    assert read_bundle(tmp_path / "e").meta["num_embeddings"] == 100
    assert files(tmp_path) == ["e", "e/bundle.json", "e/table.men"]


def test_a_failed_export_leaves_nothing(original, tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ngram_store.bundle.json.dump", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        export_embedding(original, tmp_path / "new" / "e")
    assert isinstance(caught.value, errors.StoreIOError) and caught.value.errno == 28
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_killed_export_leaves_the_old_bundle_or_the_new_one(tmp_path, backend):
    path, original = tmp_path / "e", torch.nn.Embedding(40_000, 64)
    export_embedding(original, path, backend)
    for turn in range(6):
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                export_embedding(original, path, backend, overwrite=True)
                os.write(told, b"x")
                while True:
                    export_embedding(original, path, backend, overwrite=True)
            finally:
                os._exit(1)
        assert os.read(ready, 1) == b"x"
        time.sleep(0.013 * turn)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)
        os.close(told)
        with MappedEmbedding(path, verify=True) as mapped:
            assert mapped.num_embeddings == 40_000
    for left in tmp_path.glob(".e.bundle-*.tmp"):
        os.utime(left, (0, 0))  # an hour later
    (tmp_path / ".e.bundle-locked.tmp").mkdir()
    export_embedding(torch.nn.Embedding(3, 2), path, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".e.bundle-locked.tmp", "e"]


def test_an_export_that_is_running_is_not_taken_for_litter(original, tmp_path):
    def fill(folder):
        (tmp_path / folder / "part").write_text("x")
        os.utime(folder, (0, 0))
        export_embedding(original, tmp_path / "e")
        return {"file": "part", "backend": "native", "bytes": 1, "sha256": 64 * "0"}, "result"

    fields = {"num_embeddings": 0, "embedding_dim": 1, "dtype": "float32", "row_bytes": 4}
    bundle, result = write_bundle(tmp_path / "e", "embedding", fields, fill, overwrite=True)
    assert result == "result" and read_bundle(tmp_path / "e") == bundle
    assert files(tmp_path) == ["e", "e/bundle.json", "e/part"]


def test_ctrl_c_ends_an_export_and_leaves_nothing(interrupted, tmp_path):
    out, err = interrupted(
        """
        import os, sys, threading, torch
        from ngram_store import export_embedding
        original = torch.nn.Embedding.from_pretrained(torch.randn(400_000, 64))
        try:
            print("ready", flush=True)
            while True:
                export_embedding(original, sys.argv[1], codec="zstd", level=15, predictor="auto", overwrite=True)
        except KeyboardInterrupt:
            print("interrupted", os.listdir(os.path.dirname(sys.argv[1])))
        """,
        tmp_path / "e",
    )
    assert out in ("interrupted []\n", "interrupted ['e']\n"), err


def test_no_second_copy_of_the_weight_is_made(tmp_path):
    original = torch.nn.Embedding.from_pretrained(torch.randn(1 << 18, 128))  # 128 MiB

    def own_kib():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    def work():
        export_embedding(torch.nn.Embedding.from_pretrained(original.weight[:1000]), tmp_path / "warm")
        most, stop, before = [0], threading.Event(), own_kib()

        def watch():
            while not stop.wait(0.002):
                most[0] = max(most[0], own_kib())

        threading.Thread(target=watch).start()
        for backend in ("native", "python"):
            export_embedding(original, tmp_path / backend, backend)
        stop.set()
        assert 0 < most[0] < before + (32 << 10), f"own memory grew from {before} to {most[0]} KiB"

    in_child(work, 60)


# ---- bundles that are damaged ------------------------------------------------------------------


def test_damaged_descriptions_are_named(original, tmp_path):
    export_embedding(original, tmp_path / "e")
    file = tmp_path / "e" / "bundle.json"
    meta = json.loads(file.read_text())
    table = meta["table"]
    for change, kind, message in (
        ({"format": "zip"}, errors.StoreFormatError, "format"),
        ({"version": 2}, errors.StoreFormatError, "version 2, this program reads up to 1"),
        ({"version": True}, errors.StoreFormatError, "version"),
        ({"kind": None}, errors.CorruptRecordError, "kind is None"),
        ({"num_embeddings": -1}, errors.CorruptRecordError, "num_embeddings is -1"),
        ({"num_embeddings": 1 << 80}, errors.CorruptRecordError, "num_embeddings"),
        ({"num_embeddings": 99}, errors.CorruptRecordError, "100 rows of 48 bytes"),
        ({"dtype": "float16"}, errors.CorruptRecordError, "do not have 48 bytes"),
        ({"dtype": "int32"}, errors.CorruptRecordError, "int32"),
        ({"padding_idx": 100}, errors.CorruptRecordError, "padding_idx is 100"),
        ({"padding_idx": "1"}, errors.CorruptRecordError, "padding_idx"),
        ({"table": 5}, errors.CorruptRecordError, "table is 5"),
        ({"table": {**table, "file": "../e/table.men"}}, errors.CorruptRecordError, "no name of a file"),
        ({"table": {**table, "file": ".."}}, errors.CorruptRecordError, "no name of a file"),
        ({"table": {**table, "file": "other"}}, errors.StoreNotFoundError, "other"),
        ({"table": {**table, "bytes": 5}}, errors.CorruptRecordError, "bundle says"),
        ({"table": {**table, "sha256": None}}, errors.CorruptRecordError, "sha256 is None"),
        ({"table": {**table, "backend": "rust"}}, errors.StoreFormatError, "'rust'"),
        ({"table": {**table, "backend": "python"}}, errors.CorruptRecordError, "rows of 48"),
        ({"head_sizes": "no"}, errors.CorruptRecordError, "head_sizes"),
        ({"head_sizes": [1, 2]}, errors.CorruptRecordError, "head_sizes"),
        ({"head_sizes": [101, -1]}, errors.CorruptRecordError, "head_sizes"),
    ):
        file.write_text(json.dumps({**meta, **change}))
        with pytest.raises(kind, match=message):
            MappedEmbedding(tmp_path / "e")
    for text in ("", "{", "[]", "null", "\xff", "[" * 100_000, '{"format": "ngram_store-bundle"}'):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises((errors.CorruptRecordError, errors.StoreFormatError), match=r"bundle\.json"):
            read_bundle(tmp_path / "e")
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match="read the bundle"):
        read_bundle(tmp_path / "e")
    with pytest.raises(errors.StoreFormatError, match="is a file"):
        read_bundle(tmp_path / "e" / "table.men")


@pytest.mark.parametrize("backend", ["native", "python"])
def test_changed_tables_are_found_by_their_hash(original, tmp_path, backend):
    bundle = export_embedding(original, tmp_path / "e", backend)
    MappedEmbedding(tmp_path / "e", verify=True).close()
    with open(bundle.table_path, "r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(errors.CorruptRecordError, match="has the SHA-256"):
        MappedEmbedding(tmp_path / "e", verify=True)
    os.truncate(bundle.table_path, os.path.getsize(bundle.table_path) - 4)
    with pytest.raises(errors.CorruptRecordError):
        MappedEmbedding(tmp_path / "e")
    os.unlink(bundle.table_path)
    with pytest.raises(errors.StoreNotFoundError):
        MappedEmbedding(tmp_path / "e")
    shutil.rmtree(tmp_path / "e")
