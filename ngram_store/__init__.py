"""Immutable, memory-mapped embedding tables that stand in for layers of a model at inference.

``replace_embeddings``                 all of the above for a whole model, in place
=====================================  =============================================

torch is imported when one of the modules or exporters is asked for, not before.
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
    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
