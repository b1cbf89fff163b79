"""Quantised tables that are closed, copied, forked, damaged or replaced, and queries that are wrong."""

import copy
import json
import multiprocessing
import os
import pickle
import threading

import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import MappedEmbedding, QuantizedRows, export_embedding, pack_native, pack_quantized
from tests.bags import matrix_of
from tests.processes import in_child


@pytest.fixture
def table(tmp_path, rng):
    matrix = matrix_of(rng, 100, 8)
    pack_quantized(matrix, tmp_path / "q", "uint8_rowwise")
    with QuantizedRows(tmp_path / "q") as rows:
        yield rows


def test_wrong_queries(table):
    for ids in ([100], [-1], [1 << 63], np.array([1 << 63], np.uint64)):
        with pytest.raises(errors.RecordIndexError):
            table.gather(ids)
        for scratch in (None, bytearray(64)):
            with pytest.raises(errors.RecordIndexError):
                table.gather_into(ids, np.empty((1, 8), np.float32), scratch)
    with pytest.raises(errors.DtypeError):
        table.gather([0.5])
    with pytest.raises(errors.BufferSizeError, match="encoded_scratch"):
        table.gather_into([1, 2], np.empty((2, 8), np.float32), bytearray(31))
    with pytest.raises(errors.ArgumentError):
        table.gather_into([1], np.empty((1, 8), np.float32), bytes(64))
    for output in (np.empty((1, 8)), np.empty((1, 9), np.float32), np.empty((2, 8), np.float32)[:, ::2]):
        for scratch in (None, bytearray(64)):
            with pytest.raises((errors.DtypeError, errors.ArgumentError)):
                table.gather_into([1], output, scratch)


@pytest.mark.parametrize("native", [True, False])
def test_life(tmp_path, rng, native):
    matrix = matrix_of(rng, 50, 8)
    pack_quantized(matrix, tmp_path / "q", "int8", native)
    rows = QuantizedRows(tmp_path / "q", verify=True)
    expected = rows.gather(np.arange(50))
    for other in (pickle.loads(pickle.dumps(rows)), copy.copy(rows), copy.deepcopy(rows)):
        with other:
            np.testing.assert_array_equal(other.gather(np.arange(50)), expected)
    in_child(lambda: np.testing.assert_array_equal(rows.gather(np.arange(50)), expected))
    wrong = []

    def work():
        for _ in range(200):
            if rows.gather(np.arange(50)).tobytes() != expected.tobytes():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    rows.close()
    rows.close()
    assert rows.closed and "closed" in repr(rows)
    for call in (lambda: rows.gather([0]), lambda: pickle.dumps(rows), rows.verify, rows.stats):
        with pytest.raises(errors.ClosedError):
            call()


def _sum_of(rows):
    return rows.gather(np.arange(len(rows))).tobytes()


def test_spawned_workers(table):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_of, (table,)) == _sum_of(table)


@pytest.mark.parametrize("native", [True, False])
def test_damage_is_seen(tmp_path, rng, native):
    pack_quantized(matrix_of(rng, 50, 8), tmp_path / "q", "int8", native)
    file = tmp_path / "q" / ("table.men" if native else "rows.bin")
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    with pytest.raises(errors.CorruptRecordError, match="SHA-256"):
        QuantizedRows(tmp_path / "q", verify=True)
    for size in (0, 12, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises((errors.CorruptRecordError, errors.StoreFormatError)):
            QuantizedRows(tmp_path / "q")
    file.unlink()
    with pytest.raises(errors.StoreNotFoundError):
        QuantizedRows(tmp_path / "q")


def test_damaged_descriptions(tmp_path, rng):
    pack_quantized(matrix_of(rng, 50, 8), tmp_path / "q", "int8")
    file = tmp_path / "q" / "bundle.json"
    meta = json.loads(file.read_text())
    for change in ({"dtype": "float32"}, {"embedding_dim": 9}, {"embedding_dim": 0, "row_bytes": 0}, {"quantized": 1}):
        file.write_text(json.dumps({**meta, **change}))
        with pytest.raises(errors.CorruptRecordError, match="damaged"):
            QuantizedRows(tmp_path / "q")
    file.write_text(json.dumps({**meta, "num_embeddings": 51}))
    with pytest.raises(errors.CorruptRecordError, match=r"damaged|its bundle says"):
        QuantizedRows(tmp_path / "q")


def test_bundles_of_other_kinds(tmp_path, rng):
    pack_quantized(matrix_of(rng, 50, 8), tmp_path / "q", "int8")
    export_embedding(torch.nn.Embedding(5, 4), tmp_path / "e")
    pack_native(np.zeros((5, 4), np.float32), tmp_path / "t")
    with pytest.raises(errors.DtypeError, match="QuantizedRows"):
        MappedEmbedding(tmp_path / "q")
    with pytest.raises(errors.StoreFormatError, match=r"embedding.*pack_quantized"):
        QuantizedRows(tmp_path / "e")
    with pytest.raises(errors.StoreFormatError, match=r"is a file.*pack_quantized"):
        QuantizedRows(tmp_path / "t")


def test_a_shortened_plain_table_is_an_error(tmp_path, rng):
    pack_quantized(rng.standard_normal((20000, 16)).astype(np.float32), tmp_path / "q", "int8", False)
    with QuantizedRows(tmp_path / "q") as rows, open(tmp_path / "q" / "rows.bin", "r+b") as file:
        file.truncate(4096)
        with pytest.raises(errors.FileFaultError):
            rows.gather(np.arange(20000))
        with pytest.raises(errors.FileFaultError):
            rows.embedding_bag(np.arange(20000), [0])


@pytest.mark.parametrize("mapped", [True, False])
def test_memory_is_bounded_whatever_the_source(tmp_path, python, mapped):
    (tmp_path / "source").touch()
    os.truncate(tmp_path / "source", 256 << 20)
    pack = (
        "pack_quantized(np.memmap(source, '<f4', 'r', shape=(1 << 19, 128)), target, 'int8', False)"
        if mapped
        else "pack_quantized_file(source, target, 128, 'int8', False)"
    )
    grown = python(
        f"""
        import sys, resource, numpy as np
        from ngram_store import pack_quantized, pack_quantized_file
        _, source, target = sys.argv
        pack_quantized(np.ones((5000, 128), np.float32), target + "0", "int8")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        {pack}
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        tmp_path / "source",
        tmp_path / "q",
    )
    assert int(grown) < 64 << 10


def test_many_rows_by_way_of_scratch(tmp_path):
    pack_quantized(np.eye(5, 1000, dtype=np.float32), tmp_path / "q", "uint8_rowwise")
    ids = np.arange(10000) % 5
    out = np.full((10000, 1000), np.nan, np.float32)
    with QuantizedRows(tmp_path / "q") as rows:
        rows.gather_into(ids, out, np.empty((10000, rows.width), np.uint8))
        np.testing.assert_array_equal(out, rows.gather(ids))
