"""Files that are nothing but rows, read as tables."""

from loaderx.errors import ClosedError

from .rows import NativeRows

__all__ = ["PlainRows"]


class PlainRows(NativeRows):
    """Rows of one width in a file without a header, as `NativeRows` reads those of a MEFTNAT1 file.

    Parameters
    ----------
    path : path_like
    row_bytes : int
    **options
        As for `NativeRows`. There is nothing that `verify` could check.

    Notes
    -----
    A forked child, and what a pickle is restored as, open the file again, which must then be the
    same one, unchanged.
    """

    def __init__(self, path, row_bytes, **options):
        self._plain = row_bytes
        super().__init__(path, **options)

    def __getstate__(self):
        if self._closed:
            raise ClosedError(f"{self!r} can't be pickled or copied")
        return {"plain": self._plain, "rest": super().__getstate__()}

    def __setstate__(self, state):
        self._plain = state["plain"]
        super().__setstate__(state["rest"])
