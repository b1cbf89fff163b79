"""Bags: arguments, memory, faults, threads, forks and long calls."""

import itertools
import os
import threading

import ml_dtypes
import numpy as np
import pytest
import torch

from loaderx import errors
from ngram_store import NativeRows, pack_native
from tests.bags import embedding_bag, nans, same_bits, some_bags, table_of, weight_of
from tests.processes import in_child, run_python
from tests.tables import RAW, SHUFFLE, XOR, ZLIB, forge, sparse


def test_offsets_of_both_lengths(tmp_path):
    weight = weight_of(np.random.default_rng(2), 50, 4, torch.float32)
    with table_of(tmp_path / "t.men", weight) as rows:
        ids = np.arange(6)
        plain = rows.embedding_bag(ids, [0, 2])
        assert plain.shape == (2, 4)
        np.testing.assert_array_equal(rows.embedding_bag(ids, [0, 2, 6], include_last_offset=True), plain)
        assert rows.embedding_bag(ids, [0, 2, 6]).shape == (3, 4)  # as in torch
        for offsets, flag in (([0, 2], None), ([0, 2, 6], None), ([0, 2, 6], True), ([0, 2], False)):
            out = np.full((2, 4), np.nan, np.float32)
            rows.embedding_bag(ids, offsets, out=out, include_last_offset=flag)
            np.testing.assert_array_equal(out, plain)


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
@pytest.mark.parametrize(
    ("offsets", "last", "message"),
    [
        ([1, 2], None, "first offset is 1"),
        ([-1, 2], None, "first offset is -1"),
        ([0, 3, 2], None, "offset 2 at position 2 follows 3"),
        ([0, 7], None, "last offset is 7 of 6"),
        ([0, 5], True, "last offset is 5, want the number of ids, 6"),
        ([0, 7], True, "last offset is 7"),
        ([], None, "no offsets"),
        ([], True, "offsets are empty"),
        ([0, 2**63 - 1, -(2**63), 3], None, "follows"),
        ([0, -(2**63), 5], None, "follows"),
        (np.array([0, 2**63], np.uint64), None, "offset 9223372036854775808 at position 1"),
        ([0, 2**64], None, "offsets must lie"),
        ([[0, 2]], None, "one dimension"),
    ],
)
def test_offsets_that_do_not_cover_the_ids_in_order_are_refused(tmp_path, encoding, offsets, last, message):
    with table_of(tmp_path / "t.men", torch.ones(50, 4), encoding) as rows:
        bags = max(np.size(offsets) - bool(last), 0)
        for out in (None, np.full((bags, 4), 7, np.float32)):
            with pytest.raises(errors.ArgumentError, match=message):
                rows.embedding_bag(np.arange(6), offsets, include_last_offset=last, out=out)
        assert (out == 7).all()


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, -1, 900], r"id -1 at position 1: want 0 to 49: table .*t\.men"),
        ([0, 49, 50], "id 50 at position 2"),
        (np.array([2**63, 0, 0], np.uint64), "id 9223372036854775808 at position 0"),
        (np.array([0, 0, 2**64 - 1], np.uint64), "id 18446744073709551615 at position 2"),
        (np.repeat([0, 50, -1], [30_000, 30_000, 1]), "id 50 at position 30000:"),
        (torch.tensor([0, -7, 1], dtype=torch.int32), "id -7 at position 1"),
    ],
)
def test_ids_outside_the_table_are_named_and_nothing_is_written(tmp_path, encoding, ids, message):
    with table_of(tmp_path / "t.men", torch.ones(50, 4), encoding) as rows:
        out = np.full((2, 4), 7, np.float32)
        for padding in (None, 0):
            with pytest.raises(errors.RecordIndexError, match=message):
                rows.embedding_bag(ids, [0, 1], out=out, padding_idx=padding)
            assert (out == 7).all()
        with pytest.raises(errors.RecordIndexError, match=message):
            rows.gather_floats(ids, "fp32")


