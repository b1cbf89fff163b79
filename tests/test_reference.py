"""Bundles that Python alone reads: shortened files, arguments, weights, and life."""

import os
import threading

import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import MappedEmbedding, MappedEmbeddingBag, export_embedding
from ngram_store.reference import PythonRows
from tests.mapped import assert_same_bits
from tests.processes import in_child, run_python


@pytest.mark.parametrize("left", [0, 1, 4096, 32767, 65536, 127999])
def test_a_file_that_is_shortened_is_an_error_and_no_end_of_the_process(tmp_path, left):
    export_embedding(torch.nn.Embedding(2000, 16), tmp_path / "e", "python")

    def work():
        with MappedEmbedding(tmp_path / "e") as mapped:
            mapped(torch.tensor([0, 1999]))
            os.truncate(tmp_path / "e" / "rows.bin", left)
            for ids in ([1999], [0], list(range(2000))):
                with pytest.raises(errors.FileFaultError, match="shortened"):
                    mapped(torch.tensor(ids))
        for opener in (MappedEmbedding, MappedEmbeddingBag):
            with pytest.raises(errors.CorruptRecordError):
                opener(tmp_path / "e")

    in_child(work)


def test_a_file_that_is_replaced_is_read_on(tmp_path):
    first = torch.nn.Embedding(2000, 16)
    export_embedding(first, tmp_path / "e", "python")
    with MappedEmbedding(tmp_path / "e") as mapped:
        export_embedding(torch.nn.Embedding(3, 16), tmp_path / "e", "python", overwrite=True)
        assert_same_bits(mapped(torch.arange(2000)), first.weight)


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"cache_bytes": -1}, errors.ArgumentError),
        ({"cache_bytes": "1"}, errors.DtypeError),
        ({"native_cache_policy": "all"}, errors.ArgumentError),
        ({"native_cache_policy": None}, errors.ArgumentError),
        ({"threads": 0}, errors.ArgumentError),
        ({"threads": 1.5}, errors.DtypeError),
        ({"query_chunk_rows": 0}, errors.ArgumentError),
        ({"query_chunk_rows": "all"}, errors.DtypeError),
    ],
)
def test_options_are_checked_whatever_reads_the_table(tmp_path, backend, options, kind):
    export_embedding(torch.nn.Embedding(3, 2), tmp_path / "e", backend)
    for opener in (MappedEmbedding, MappedEmbeddingBag):
        with pytest.raises(kind):
            opener(tmp_path / "e", **options)
    MappedEmbedding(tmp_path / "e", cache_bytes=np.int64(5), threads=np.uint8(2), query_chunk_rows=None).close()


@pytest.mark.parametrize("backend", ["native", "python"])
def test_weights_that_torch_negates_when_they_are_read(tmp_path, backend):
    weight = torch._neg_view(torch.arange(12.0).reshape(4, 3))
    module = torch.nn.Embedding(4, 3)
    module.weight = torch.nn.Parameter(weight, requires_grad=False)
    assert module.weight.is_neg()
    export_embedding(module, tmp_path / "e", backend)
    with MappedEmbedding(tmp_path / "e") as mapped:
        assert_same_bits(mapped(torch.arange(4)), -torch.arange(12.0).reshape(4, 3))


def test_threads_and_a_close_in_the_midst(tmp_path):
    rows = np.arange(3000 * 8, dtype=np.uint8).reshape(3000, 8)
    rows.tofile(tmp_path / "rows.bin")
    reader, wrong, begun = PythonRows(tmp_path / "rows.bin", 3000, 8), [], threading.Barrier(5)

    def query(seed):
        rng = np.random.default_rng(seed)
        begun.wait()
        try:
            while True:
                ids = rng.integers(0, 3000, 200)
                if not np.array_equal(reader.gather(ids), rows[ids]):
                    wrong.append(ids)
        except errors.ClosedError:
            pass
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=query, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    for _ in range(20):
        assert np.array_equal(reader.gather([[5, 2999]]), rows[[[5, 2999]]])
    reader.close()
    reader.close()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_descriptor_is_left_by_readers_that_nobody_closed():
    run_python(
        """
        import os, tempfile, warnings, gc
        import numpy as np
        from ngram_store.reference import PythonRows
        warnings.simplefilter("error")
        file = tempfile.mkdtemp() + "/rows.bin"
        np.zeros(80, np.uint8).tofile(file)
        PythonRows(file, 10, 8).gather([1])
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            PythonRows(file, 10, 8).gather([1])
        try:
            PythonRows(file, 9, 8)
        except RuntimeError:
            pass
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before
        """,
        silent=True,
    )
