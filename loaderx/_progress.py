"""A progress bar for long work, for people who look at a terminal."""

import sys

__all__ = ["Progress"]


class Progress:
    """Counts work; shows a bar once it has taken more than a second.

    Without a terminal on standard error, or without tqdm, nothing is shown.

    Parameters
    ----------
    label : str
        What is being done.
    total : int or None
        Amount of work, if known.
    unit : str
        ``"B"`` is written with binary prefixes.
    """

    def __init__(self, label, total, unit):
        self._bar = None
        if sys.stderr is None or not sys.stderr.isatty():
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        size = {"unit_scale": True, "unit_divisor": 1024} if unit == "B" else {}
        self._bar = tqdm(desc=label, total=total, unit=unit, delay=1, leave=False, dynamic_ncols=True, **size)

    def add(self, amount):
        """Count work that was done."""
        if self._bar is not None:
            self._bar.update(amount)

    def reach(self, done, total):
        """Say how much of the work is done, where its amount becomes known on the way."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.update(done - self._bar.n)

    def close(self):
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
