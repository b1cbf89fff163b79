"""PEP 517 and PEP 660 backend: setuptools' own, plus the requirements that this machine lacks."""

from __future__ import annotations

import contextlib
import shutil

from setuptools import build_meta as _setuptools
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from . import ROOT, BuildError, extension, toolchain

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def get_requires_for_build_wheel(config_settings=None):
    """Return what a wheel needs to be built: nothing that is on this machine already."""
    return _setuptools.get_requires_for_build_wheel(config_settings) + _missing()


def get_requires_for_build_editable(config_settings=None):
    """Return what an editable installation needs, as for a wheel."""
    return _setuptools.get_requires_for_build_editable(config_settings) + _missing()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel and return its file name."""
    with _clean_staging():
        return _setuptools.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel of an editable installation; the extension goes into the source tree."""
    with _clean_staging():
        return _setuptools.build_editable(wheel_directory, config_settings, metadata_directory)


def _missing():
    try:
        return toolchain.requirements()
    except BuildError as error:
        raise SystemExit(f"error: {error}") from None


@contextlib.contextmanager
def _clean_staging():
    """Empty setuptools' staging directories, and let one build use them at a time.

    setuptools puts whatever an earlier build left there into the wheel, removed modules too.
    """
    base = ROOT / "build"
    base.mkdir(exist_ok=True)
    with extension.lock(base / ".wheel.lock"):
        for pattern in ("lib*", "bdist*", "temp*"):
            for stale in base.glob(pattern):
                shutil.rmtree(stale, ignore_errors=True)
        yield
