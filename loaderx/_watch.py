"""Following a job of the engine: a progress bar, and what it finds on the way."""

import json

import numpy as np

from . import _engine
from ._progress import Progress

__all__ = ["Watch"]


class Watch:
    """A context in which one job runs that tells of itself.

    Parameters
    ----------
    label, unit : str
        For the progress bar.

    Attributes
    ----------
    id : int
        The engine's number of the watch.
    findings : list of dict
        What the job found, with ``index``, ``code`` and ``text``.
    """

    def __init__(self, label, unit):
        self.findings = []
        self._handle = _engine.Handle(lambda number: _engine.lib.WatchNew(number))
        self.id = self._handle.id()
        self._progress = Progress(label, None, unit)
        self._counts = np.zeros(2, dtype=np.int64)

    def run(self, start, *args):
        """Start a job, whose function takes the watch last; wait for it and return its result."""
        result = _engine.run(start, *args, self.id, keep=(self,), tick=self._tick)
        while self._take():
            pass
        return result

    def _tick(self):
        _engine.check(_engine.lib.WatchProgress(self.id, _engine.address(self._counts)))
        done, total = self._counts.tolist()
        if total:
            self._progress.reach(done, total)
        self._take()

    def _take(self):
        found = json.loads(_engine.text(_engine.lib.WatchTake, self.id))
        self.findings += found
        return len(found)

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self._progress.close()
        self._handle.close()
