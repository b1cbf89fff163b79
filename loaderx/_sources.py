"""Where batches come from: the engine's ring, or Python objects that are asked for records."""

import os
import threading

from ._feed import failed
from ._ring import Stream
from .collate import Flat, Pad
from .errors import ClosedError, ZrecordError

__all__ = ["Direct", "EngineSource", "PythonSource", "engine_takes"]


def engine_takes(streams):
    """Whether the engine can read all streams by itself."""
    return all(Stream.takes(source) for source in streams.values())


class PythonSource:
    """Streams of any kind, read by the thread that asks.

    Parameters
    ----------
    streams : dict
    plan : Plan
    output : Output
    indices : str or None
    """

    def __init__(self, streams, plan, output, indices):
        self._streams, self._plan, self._output, self._indices = streams, plan, output, indices

    def read(self, step):
        """Return the batch of a step."""
        return self.gathered(self._plan.indices(step))

    def gathered(self, indices):
        """Return the batch of the records with these numbers."""
        batch = {}
        for name, stream in self._streams.items():
            got = stream.__getitems__(indices)
            if isinstance(stream, (Pad, Flat)):
                batch[name], batch[name + stream.suffix] = got
            else:
                batch[name] = got
        if self._indices:
            batch[self._indices] = indices
        return self._output.batch(batch)

    def stop(self):
        """Do nothing: a read of another object can't be interrupted."""

    def close(self):
        """Forget the streams."""
        self._streams = {}


class EngineSource:
    """The engine's ring, for threads that transform its batches.

    Parameters
    ----------
    ring : Ring
    """

    def __init__(self, ring):
        self._ring = ring

    def read(self, step):
        """Return the batch of a step."""
        return self._ring.take(step)

    def stop(self):
        """Make every `read` raise soon."""
        self._ring.stop()

    def close(self):
        """Give the memory up once the engine has let go of it."""
        self._ring.close()


class Direct:
    """The engine's batches without any Python thread; has the interface of `Feed`.

    Parameters
    ----------
    make : callable
        Takes a step and returns a `Ring` that begins with it.
    step : int
    """

    def __init__(self, make, step):
        self.pid = os.getpid()
        self.closed = False
        self.why = "the loader is closed"
        self.delivered = step
        self._make = make
        self._turn = threading.RLock()
        self._ring = make(step)

    def take(self):
        """Return the next step's batch, or close and raise what the step raised."""
        with self._turn:
            if self.closed:
                raise ClosedError(self.why)
            step, ring = self.delivered, self._ring
            try:
                batch = ring.take(step)
            except ZrecordError as exc:
                if self.closed:
                    raise ClosedError(self.why) from None
                self._end(failed(step, exc))
                raise
            except BaseException:
                # Ctrl-C, as a rule: the step can be asked for again, of a ring that is whole.
                ring.close()
                if not self.closed:
                    self._ring = self._make(step)
                    if self.closed:  # by another thread, meanwhile
                        self._ring.close()
                raise
            if batch is None:
                raise StopIteration
            self.delivered = step + 1
            return batch

    def _end(self, why):
        if not self.closed:
            self.why = why
        self.closed = True
        self._ring.close()

    def stop(self, why=None):
        """Make a `take` that waits raise. Any thread may call it, at any time."""
        if why and not self.closed:
            self.why = why
        self.closed = True
        self._ring.stop()

    def release(self):
        """Give up the memory, once the engine has let go of it."""
        self._ring.close()

    join = release
