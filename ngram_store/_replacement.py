"""What is said about embeddings that were replaced, or were not."""

from dataclasses import dataclass

__all__ = ["ReplaceReport", "Replacement"]


@dataclass(frozen=True)
class Replacement:
    """What became of one embedding of a model.

    Attributes
    ----------
    names : tuple of str
        Where it is in the model; more than one if it is used in several places.
    kind : str
        ``"Embedding"`` or ``"EmbeddingBag"``, or the name of a subclass.
    path : str or None
        The bundle; None if it was skipped.
    bytes_freed : int
        Bytes of its weight that the model does not refer to any more. Embeddings
        that share a weight free it once, and a tied one frees nothing.
    reason : str or None
        Why it was skipped.
    """

    names: tuple
    kind: str
    path: str | None = None
    bytes_freed: int = 0
    reason: str | None = None

    @property
    def name(self):
        """The first of its names."""
        return self.names[0]

    def __str__(self):
        what = f"skipped: {self.reason}" if self.path is None else f"{self.bytes_freed:,} bytes freed, {self.path}"
        return f"{', '.join(self.names)} ({self.kind}): {what}"


@dataclass(frozen=True)
class ReplaceReport:
    """What `replace_embeddings` did; its text has a line for each embedding.

    Attributes
    ----------
    modules : tuple of Replacement
        All embeddings of the model, in its order.
    """

    modules: tuple

    @property
    def replaced(self):
        """Those that were replaced."""
        return tuple(entry for entry in self.modules if entry.path is not None)

    @property
    def skipped(self):
        """Those that were not; each has a `reason`."""
        return tuple(entry for entry in self.modules if entry.path is None)

    @property
    def bytes_freed(self):
        """Bytes that all of them freed."""
        return sum(entry.bytes_freed for entry in self.modules)

    def __str__(self):
        total = f"{len(self.replaced)} of {len(self.modules)} embeddings replaced, {self.bytes_freed:,} bytes freed"
        return "\n".join([*map(str, self.modules), total])
