"""The fetch side of the loader: threads that prepare batches, and the order they leave in."""

import _thread
import atexit
import contextlib
import itertools
import os
import threading
import time
import weakref

from .errors import ClosedError, ZrecordError

__all__ = ["Feed", "ended", "enlist", "failed", "here", "not_within", "stale"]

#: How long `join` waits for a worker that is inside a transform or a slow read.
_PATIENCE_SECONDS = 2.0

#: A waiting consumer looks up this often, so that Ctrl-C is answered on every platform.
_WAKE_SECONDS = 0.1

#: A waiting worker looks up this often, in case the garbage collector stopped the feed in the
#: middle of that worker's going to sleep.
_IDLE_SECONDS = 1.0


class _Here:
    """This process, without a call into the system for every batch."""

    pid = os.getpid()

    def ask(self):
        self.pid = os.getpid()


here = _Here()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=here.ask)


class Feed:
    """What a loader and its threads share: the batches between the two.

    Everything that changes is guarded by `_lock`, which is reentrant because the garbage
    collector may call `stop` in a thread that holds it. User code never runs, and batches are
    never dropped, with that lock held.

    A signal handler may raise at any instant in the consumer's thread: what a call has begun is
    finished by the next one. So nothing runs before `start`, when the owner knows the feed; and the
    consumer's thread neither starts threads nor waits in `threading.Condition`, whose locks do not
    survive an exception.

    Parameters
    ----------
    source : object
        Its ``begin(step)`` makes it ready for a step, perhaps again; ``read(step)`` returns a
        batch and is called from several threads; ``stop()`` makes those calls end soon, and
        ``close()`` gives up what they need.
    transform : callable or None
    step, end : int
        The first step, and the one after the last.
    workers : int
        Threads; 0 makes `take` do the work.
    ahead : int
        Batches prepared before they are asked for.
    owner : weakref.ref, optional
        The workers end when it is gone, though nobody called `stop`: a finalizer can be
        interrupted, too.

    Attributes
    ----------
    pid : int
        The process that the threads live in.
    closed : bool
    once : bool
        Whether it is the loader's own note that this is one pass; False at first.
    delivered : int
        The step that `take` returns next.
    """

    def __init__(self, source, transform, step, end, workers, ahead, owner=None):
        self.pid = os.getpid()
        self.closed = self.once = False
        self.why = "the loader is closed"
        self.delivered = self._begun = step
        self._end = end
        self._source, self._transform = source, transform
        self._window = max(ahead, workers)
        self._failed = False  # no step is begun after one has failed
        self._ready = {}  # step -> (batch, error)
        self._lock = threading.RLock()
        self._owner = owner
        self._bell = _Bell()  # consumers wait
        self._news = _Bell()  # those wait who start the threads, or wait for their end
        self._room = threading.Condition(self._lock)  # workers wait
        self._turn = threading.RLock()  # for starting; without workers for one consumer at a time
        self._workers = self._seats = workers
        self._working = 0
        self._threads = []
        self._hired = workers == 0
        self._whole = False  # whether the source can be asked for the step `delivered`
        self._started = False
        enlist(self)

    def start(self):
        """Begin to prepare batches. Idempotent; one that was interrupted may be called again."""
        with self._turn:
            if self._started or self.closed:
                return
            if not self._whole:
                self._source.begin(self.delivered)
                self._whole = True
            if not self._hired:
                # Threads are started by another thread, where no signal handler runs.
                _thread.start_new_thread(self._hire, ())
                while not self._hired:
                    self._news.wait()
            if isinstance(self._hired, BaseException):
                error, self._hired = self._hired, False
                raise error
            self._started = True

    def _hire(self):
        """Start the workers."""
        try:
            for i in range(self._seats):
                thread = threading.Thread(target=self._work, name=f"loaderx-worker-{i}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._hired = True
        except BaseException as exc:
            self._threads.remove(thread)
            self._hired = exc
        self._news.ring()

    # ---- the consumer's side --------------------------------------------------------------

    def take(self):
        """Return the next step's batch, or stop the feed and raise what the step raised.

        Past the last step it raises `StopIteration`, and in a forked child `ClosedError`.
        """
        if self.pid != here.pid:
            raise stale()
        if self.within():
            raise not_within("next")
        if not self._started:
            self.start()
        step, batch, error = self._await() if self._workers else self._make_now()
        if error is None:
            return batch
        self.stop(failed(step, error))
        self.release()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def within(self):
        """Whether this thread is one of the feed's, or inside its transform, or inside `start`."""
        return self._turn._is_owned() or threading.current_thread() in self._threads

    def _await(self):
        found = None  # once it is delivered
        try:
            while True:
                with self._lock:
                    step = self.delivered
                    if self.closed:
                        self._bell.ring()  # for the next one who waits
                        raise ended(self.why)
                    if step >= self._end:
                        raise StopIteration
                    if step in self._ready:
                        # Before the step is forgotten: Ctrl-C may come between.
                        found, self.delivered = self._ready[step], step + 1
                        del self._ready[step]
                        self._room.notify()
                        if step + 1 in self._ready or step + 1 >= self._end:
                            self._bell.ring()
                        return step, *found
                self._bell.wait()
        except BaseException:
            if found is not None:
                self._put_back(step, found)
            raise
        finally:
            del found  # perhaps with an error, whose traceback refers to this frame

    def _put_back(self, step, found):
        """Have a batch that did not reach its consumer delivered again, if none after it has been."""
        with self._lock:
            if self.delivered == step + 1 and not self.closed:
                self._ready[step], self.delivered = found, step
                self._bell.ring()

    def _make_now(self):
        given = 0  # the step after the one that is delivered, once it is
        try:
            with self._turn:
                if self.closed:
                    raise ended(self.why)
                step = self.delivered
                if step >= self._end:
                    raise StopIteration
                if not self._whole:
                    self._source.begin(step)
                # Until the batch is ready: where Ctrl-C comes between, it is read again, since
                # the transform may have changed it.
                self._whole = False
                batch, error = self._make(step)
                if self.closed:
                    raise ended(self.why)
                if error is not None and not isinstance(error, Exception):
                    raise error  # Ctrl-C is no result of the step, which can be asked for again
                given = self.delivered = step + 1
                self._whole = True
            return step, batch, error
        except BaseException:
            if given:
                with self._turn:
                    if self.delivered == given:
                        self.delivered, self._whole = given - 1, False
            raise
        finally:
            error = None  # its traceback refers to this frame

    # ---- the workers' side ----------------------------------------------------------------

    def _work(self):
        """Prepare batches until the feed stops: the body of every thread."""
        with self._lock:
            if not self._seats:
                return  # one too many: an interrupted start was made again
            self._seats -= 1
            self._working += 1
        try:
            while (step := self._ticket()) is not None:
                batch, error = self._make(step)
                self._put(step, batch, error)
                del batch, error  # not kept while waiting for the next
        finally:
            with self._lock:
                self._working -= 1
            self._news.ring()

    def _ticket(self):
        """Wait for room and return the next step to prepare, or None at the end."""
        with self._lock:
            while not self.closed and not self._failed and self._begun < self._end:
                if self._owner is not None and self._owner() is None:
                    break
                step = self._begun
                if step < self.delivered + self._window:
                    self._begun = step + 1
                    return step
                self._room.wait(_IDLE_SECONDS)
            abandoned = self._owner is not None and self._owner() is None
        if abandoned:
            self.stop()
            self.release()
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
            if step == self.delivered:
                self._bell.ring()
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
            self._bell.ring()
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
        while self._working and time.monotonic() < deadline:
            self._news.wait()
        self._news.ring()  # for others who wait
        for thread in list(self._threads):
            # A join that is interrupted forgets a thread that goes on: not before its work is over.
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))


