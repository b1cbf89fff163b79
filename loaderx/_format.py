"""The file format's constants, which the engine states; there is no second copy of them."""

import functools
import json

from . import _engine
from .errors import ArgumentError

__all__ = ["codec_tag", "format_info"]


@functools.cache
def format_info():
    """Return names and limits of the record store as a dict."""
    return json.loads(_engine.text(_engine.lib.FormatInfo))


def codec_tag(codec):
    """Return the engine's number of a codec, or raise `ArgumentError`."""
    codecs = format_info()["codecs"]
    try:
        return codecs[codec]
    except (KeyError, TypeError):
        raise ArgumentError(f"unknown codec {codec!r}, expected one of {sorted(codecs)}") from None
