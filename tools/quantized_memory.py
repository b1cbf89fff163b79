"""The names under which quantised tables are documented; `ngram_store` defines them."""

from ngram_store import QuantizedReport, QuantizedRows, pack_quantized, pack_quantized_file

__all__ = ["QuantizedReport", "QuantizedRows", "pack_quantized", "pack_quantized_file"]