def test_ids_and_offsets_of_any_integer_dtype_and_layout(tmp_path):
    weight = weight_of(np.random.default_rng(2), 50, 4, torch.float32)
    ids, offsets = np.arange(40) % 50, np.array([0, 3, 3, 17])
    with table_of(tmp_path / "t.men", weight) as rows:
        expected = rows.embedding_bag(ids, offsets)
        kinds = ("i4", "i8", "u1", "u8", "i2", ">i8")
        for of_ids, of_offsets in itertools.product(kinds, kinds):
            strided = np.repeat(ids.astype(of_ids), 3)[::3]
            frozen = offsets.astype(of_offsets)
            frozen.flags.writeable = strided.flags.writeable = False
            np.testing.assert_array_equal(rows.embedding_bag(strided, frozen), expected)
        for of_ids, of_offsets in itertools.product((torch.int32, torch.int64, torch.uint8), repeat=2):
            given = torch.from_numpy(ids).to(of_ids), torch.from_numpy(offsets).to(of_offsets)
            np.testing.assert_array_equal(rows.embedding_bag(*given), expected)
        frozen = np.arange(40)
        frozen.flags.writeable = False
        np.testing.assert_array_equal(rows.embedding_bag(frozen, offsets), expected)


def test_results_go_into_memory_of_their_shape_and_dtype(tmp_path):
    weight = weight_of(np.random.default_rng(2), 50, 6, torch.bfloat16)
    with table_of(tmp_path / "t.men", weight) as rows:
        expected = embedding_bag(torch.tensor([[1, 2]]), weight, mode="sum")
        for out in (
            np.empty((1, 6), ml_dtypes.bfloat16),
            np.empty((1, 6), np.uint16),
            torch.empty(1, 6, dtype=torch.bfloat16),
        ):
            assert rows.embedding_bag([[1, 2]], out=out, dtype="bf16") is out
            got = out if isinstance(out, torch.Tensor) else torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
            same_bits(got, expected)
        out = bytearray(12)
        rows.embedding_bag([[1, 2]], out=out, dtype="bf16")
        same_bits(torch.frombuffer(out, dtype=torch.bfloat16).reshape(1, 6), expected)
        bits = rows.embedding_bag([[1, 2]], dtype="bf16", bits=True)
        assert bits.dtype == np.uint16 and bits.tobytes() == bytes(out)
        for wrong, error in (
            (np.empty((1, 6), np.float16), errors.DtypeError), (np.empty((1, 3), np.float32), errors.DtypeError),
            (np.empty((2, 6), np.uint16), errors.ArgumentError), (np.empty(6, np.uint16), errors.ArgumentError),
            (torch.empty(1, 12, dtype=torch.bfloat16)[:, ::2], errors.ArgumentError),
            (bytearray(11), errors.BufferSizeError),
            (bytes(12), errors.ArgumentError), (np.empty((1, 12), np.uint16)[:, ::2], errors.ArgumentError),
            (torch.empty(1, 6, dtype=torch.bfloat16, device="meta"), errors.DtypeError), ("x", errors.DtypeError),
        ):  # fmt: skip
            with pytest.raises(error):
                rows.embedding_bag([[1, 2]], out=wrong, dtype="bf16")


def test_without_ml_dtypes_results_of_bfloat16_are_bits_or_tensors(tmp_path):
    table_of(tmp_path / "t.men", torch.full((3, 4), 1.5, dtype=torch.bfloat16)).close()
    run_python(
        """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np, torch
        from loaderx import errors
        from ngram_store import NativeRows, pack_native
        rows = NativeRows(sys.argv[1])
        try:
            rows.embedding_bag([[0, 1]], dtype="bf16")
        except errors.DtypeError as error:
            assert "ml_dtypes" in str(error) and "bits=True" in str(error)
        else:
            raise AssertionError
        three = np.full((1, 4), 0x4040, np.uint16)
        assert (rows.embedding_bag([[0, 1]], dtype="bf16", bits=True) == three).all()
        out = torch.empty(1, 4, dtype=torch.bfloat16)
        weights = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
        assert (rows.embedding_bag([[0, 1]], dtype=torch.bfloat16, out=out, weights=weights) == 3).all()
        bits = np.zeros((1, 4), np.uint16)
        assert (rows.embedding_bag([[0, 1]], dtype="bf16", out=bits) == three).all()
        assert (rows.gather_floats([0], "bf16") == 1.5).all()
        """,
        tmp_path / "t.men",
    )


