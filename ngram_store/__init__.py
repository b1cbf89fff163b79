"""Immutable, memory-mapped embedding tables that stand in for layers of a model at inference."""

from loaderx import __version__

__all__ = ["__version__"]
