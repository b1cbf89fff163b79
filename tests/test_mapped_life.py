"""Mapped modules over copies, pickles, forks, spawned workers, threads, replaced tables, and many calls."""

import copy
import gc
import io
import multiprocessing
import os
import pickle
import sys
import threading
from pathlib import Path

import pytest
import torch

from loaderx import _engine, errors
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    MappedMultiHeadEmbedding,
    export_embedding,
    export_multihead,
    pack_native,
)
from ngram_store._results import Results
from tests.mapped import MultiHeadEmbedding, assert_same_bits
from tests.processes import in_child, run_python

IDS = torch.tensor([[5, 199], [5, 0]])


@pytest.fixture
def original():
    torch.manual_seed(1)
    return torch.nn.Embedding(200, 16)


@pytest.fixture(params=["native", "python"])
def path(request, original, tmp_path):
    export_embedding(original, tmp_path / "e", request.param)
    return tmp_path / "e"


def other_table(path, **how):
    torch.manual_seed(9)
    return export_embedding(torch.nn.Embedding(200, 16), path, overwrite=True, **how)


# ---- copies and pickles ------------------------------------------------------------------------


def _saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _pickled(module):
    return pickle.loads(pickle.dumps(module))


@pytest.mark.parametrize("restore", [copy.deepcopy, copy.copy, _pickled, _saved])
def test_a_copy_carries_the_configuration_only(path, original, restore, monkeypatch):
    monkeypatch.chdir(path.parent)
    with MappedEmbedding("e", cache_bytes=1 << 20, native_cache_policy="rows", query_chunk_rows=None) as mapped:
        mapped(IDS)
        mapped.note = "kept"
        assert len(pickle.dumps(mapped)) < 3000
        monkeypatch.chdir("/")
        again = restore(mapped)
        assert again.note == "kept" and not again.training and again.path == mapped.path
        assert again._table.config() == mapped._table.config() and again._table is not mapped._table
    assert_same_bits(again(IDS), original.weight[IDS])  # its own table, which is open
    assert again.stats().get("queries", 1) == 1
    again.close()
    with pytest.raises(errors.ClosedError):
        restore(mapped)


def test_bags_and_heads_are_copied_with_their_options(path, tmp_path):
    export_multihead(MultiHeadEmbedding([3, 5], 4), tmp_path / "m")
    model = torch.nn.ModuleDict({
        "bag": MappedEmbeddingBag(path, "max", -1, True, "chunked", 77, "sort", 5, accumulate="torch"),
        "heads": MappedMultiHeadEmbedding(tmp_path / "m"),
    })  # fmt: skip
    model["bag"].mode = "mean"
    again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    for name in ("mode", "padding_idx", "include_last_offset", "strategy", "_plan"):
        assert getattr(again["bag"], name) == getattr(model["bag"], name)
    assert_same_bits(again["heads"](torch.tensor([1, 2])), model["heads"](torch.tensor([1, 2])))
    offsets = torch.tensor([0, 3, 4])
    assert_same_bits(again["bag"](IDS.view(-1), offsets), model["bag"](IDS.view(-1), offsets))


def test_a_copy_of_a_replaced_table_is_refused(path, original):
    with MappedEmbedding(path) as mapped:
        pickled = pickle.dumps(mapped)
        other_table(path, backend=mapped._table.meta["table"]["backend"])
        for restore in (lambda: copy.deepcopy(mapped), lambda: pickle.loads(pickled)):
            with pytest.raises(errors.CorruptRecordError, match="replaced"):
                restore()
        assert_same_bits(mapped(IDS), original.weight[IDS])  # the file that it has open


def test_a_copy_of_a_changed_table_is_refused(path):
    with MappedEmbedding(path) as mapped:
        pickled, file = pickle.dumps(mapped), mapped._table._file
        copy.deepcopy(mapped).close()
        with open(file, "r+b") as stream:
            stream.seek(-3, os.SEEK_END)
            byte = stream.read(1)
            stream.seek(-3, os.SEEK_END)
            stream.write(bytes([byte[0] ^ 1]))
        os.utime(file, ns=(0, mapped._table._identity[3]))
        for restore in (lambda: copy.deepcopy(mapped), lambda: pickle.loads(pickled)):
            with pytest.raises(errors.CorruptRecordError, match="has the SHA-256"):
                restore()
        os.unlink(file)
        with pytest.raises(errors.StoreNotFoundError):
            pickle.loads(pickled)