def test_arguments_that_make_no_sense_are_refused(tmp_path):
    # Bytes, so that the table records no kind.
    with table_of(tmp_path / "t.men", torch.ones(50, 6).view(torch.uint8)) as rows:
        for error, arguments in (
            (errors.ArgumentError, {"mode": "min"}), (errors.ArgumentError, {"accumulate": "f32"}),
            (errors.DtypeError, {"mode": []}), (errors.DtypeError, {"dtype": "int32"}),
            (errors.DtypeError, {"dtype": torch.int8}),
            (errors.DtypeError, {"dtype": object}), (errors.DtypeError, {"dtype": 3}),
            (errors.ArgumentError, {"dim": 5}), (errors.DtypeError, {"dim": 6.0}),
            (errors.ArgumentError, {"dtype": "fp16", "dim": 6}),
            (errors.ArgumentError, {"padding_idx": 50}), (errors.ArgumentError, {"padding_idx": -51}),
            (errors.DtypeError, {"padding_idx": True}), (errors.DtypeError, {"padding_idx": 1.0}),
            (errors.ArgumentError, {"offsets": [0]}), (errors.ArgumentError, {"ids": [1, 2]}),
            (errors.ArgumentError, {"ids": 3}), (errors.ArgumentError, {"ids": [[[1]]]}),
            (errors.DtypeError, {"ids": [[1.0]]}), (errors.DtypeError, {"ids": [1, 2], "offsets": [0.0]}),
        ):  # fmt: skip
            with pytest.raises(error):
                rows.embedding_bag(**{"ids": [[1, 2]], **arguments})
        assert rows.embedding_bag([[1]], dtype=np.dtype("<f4")).shape == (1, 6)
        assert rows.embedding_bag([[1]], dtype="float64").shape == (1, 3)
    with pytest.raises(errors.ClosedError):
        rows.embedding_bag([[1]])
    with pytest.raises(errors.ClosedError):
        rows.gather_floats([1], "fp32")


def test_rows_that_can_not_be_of_a_kind_are_refused(tmp_path):
    with table_of(tmp_path / "t.men", torch.ones(50, 7, dtype=torch.uint8)) as rows:
        for name in ("fp32", "fp16", "bf16", "fp64", "uint8_rowwise"):
            with pytest.raises(errors.ArgumentError, match="rows of 7 bytes"):
                rows.embedding_bag([[1]], dtype=name)
        with pytest.raises(errors.ArgumentError, match="pack_quantized"):
            rows.embedding_bag([[1]], dtype="uint8_rowwise")
        assert rows.embedding_bag([[1]], dtype="int8").shape == (1, 3)


@pytest.mark.parametrize("codec", [RAW, ZLIB])
def test_a_file_shortened_under_a_bag_is_an_error(tmp_path, codec):
    content = np.random.default_rng(1).integers(0, 5, (24_000, 256)).astype(np.uint8)
    path = forge(tmp_path / "t.men", content, 64, codec, mapped=False)
    ids = np.random.default_rng(1).integers(0, 24_000, 100_000)
    with NativeRows(path, 1 << 16, "rows") as rows:
        rows.embedding_bag(ids[:100], [0])
        cut = threading.Timer(0.01, os.truncate, (path, 4096))
        cut.start()

        def on():
            for _ in range(10_000):
                rows.embedding_bag(ids, np.arange(0, 100_000, 20))

        with pytest.raises(errors.FileFaultError, match=r"t\.men"):
            on()
        cut.join()
        for call in (lambda: rows.embedding_bag([[23_000]]), lambda: rows.embedding_bag(np.full(30_000, 23_000), [0]),
                     lambda: rows.gather_floats([23_000], "fp32"), lambda: rows.gather_floats(ids, "int8"),
                     ):  # fmt: skip
            with pytest.raises(errors.FileFaultError, match=r"t\.men"):
                call()


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
def test_many_threads_and_forked_children(tmp_path, encoding):
    weight = weight_of(np.random.default_rng(2), 3000, 32, torch.float16)
    failures = []
    with table_of(tmp_path / "t.men", weight, encoding, cache_bytes=50_000, cache_policy="rows") as rows:

        def work(seed):
            rng = np.random.default_rng(seed)
            try:
                for mode in ("sum", "mean", "max") * 4:
                    ids, offsets = some_bags(rng, 3000, 100)
                    out = nans(100, 32, dtype=torch.float16)
                    rows.embedding_bag(ids, offsets, mode, out=out, dtype="fp16", padding_idx=5)
                    expected = embedding_bag(ids, weight, offsets, mode=mode, include_last_offset=True, padding_idx=5)
                    same_bits(out, expected)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        expected = rows.embedding_bag(np.arange(3000), [0, 100], dtype="fp16")

        def child():
            np.testing.assert_array_equal(rows.embedding_bag(np.arange(3000), [0, 100], dtype="fp16"), expected)

        for _ in range(5):
            in_child(child)


