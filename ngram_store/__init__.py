"""Immutable, memory-mapped embedding tables that stand in for layers of a model at inference.

A table is a MEFTNAT1 file, or a bundle: a directory with a table and what a module must know of it.

=====================================  ===================================================================
Tables of rows, without torch
``pack_native``, ``NativeRows``        write a table of rows of any sort; read it, in bags and as numbers
``pack_quantized``, ``QuantizedRows``  write numbers in fewer bytes, as a bundle; read them
``pack_quantized_file``                the same from a file of float32
``read_bundle``, ``Bundle``            what a bundle says of itself
``PackReport``, ``BlockEncoding``      what `pack_native` wrote, and how blocks are stored
``QuantizedReport``, ``BadBlock``      what `pack_quantized` wrote; what `NativeRows.verify` found

Layers of torch
``replace_embeddings``                 export all tables of a model and put mapped ones in their place
``export_embedding``                   ``nn.Embedding``, for ``MappedEmbedding``
``export_embedding_bag``               ``nn.EmbeddingBag``, for ``open_embedding_bag``
``open_embedding_bag``                 a ``MappedEmbeddingBag`` with the mode that was exported
``export_multihead``                   Engram's ``MultiHeadEmbedding``, for ``MappedMultiHeadEmbedding``
``export_demo_embedding``              the same for Engram's demo, by the sizes of its heads
=====================================  ===================================================================

The command ``ngram-store`` packs, shows, checks and measures tables; `loaderx.errors` has the exceptions.
torch is imported when one of the modules or exporters is asked for, not before.

Examples
--------
>>> import tempfile, numpy as np
>>> path = tempfile.mkdtemp() + "/rows.men"
>>> report = pack_native(np.arange(12, dtype=np.float32).reshape(4, 3), path)
>>> with NativeRows(path) as rows:
...     rows.gather([3, 0], dtype="fp32").tolist(), rows.dtype
([[9.0, 10.0, 11.0], [0.0, 1.0, 2.0]], 'fp32')
"""

import importlib

from loaderx import __version__

from .bundle import Bundle, read_bundle
from .quantized import QuantizedRows
from .quantizer import QuantizedReport, pack_quantized, pack_quantized_file
from .rows import BadBlock, NativeRows
from .writer import BlockEncoding, PackReport, pack_native

#: What needs torch, and where it is defined.
_LAZY = {
    "MappedEmbedding": "embedding",
    "MappedEmbeddingBag": "embedding_bag",
    "MappedMultiHeadEmbedding": "multihead",
    "export_demo_embedding": "export",
    "export_embedding": "export",
    "export_embedding_bag": "export",
    "export_multihead": "export",
    "open_embedding_bag": "embedding_bag",
    "replace_embeddings": "replace",
}

__all__ = [
    "BadBlock",
    "BlockEncoding",
    "Bundle",
    "MappedEmbedding",
    "MappedEmbeddingBag",
    "MappedMultiHeadEmbedding",
    "NativeRows",
    "PackReport",
    "QuantizedReport",
    "QuantizedRows",
    "__version__",
    "export_demo_embedding",
    "export_embedding",
    "export_embedding_bag",
    "export_multihead",
    "open_embedding_bag",
    "pack_native",
    "pack_quantized",
    "pack_quantized_file",
    "read_bundle",
    "replace_embeddings",
]


def __getattr__(name):
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"ngram_store.{name} needs torch: pip install 'loaderx-go[torch]'", name="torch"
        ) from None
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