def test_a_table_that_is_replaced_after_the_restoring_is_refused_at_the_first_use(path):
    with MappedEmbedding(path) as mapped:
        again = copy.deepcopy(mapped)
        other_table(path, backend=mapped._table.meta["table"]["backend"])
        with pytest.raises(errors.CorruptRecordError, match="SHA-256"):
            again(IDS)


def test_an_equal_table_in_the_place_of_another_is_the_same(path, original):
    with MappedEmbedding(path) as mapped:
        pickled = pickle.dumps(mapped)
        again = copy.deepcopy(mapped)
        export_embedding(original, path, mapped._table.meta["table"]["backend"], overwrite=True)
        for module in (again, pickle.loads(pickled)):
            assert_same_bits(module(IDS), original.weight[IDS])
        in_child(lambda: assert_same_bits(mapped(IDS), original.weight[IDS]))


def test_a_bare_table_is_known_again_by_its_hash(original, tmp_path):
    file = tmp_path / "t.men"
    pack_native(original.weight, file)
    with MappedEmbedding(file, dtype="float32") as mapped:
        in_child(lambda: assert_same_bits(copy.deepcopy(mapped)(IDS), original.weight[IDS]))
        pickled = pickle.dumps(mapped)
        assert_same_bits(pickle.loads(pickled)(IDS), original.weight[IDS])
        pack_native(original.weight.flip(0), file)
        with pytest.raises(errors.CorruptRecordError, match="SHA-256"):
            pickle.loads(pickled)


# ---- processes ---------------------------------------------------------------------------------


def test_a_forked_child_opens_it_anew(path, original):
    with MappedEmbedding(path, cache_bytes=1 << 16) as mapped, MappedEmbeddingBag(path, "sum") as bag:
        expected = mapped(IDS), bag(IDS)

        def work():
            torch.set_num_threads(1)  # torch's own threads do not live in a forked child
            assert_same_bits(mapped(IDS), expected[0])
            assert_same_bits(bag(IDS), expected[1])

        for _ in range(10):
            in_child(work)

        def closes():
            mapped.close()
            with pytest.raises(errors.ClosedError):
                mapped(IDS)

        in_child(closes)
        in_child(lambda: in_child(lambda: assert_same_bits(mapped(IDS), expected[0])))
        assert_same_bits(mapped(IDS), expected[0])


def test_a_forked_child_refuses_another_table_in_its_place(path, original):
    with MappedEmbedding(path) as mapped:
        other_table(path, backend=mapped._table.meta["table"]["backend"])

        def work():
            with pytest.raises(errors.CorruptRecordError, match="SHA-256"):
                mapped(IDS)

        in_child(work)
        assert_same_bits(mapped(IDS), original.weight[IDS])


def test_a_forked_child_takes_a_copy_of_the_table_in_its_place(path, original):
    with MappedEmbedding(path) as mapped:
        file = Path(mapped._table._file)
        file.with_name("copy").write_bytes(file.read_bytes())
        os.replace(file.with_name("copy"), file)
        in_child(lambda: assert_same_bits(mapped(IDS), original.weight[IDS]))


class Rows(torch.utils.data.Dataset):
    """Rows by way of a module that workers get."""

    def __init__(self, module):
        self.module = module

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return self.module(torch.tensor(i))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_of_torchs_loader(original, tmp_path, start):
    export_embedding(original, tmp_path / "e")
    with MappedEmbedding(tmp_path / "e") as mapped:
        mapped(IDS)
        context = multiprocessing.get_context(start)
        loader = torch.utils.data.DataLoader(Rows(mapped), 8, num_workers=1, multiprocessing_context=context)
        assert_same_bits(torch.cat(list(loader)), original.weight[:40])


