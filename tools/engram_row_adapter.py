"""The names under which adapters for n-gram memories are documented; `ngram_store` defines them."""

from ngram_store import (
    MappedEmbedding,
    MappedMultiHeadEmbedding,
    export_demo_embedding,
    export_embedding,
    export_multihead,
)

__all__ = [
    "MappedEmbedding",
    "MappedMultiHeadEmbedding",
    "export_demo_embedding",
    "export_embedding",
    "export_multihead",
]
