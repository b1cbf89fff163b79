"""What messages of ngram_store say to do instead, and what its package and its objects say of themselves."""

import numpy as np
import pytest
import torch

import ngram_store
from loaderx.errors import DtypeError, StoreFormatError, StoreNotFoundError
from ngram_store import (
    MappedEmbedding,
    MappedEmbeddingBag,
    NativeRows,
    QuantizedRows,
    export_embedding,
    export_embedding_bag,
    open_embedding_bag,
    pack_native,
    pack_quantized,
)
from tests.processes import ROOT, run_python


@pytest.fixture
def floats():
    return np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture
def places(tmp_path, floats):
    """Folders of every kind of bundle, and files."""
    weight = torch.from_numpy(floats)
    export_embedding(torch.nn.Embedding.from_pretrained(weight), tmp_path / "embedding")
    export_embedding_bag(torch.nn.EmbeddingBag.from_pretrained(weight), tmp_path / "embedding_bag")
    pack_quantized(floats, tmp_path / "quantized", "int8", native=True)
    pack_quantized(floats, tmp_path / "plain", "int8", native=False)
    pack_native(floats, tmp_path / "t.men")
    np.save(tmp_path / "w.npy", floats)
    return tmp_path


def test_a_folder_or_an_array_is_no_table(places):
    for name, opener, file in (
        ("embedding", "MappedEmbedding", True), ("embedding_bag", "open_embedding_bag", True),
        ("quantized", "QuantizedRows", True), ("plain", "QuantizedRows", False),
    ):  # fmt: skip
        with pytest.raises(StoreFormatError, match=f"is a bundle of kind .*, which {opener} opens") as caught:
            NativeRows(places / name)
        assert str(caught.value).endswith("table.men") == file
    (places / "folder").mkdir()
    with pytest.raises(StoreFormatError, match="folder is a directory, and neither a table nor a bundle"):
        NativeRows(places / "folder")
    for call in (NativeRows, MappedEmbedding):
        with pytest.raises(StoreFormatError, match=r"w.npy is a .npy file and no table: pass numpy.load.* to pack_nat"):
            call(places / "w.npy")
    (places / "text").write_text("x" * 200)
    with pytest.raises(StoreFormatError, match="MEFTNAT1"):
        NativeRows(places / "text")
    with pytest.raises(StoreNotFoundError) as caught:
        NativeRows(places / "none: open none")
    assert str(caught.value) == f"open table {places}/none: open none: no such file or directory"


def test_bundles_of_another_kind_name_what_opens_them(places):
    for call, name, error, opener in (
        (open_embedding_bag, "embedding", StoreFormatError, "MappedEmbedding"),
        (open_embedding_bag, "quantized", StoreFormatError, "QuantizedRows"),
        (QuantizedRows, "embedding_bag", StoreFormatError, "open_embedding_bag"),
        (MappedEmbedding, "quantized", DtypeError, "QuantizedRows"),
    ):
        with pytest.raises(error, match=f"which {opener} opens"):
            call(places / name)


def test_what_is_passed_instead_is_named(places, floats):
    def refused(call, text):
        with pytest.raises(DtypeError, match=text):
            call()

    embedding, bag = torch.nn.Embedding(5, 4), torch.nn.EmbeddingBag(5, 4)
    refused(lambda: export_embedding(bag, places / "x"), "export_embedding_bag exports one")
    refused(lambda: export_embedding_bag(embedding, places / "x"), "export_embedding exports one")
    refused(lambda: pack_quantized(places / "w.npy", places / "x", "int8"), r"numpy\.load.*pack_quantized_file")
    with MappedEmbedding(places / "embedding") as mapped, NativeRows(places / "t.men") as rows:
        refused(lambda: mapped([1, 2]), r"got list: pass torch\.tensor\(ids\)")
        refused(lambda: mapped(torch.tensor([1.0])), r"not torch\.float32: pass ids\.long\(\)")
        refused(lambda: rows.gather(torch.tensor([1.0])), r"not float32: pass ids\.long\(\)")
        refused(lambda: rows.gather(np.array([1.0])), r"not float64: pass .*\.astype\(numpy\.int64\)")
        refused(lambda: rows.embedding_bag([1], [0.0]), r"offsets .*: pass numpy\.asarray\(offsets\)")


def test_closed_modules_say_so(places):
    for call, name in ((MappedEmbedding, "embedding"), (MappedEmbeddingBag, "embedding_bag")):
        module = call(places / name)
        assert "(closed)" not in repr(module)
        module.close()
        assert repr(module).endswith(" (closed)") and "(closed)" in repr(torch.nn.Sequential(module))


def test_quantised_rows_tell_what_they_consist_of(places):
    for name, native in (("quantized", True), ("plain", False)):
        with QuantizedRows(places / name) as rows:
            info = rows.info()
            assert rows.native == native and rows.dtype == info["dtype"] == "int8"
            assert (info["rows"], info["row_bytes"]) == (10, 8)
            assert info["file_bytes"] == rows.report().file_bytes


def test_the_package_tells_all_its_names():
    shown, _, _ = ngram_store.__doc__.partition("Examples\n")
    missing = [name for name in ngram_store.__all__ if f"``{name}``" not in shown and not name.startswith("_")]
    assert not missing


def test_without_torch_its_names_say_what_to_install():
    run_python(
        """
        import sys
        sys.modules["torch"] = None
        import ngram_store
        for name in ngram_store._LAZY:
            try:
                getattr(ngram_store, name)
            except ModuleNotFoundError as error:
                assert str(error) == f"ngram_store.{name} needs torch: pip install 'loaderx-go[torch]'", error
                assert error.name == "torch"
            else:
                raise SystemExit(name)
        """
    )


@pytest.mark.parametrize("name", ["engram_lm", "text_classification", "torch_resume"])
def test_examples_without_torch_end_in_a_line(name):
    run_python(
        """
        import contextlib, io, runpy, sys
        sys.modules["torch"] = None
        sys.path.insert(0, sys.argv[1].rpartition("/")[0])
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                runpy.run_path(sys.argv[1], run_name="__main__")
        except SystemExit as end:
            assert end.code == 2, end.code
        assert said.getvalue() == "this example needs torch: pip install 'loaderx-go[torch]'\\n", said.getvalue()
        """,
        ROOT / "examples" / f"{name}.py",
    )
