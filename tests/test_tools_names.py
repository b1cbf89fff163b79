"""The names and arguments that adapters for n-gram memories are documented with, run from a checkout."""

from tests.processes import run_python


def test_adapters_are_used_as_documented(tmp_path):
    out = run_python(
        """
        import sys, torch
        from tools.engram_row_adapter import (
            MappedEmbedding, MappedMultiHeadEmbedding, export_demo_embedding, export_embedding, export_multihead,
        )

        folder, library = sys.argv[1], sys.argv[1] + "/libmeft_rows.so"
        open(library, "w").close()
        original = torch.nn.Embedding(60, 8)
        export_embedding(
            original, folder + "/e", backend="native", deduplicate=True, predictor="xor", max_block_bytes=4096
        )
        mapped = MappedEmbedding(
            folder + "/e",
            native_library=library,
            cache_bytes=1 << 16,
            native_cache_policy="blocks",
            query_chunk_rows=65536,
        )
        ids = torch.arange(60).view(3, 20)
        assert torch.equal(mapped(ids), original(ids))
        assert (mapped.num_embeddings, mapped.embedding_dim, mapped.padding_idx) == (60, 8, None)

        export_demo_embedding(
            original, [10, 20, 30], folder + "/d", "native", deduplicate=False, predictor=None, max_block_bytes=None
        )
        heads = MappedMultiHeadEmbedding(folder + "/d", library, 1 << 16, "rows")
        assert heads.offsets.tolist() == [0, 10, 30] and heads.num_heads == 3
        assert torch.equal(heads(torch.tensor([[9, 19, 29]])), original(torch.tensor([[9, 29, 59]])))
        demo = torch.nn.Module()
        demo.embedding, demo.offsets = original, heads.offsets
        export_multihead(demo, folder + "/m", backend="python")
        again = MappedMultiHeadEmbedding(folder + "/m")
        assert again.head_sizes == (10, 20, 30)
        print("equal")
        """,
        tmp_path,
    )
    assert out == "equal\n"


def test_bags_are_used_as_documented(tmp_path):
    out = run_python(
        """
        import sys, torch
        from tools.mapped_embedding_bag import MappedEmbeddingBag, export_embedding_bag, open_embedding_bag

        original = torch.nn.EmbeddingBag(60, 8, mode="sum", padding_idx=0)
        export_embedding_bag(original, sys.argv[1] + "/b")
        ids, offsets = torch.randint(60, (100,)), torch.arange(0, 100, 7)
        weights = torch.randn(100)
        for strategy in ("unique", "chunked", "fused"):
            with MappedEmbeddingBag(
                sys.argv[1] + "/b", mode="sum", padding_idx=0, include_last_offset=False, strategy=strategy,
                chunk_rows=1024, unique_method="auto", unique_index_bytes=8 << 20,
            ) as bag:
                assert torch.equal(bag(ids, offsets, per_sample_weights=weights), original(ids, offsets, weights))
        bag = open_embedding_bag(sys.argv[1] + "/b")
        assert (bag.mode, bag.padding_idx) == ("sum", 0) and torch.equal(bag(ids, offsets), original(ids, offsets))
        print("equal")
        """,
        tmp_path,
    )
    assert out == "equal\n"


def test_quantised_tables_are_used_as_documented(tmp_path):
    out = run_python(
        """
        import sys, numpy as np
        from tools.quantized_memory import QuantizedRows, pack_quantized, pack_quantized_file

        matrix = np.random.default_rng(1).normal(size=(50, 12)).astype(np.float32)
        source = sys.argv[1] + "/source.f32"
        matrix.tofile(source)
        for kind in ("fp32", "fp16", "int8", "uint8_rowwise", "int4_rowwise"):
            out_dir = sys.argv[1] + "/" + kind
            report = pack_quantized_file(
                source, out_dir, 12, kind, native="auto", chunk_rows=4096, max_block_bytes=None
            )
            again = pack_quantized(matrix, out_dir + "2", kind, native=True)
            assert (again.source_sha256, again.decoded_sha256) == (report.source_sha256, report.decoded_sha256)
            assert 0 <= report.mean_error <= report.max_error and report.cosine > 0.98
            rows = QuantizedRows(out_dir)
            ids = np.array([3, 3, 49])
            output, scratch = np.full((3, rows.dim), np.nan, np.float32), np.empty(3 * rows.width, np.uint8)
            rows.gather_into(ids, output, encoded_scratch=scratch)
            assert (output == rows.gather(ids)).all() and np.abs(output - matrix[ids]).max() <= report.max_error
            sums = rows.embedding_bag(ids, [0, 2])
            assert np.allclose(np.asarray(sums, np.float32)[0], 2 * output[0], rtol=1e-2)
        print("equal")
        """,
        tmp_path,
    )
    assert out == "equal\n"