# ---- closing, threads, memory --------------------------------------------------------------------


def test_a_closed_module_says_so(path):
    with MappedEmbedding(path) as mapped:
        key = mapped._key
    mapped.close()
    assert mapped.closed and "200, 16" in repr(mapped)
    calls = (lambda: mapped(IDS), lambda: torch.ops.ngram_store.embedding(IDS, key), mapped.stats,
             lambda: mapped.prefetch(IDS), lambda: pickle.dumps(mapped), lambda: copy.deepcopy(mapped))  # fmt: skip
    for call in calls:
        with pytest.raises(errors.ClosedError, match="closed"):
            call()


def test_it_is_closed_when_nobody_refers_to_it(original, tmp_path):
    export_embedding(original, tmp_path / "e")
    gc.collect()
    gc.disable()
    try:
        before = _engine.lib.NumHandles()
        MappedEmbedding(tmp_path / "e")(IDS)
        assert _engine.lib.NumHandles() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("strategy", ["fused", "unique", "chunked"])
def test_16_threads_share_a_module(original, tmp_path, strategy):
    export_embedding(original, tmp_path / "e", codec="zstd", block_rows=8)
    reference = torch.nn.EmbeddingBag.from_pretrained(original.weight.detach(), mode="sum")
    failures = []
    with (
        MappedEmbedding(tmp_path / "e", cache_bytes=5000) as mapped,
        MappedEmbeddingBag(tmp_path / "e", "sum", strategy=strategy, chunk_rows=50) as bag,
    ):

        def work(seed):
            generator = torch.Generator().manual_seed(seed)
            try:
                for turn in range(20):
                    n = 9000 if turn % 10 == seed % 10 else 60
                    ids = torch.randint(200, (n,), generator=generator)
                    rows = mapped(ids)
                    assert_same_bits(bag(ids.view(-1, 10)), reference(ids.view(-1, 10)))
                    assert_same_bits(rows, original.weight[ids])
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


def test_closing_while_others_look_up_is_safe(path, original):
    for _ in range(5):
        mapped, failures = MappedEmbedding(path), []

        def read(mapped=mapped, failures=failures):
            try:
                while True:
                    assert_same_bits(mapped(IDS), original.weight[IDS])
            except errors.ClosedError:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        mapped.close()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]


