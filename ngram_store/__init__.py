"""Immutable, memory-mapped embedding tables that stand in for layers of a model at inference."""

from loaderx import __version__

from .rows import BadBlock, NativeRows
from .writer import BlockEncoding, PackReport, pack_native

__all__ = ["BadBlock", "BlockEncoding", "NativeRows", "PackReport", "__version__", "pack_native"]
