"""The setuptools command that builds the extension; setup.py names it."""

from __future__ import annotations

__all__ = ["BuildGoExtension"]

from pathlib import Path

from setuptools.command.build_ext import build_ext

from . import BuildError, extension, notices


class BuildGoExtension(build_ext):
    """Build the Go extension where setuptools would call a C compiler."""

    def build_extension(self, ext):
        """Build the extension and put it where setuptools expects it."""
        try:
            made = extension.build()
        except BuildError as error:
            # Frontends print a traceback for every other exception, and the one sentence would drown.
            raise SystemExit(f"error: {error}") from None
        notices.refresh(made)
        target = Path(self.get_ext_fullpath(ext.name))
        extension.copy_atomically(made, target)