def test_memory_that_is_kept_for_results_is_bounded():
    memory = Results(small=1000, most=100_000)
    assert memory.empty((0, 5), torch.float32)[0].shape == (0, 5)
    small, _place = memory.empty((10, 10), torch.float16)
    assert small.resize_(500).numel() == 500  # torch's own
    kept = [memory.empty((n // 4,), torch.float32)[0] for n in range(1000, 9000, 100)]
    assert len({tensor.data_ptr() for tensor in kept}) == len(kept)
    assert sum(buffer.size for buffer in memory._buffers.values()) <= 100_000
    places = {tensor.data_ptr() for tensor in kept}
    del kept
    assert memory.empty((2000,), torch.float32)[0].data_ptr() in places
    large, place = memory.empty((50_000,), torch.float32)
    assert large is place
    tiny, place = memory.empty((500, 2), torch.bfloat16)  # not in memory of 8000 bytes, which it would keep
    assert tiny.shape == (500, 2) and tiny.untyped_storage().nbytes() == place.nbytes == 2000


def test_an_interrupt_of_an_allocation_does_no_harm_later():
    """Wherever between two lines of it the interrupt comes, later results are there and bounded."""
    for stop in range(12):
        memory = Results(small=1000, most=100_000)
        lines = 0

        def trace(frame, event, _argument, memory=memory, stop=stop):
            nonlocal lines
            if frame.f_code is not Results._take.__code__:
                return None
            if event == "line":
                lines += 1
                if lines % 20 == stop:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        kept = []
        for size in range(30_000, 60_000, 1000):
            sys.settrace(trace)
            try:
                kept.append(memory.empty((size // 2,), torch.float16)[0])
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
        assert lines and len(kept) > 5
        del kept
        for size in range(30_000, 60_000, 1000):
            assert len(memory.empty((size // 2,), torch.float16)[0]) == size // 2
        assert sum(buffer.size for buffer in memory._buffers.values()) <= 100_000


def test_a_table_of_20_gb_in_a_process_of_1_gib(tmp_path):
    """The limit is on private, writable memory: what is mapped from the file is the system's page cache."""
    from ngram_store.bundle import write_bundle
    from tests.tables import sparse

    rows, dim = 40_000_000, 128
    marked = {0: 1.5, 12_345_678: 2.5, rows - 1: 3.5}

    def fill(folder):
        first = sparse(f"{folder}/table.men", rows, 4 * dim)
        with open(f"{folder}/table.men", "r+b") as file:
            for row, value in marked.items():
                file.seek(first + row * 4 * dim)
                file.write(torch.full((dim,), value).numpy().tobytes())
        size = os.path.getsize(f"{folder}/table.men")
        return {"file": "table.men", "backend": "native", "bytes": size, "sha256": "0" * 64}, None

    fields = {
        "num_embeddings": rows,
        "embedding_dim": dim,
        "dtype": "float32",
        "row_bytes": 4 * dim,
        "padding_idx": None,
    }
    bundle, _ = write_bundle(tmp_path / "e", "embedding", fields, fill)
    assert os.path.getsize(bundle.table_path) > 20e9
    run_python(
        """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
        import torch
        from ngram_store import MappedEmbedding, MappedEmbeddingBag
        try:
            torch.empty(1 << 30, dtype=torch.uint8)
            raise SystemExit("there is no limit")
        except RuntimeError:
            pass
        def own_kib():
            with open("/proc/self/status") as status:
                return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        mapped, bag = MappedEmbedding(sys.argv[1]), MappedEmbeddingBag(sys.argv[1], "sum")
        marked = torch.tensor([0, 12_345_678, 39_999_999])
        assert mapped(marked)[:, 5].tolist() == [1.5, 2.5, 3.5]
        assert bag(marked, torch.tensor([0]))[0, 7] == 7.5
        generator = torch.Generator().manual_seed(1)
        for _ in range(6):
            ids = torch.randint(40_000_000, (30_000,), generator=generator)
            assert mapped(ids).count_nonzero() <= 128 * 3
            assert bag(ids.view(-1, 20)).shape == (1500, 128)
        assert own_kib() < 600 << 10, own_kib()
        """,
        bundle.path,
        timeout=300,
    )


@pytest.mark.slow
def test_1e5_forwards_leave_the_process_as_it_was(original, tmp_path):
    export_embedding(original, tmp_path / "e")
    export_multihead(MultiHeadEmbedding([30, 50], 4), tmp_path / "m")
    run_python(
        """
        import sys, torch
        from ngram_store import MappedEmbedding, MappedEmbeddingBag, MappedMultiHeadEmbedding
        from tests.processes import assert_no_growth
        torch.set_num_threads(1)
        path = sys.argv[1] + "/e"
        mapped, heads = MappedEmbedding(path), MappedMultiHeadEmbedding(sys.argv[1] + "/m")
        bags = [MappedEmbeddingBag(path, "sum", strategy=name) for name in ("fused", "unique", "chunked")]
        small, large, huge = torch.randint(200, (4, 5)), torch.randint(200, (5000,)), torch.randint(200, (30_000,))
        pairs, bad = torch.randint(30, (7, 2)), torch.tensor([[0, 200]])
        compiled = torch.compile(mapped, backend="eager", fullgraph=True)
        def call():
            mapped(small)
            heads(pairs)
            for bag in bags:
                bag(small)
            compiled(small)
            try:
                mapped(bad)
            except IndexError:
                return
            raise SystemExit("no error")
        assert_no_growth(call, 2000, 100_000 // 7)
        assert_no_growth(lambda: mapped(large), 100, 5000)
        assert_no_growth(lambda: mapped(huge), 100, 5000)  # its result comes from the pool
        assert_no_growth(lambda: mapped(small), 1000, 100_000)
        """,
        tmp_path,
        timeout=600,
    )