class _Bell:
    """What threads wait for, whatever a signal handler raises. A ring may get lost: look again."""

    def __init__(self):
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self):
        """Wake one thread that waits, or the next one that will."""
        with contextlib.suppress(RuntimeError):  # it was rung already
            self._lock.release()

    def wait(self):
        """Wait for a ring, for a little while."""
        self._lock.acquire(timeout=_WAKE_SECONDS)


def ended(why):
    """Return what to raise when a closed loader is asked for a batch."""
    if _exiting and threading.current_thread() is not threading.main_thread():
        # The end of a daemon thread, which nobody waits for, is no error at the interpreter's exit.
        return SystemExit(why)
    return ClosedError(why)


def stale():
    """Return the exception for a call of a front whose threads are those of the parent process."""
    return ClosedError("this part of the loader was made by the parent process, and ended with the fork")


def not_within(name):
    """Return the exception for a call that would wait for the batch whose making it is part of."""
    return ZrecordError(
        f"{name} was called from the loader's own transform or stream, or by a signal handler in the middle of "
        "another call: it would wait for itself"
    )


_NOTE = "raised while the loader prepared step"


def failed(step, error):
    """Note on an error which step it belongs to, and return why the loader is closed."""
    if hasattr(error, "add_note"):  # Python 3.11
        # Once: it may be an object that is raised again and again.
        notes = getattr(error, "__notes__", [])
        notes[:] = [note for note in notes if not str(note).startswith(_NOTE)]
        error.add_note(f"{_NOTE} {step}")
    return f"the loader closed itself when step {step} failed with {type(error).__name__}"


#: Weak references to all feeds, and to what else has their interface. A `WeakSet` would run
#: Python code whenever one goes, in which what a signal handler raises is lost.
_fronts = {}
_numbers = itertools.count()
_exiting = False


def enlist(front):
    """Have a front stopped at the interpreter's exit."""
    for number, known in list(_fronts.items()):
        if known() is None:
            _fronts.pop(number, None)
    _fronts[next(_numbers)] = weakref.ref(front)


def _stop_all():
    """End all threads while the interpreter still works: one that outlives it may crash it."""
    global _exiting
    _exiting = True
    deadline = time.monotonic() + _PATIENCE_SECONDS
    running = [front for known in list(_fronts.values()) if (front := known()) is not None]
    for front in running:
        front.stop("the interpreter is shutting down: the loader is closed")
    for front in running:
        front.join(deadline)


atexit.register(_stop_all)
