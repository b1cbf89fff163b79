"""Build of the one gopy-generated extension, ``loaderx._native``, and of the library for C.

``backend`` is the PEP 517 backend that pyproject.toml names; ``toolchain`` finds Go and a C
compiler; ``extension`` turns the Go package ``loaderx/pybind`` into the extension module;
``notices`` collects the licences of what is linked into it. ``native`` builds the library for C from
``gopkg/capi`` beside it.

``python -m loaderx_build --inplace`` builds the extension into the source tree, ``--native`` the library
into ``build/``.
"""

from __future__ import annotations

__all__ = ["BuildError", "ROOT"]

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class BuildError(Exception):
    """A build step that cannot go on; its text is one sentence for the person who builds."""