@pytest.mark.parametrize(("predictor", "block_rows"), [(XOR, 1), (SHUFFLE, 40)])
def test_each_row_is_decoded_once_for_a_chunk(tmp_path, predictor, block_rows):
    content = np.zeros((400, 64), np.uint8)
    path = forge(tmp_path / "t.men", content, block_rows, ZLIB, predictor, element=4)
    with NativeRows(path) as rows:
        rows.embedding_bag(np.tile(np.arange(400), 5), [0, 1000, 1001], padding_idx=3)
        stats = rows.stats()
        assert stats["blocks_decoded"] == 400 // block_rows - (block_rows == 1)  # padding is not read
        assert stats["queries"] == 1 and stats["rows"] == 2000


LONG = """
    import os
    import numpy as np
    from ngram_store import NativeRows, pack_native
    from tests.tables import forge, sparse
    path = os.environ["FOLDER"] + "/t.men"
    {make}
    rows = NativeRows(path, query_chunk_rows={chunk})
    ids = np.arange({n}) % len(rows)
    out = np.empty((len({offsets}), rows.row_bytes // 4), np.float32)
    try:
        print("ready", flush=True)
        while True:
            rows.embedding_bag(ids, {offsets}, out=out)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.parametrize(
    ("make", "chunk", "n", "offsets"),
    [
        ("sparse(path, 1 << 20, 4096)", 65536, 1_000_000, "np.arange(0, 1000000, 20)"),
        ("sparse(path, 1 << 20, 4096)", 65536, 3_000_000, "[0]"),
        ("forge(path, np.zeros((64, 1 << 21), np.uint8), 8)", "None", 300, "[0, 7, 200]"),
    ],
)
def test_ctrl_c_ends_a_long_bag(interrupted, tmp_path, monkeypatch, make, chunk, n, offsets):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    out, err = interrupted(LONG.format(make=make, chunk=chunk, n=n, offsets=offsets), timeout=20)
    assert out == "interrupted\n", err


def test_a_sparse_table_takes_no_gathered_memory(tmp_path):
    """A raw table's bags need no memory beside the result."""
    path = tmp_path / "t.men"
    sparse(path, 1 << 24, 512)
    run_python(
        """
        import sys
        import numpy as np
        from ngram_store import NativeRows, pack_native
        from tests.test_memory import STATUS
        exec(__import__("textwrap").dedent(STATUS).split("folder =")[0])
        rows = NativeRows(sys.argv[1])
        ids = np.random.default_rng(1).integers(0, len(rows), 400_000)
        offsets = np.arange(0, 400_000, 100)
        out = np.zeros((4000, 128), np.float32)
        rows.embedding_bag(ids[:3000], offsets[:30], out=out[:30])
        before = kib("RssAnon")
        for _ in range(3):
            rows.embedding_bag(ids, offsets, out=out, mode="mean")
        assert kib("RssAnon") - before < 4 << 10, kib("RssAnon") - before
        """,
        path,
    )


def test_wide_rows_of_a_compressed_table_take_bounded_memory(tmp_path):
    """However many ids there are, and however wide the rows."""
    run_python(
        """
        import sys
        import numpy as np
        from ngram_store import NativeRows, pack_native
        from tests.test_memory import STATUS
        exec(__import__("textwrap").dedent(STATUS).split("folder =")[0])
        pack_native(np.ones((8, 1 << 18), np.float32), sys.argv[1], codec="zstd")
        rows = NativeRows(sys.argv[1], threads=2)
        ids = np.arange(20_000) % 8
        rows.embedding_bag(ids[:8], [0])
        before = kib("RssAnon")
        assert (rows.embedding_bag(ids, [0]) == 20_000).all()  # 20 GB, were they gathered
        assert kib("RssAnon") - before < 100 << 10, kib("RssAnon") - before
        """,
        tmp_path / "t.men",
    )


def test_numbers_of_another_byte_order_are_refused(tmp_path):
    pack_native(np.ones((4, 8)), tmp_path / "t.men")
    with NativeRows(tmp_path / "t.men") as rows, pytest.raises(errors.DtypeError, match="little-endian"):
        rows.embedding_bag([0], [0], dtype=np.dtype(">f8"))
