"""The fetch side of the loader: threads that prepare batches, and the order they leave in."""

import atexit
import os
import threading
import time
import weakref

from .errors import ClosedError

__all__ = ["Feed", "failed"]

#: How long `join` waits for a worker that is inside a transform or a slow read.
_PATIENCE_SECONDS = 2.0

#: A waiting consumer looks up this often, so that Ctrl-C is answered on every platform.
_WAKE_SECONDS = 0.1

#: A waiting worker looks up this often, in case the garbage collector stopped the feed in the
#: middle of that worker's going to sleep.
_IDLE_SECONDS = 1.0


class Feed:
    """What a loader and its threads share: the batches between the two.

    Everything that changes is guarded by `_lock`, which is reentrant because the garbage
    collector may call `stop` in a thread that holds it. User code never runs, and batches are
    never dropped, with that lock held.

    Parameters
    ----------
    source : object
        Its ``read(step)`` returns a batch and is called from several threads; ``stop()`` makes
        those calls end soon, and ``close()`` gives up what they need.
    transform : callable or None
    step, end : int
        The first step, and the one after the last.
    workers : int
        Threads; 0 makes `take` do the work.
    ahead : int
        Batches prepared before they are asked for.

    Attributes
    ----------
    pid : int
        The process that the threads live in.
    closed : bool
    delivered : int
        The step that `take` returns next.
    """

    def __init__(self, source, transform, step, end, workers, ahead):
        self.pid = os.getpid()
        self.closed = False
        self.why = "the loader is closed"
        self.delivered = self._begun = step
        self._end = end
        self._source, self._transform = source, transform
        self._window = max(ahead, workers)
        self._failed = False  # no step is begun after one has failed
        self._ready = {}  # step -> (batch, error)
        self._lock = threading.RLock()
        self._filled = threading.Condition(self._lock)  # consumers wait
        self._room = threading.Condition(self._lock)  # workers wait
        self._turn = threading.RLock()  # without workers: one consumer at a time
        self._threads = [
            threading.Thread(target=self._work, name=f"loaderx-worker-{i}", daemon=True) for i in range(workers)
        ]
        _feeds.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.stop()
            raise

    # ---- the consumer's side --------------------------------------------------------------

    def take(self):
        """Return the next step's batch, or stop the feed and raise what the step raised.

        Past the last step it raises `StopIteration`.
        """
        step, batch, error = self._await() if self._threads else self._make_now()
        if error is None:
            return batch
        self.stop(failed(step, error))
        self.release()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _await(self):
        with self._lock:
            while not self.closed and self.delivered not in self._ready and self.delivered < self._end:
                self._filled.wait(_WAKE_SECONDS)
            if self.closed:
                raise ClosedError(self.why)
            if self.delivered >= self._end:
                raise StopIteration
            step = self.delivered
            batch, error = self._ready[step]
            self.delivered = step + 1  # before the step is forgotten: Ctrl-C may come between
            del self._ready[step]
            self._room.notify()
            return step, batch, error

    def _make_now(self):
        with self._turn:
            if self.closed:
                raise ClosedError(self.why)
            step = self.delivered
            if step >= self._end:
                raise StopIteration
            batch, error = self._make(step)
            if self.closed:
                raise ClosedError(self.why)
            if error is not None and not isinstance(error, Exception):
                raise error  # Ctrl-C is no result of the step, which can be asked for again
            self.delivered = step + 1
            return step, batch, error

    # ---- the workers' side ----------------------------------------------------------------

    def _work(self):
        """Prepare batches until the feed stops: the body of every thread."""
        while (step := self._ticket()) is not None:
            batch, error = self._make(step)
            self._put(step, batch, error)
            del batch, error  # not kept while waiting for the next

    def _ticket(self):
        """Wait for room and return the next step to prepare, or None at the end."""
        with self._lock:
            while not self.closed and not self._failed and self._begun < self._end:
                step = self._begun
                if step < self.delivered + self._window:
                    self._begun = step + 1
                    return step
                self._room.wait(_IDLE_SECONDS)
        return None

    def _make(self, step):
        """Return the batch and None, or None and the error, which belongs to the consumer."""
        source, transform = self._source, self._transform
        try:
            batch = source.read(step)
            if transform is not None:
                batch = transform(batch)
            return batch, None
        except StopIteration as exc:
            # As it is, it would end the consumer's loop as if all were well.
            error = RuntimeError(f"step {step} raised StopIteration")
            error.__cause__ = exc
            return None, error
        except BaseException as exc:
            return None, exc

    def _put(self, step, batch, error):
        with self._lock:
            if self.closed:
                return
            self._ready[step] = batch, error
            self._filled.notify_all()
            if error is not None:
                self._failed = True
                self._room.notify_all()

    # ---- the end --------------------------------------------------------------------------

    def stop(self, why=None):
        """Let every thread end soon, and wait for none. Any thread may call it, at any time."""
        if self.pid != os.getpid():
            self.closed = True  # the lock may be held by a thread that does not exist here
            return
        with self._lock:
            if why and not self.closed:
                self.why = why
            self.closed = True
            # The transform too: it may refer to the loader, whose finalizer knows this feed.
            dropped = self._ready, self._transform
            self._ready, self._transform = {}, None
            self._filled.notify_all()
            self._room.notify_all()
        del dropped
        self._source.stop()

    def release(self):
        """Give up what the source holds, of a stopped feed."""
        self._source.close()

    def join(self, deadline=None):
        """Release, and wait for the threads, unless called by one of them."""
        self.release()
        if self.pid != os.getpid() or threading.current_thread() in self._threads:
            return
        if deadline is None:
            deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(max(0.0, deadline - time.monotonic()))


def failed(step, error):
    """Note on an error which step it belongs to, and return why the loader is closed."""
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(f"raised while the loader prepared step {step}")
    return f"the loader closed itself when step {step} failed with {type(error).__name__}"


_feeds = weakref.WeakSet()


def _stop_all():
    """End all threads while the interpreter still works: one that outlives it may crash it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    feeds = list(_feeds)
    for feed in feeds:
        feed.stop()
    for feed in feeds:
        feed.join(deadline)


atexit.register(_stop_all)
