"""The names under which mapped bags are documented; `ngram_store` defines them."""

from ngram_store import MappedEmbeddingBag, export_embedding_bag, open_embedding_bag

__all__ = ["MappedEmbeddingBag", "export_embedding_bag", "open_embedding_bag"]
