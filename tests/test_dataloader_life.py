"""How a loader ends: closed, dropped, at exit, by Ctrl-C; how it is forked and copied."""

import copy
import gc
import itertools
import pickle
import threading
import weakref

import numpy as np
import pytest

from loaderx.converter import from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset
from loaderx.errors import ClosedError
from loaderx.sampler import Sampler
from tests.loaders import no_threads_left, take, wait_until, workers  # noqa: F401
from tests.processes import in_child

pytestmark = pytest.mark.usefixtures("no_threads_left")


class Stream:
    """Records that are their numbers."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitems__(self, indices):
        return indices.astype(np.int64)


def identity(batch):
    return batch


def sequence(n, batch, mode=1, seed=42, count=30):
    return [b.astype(np.int64).tolist() for b in itertools.islice(Sampler(n, batch, mode, seed), count)]


# ---- the end ------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_closed_loader_says_so_at_once(num_workers):
    loader = DataLoader({"x": Stream(9)}, num_workers)
    assert not loader.closed
    next(loader)
    for _ in range(2):
        loader.close()
        assert loader.closed
        assert not workers()
        with pytest.raises(ClosedError, match="the loader is closed"):
            next(loader)
    assert "closed" in repr(loader)


def test_close_wakes_a_consumer_that_waits():
    begun, release = threading.Event(), threading.Event()

    def transform(batch):
        begun.set()
        release.wait(30)
        return batch

    loader = DataLoader({"x": Stream(9)}, 1, 2, transform=transform)
    outcome = []

    def consume():
        try:
            outcome.append(next(loader))
        except ClosedError as exc:
            outcome.append(exc)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert begun.wait(10)
    closer = threading.Thread(target=loader.close)  # waits a little for the transform
    closer.start()
    consumer.join(10)
    assert isinstance(outcome[0], ClosedError)
    assert not release.is_set()  # the consumer did not have to wait for the transform
    release.set()
    closer.join(10)


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_close_in_the_transform(num_workers):
    ready = threading.Event()

    def transform(batch):
        ready.wait(10)
        loader.close()
        return batch

    loader = DataLoader({"x": Stream(9)}, num_workers, 2, transform=transform)
    ready.set()
    with pytest.raises(ClosedError):
        next(loader)


def test_close_while_others_iterate():
    for _ in range(20):
        loader = DataLoader({"x": Stream(1000)}, 3, 16)
        ends = []

        def consume(loader=loader, ends=ends):
            try:
                for _ in loader:
                    pass
            except ClosedError:
                ends.append(True)

        threads = [threading.Thread(target=consume) for _ in range(2)]
        for thread in threads:
            thread.start()
        next(loader)
        loader.close()
        for thread in threads:
            thread.join(10)
        assert len(ends) == 2


def test_abandoned_loaders_leave_nothing():
    """Created, used and dropped, as notebooks do: ffcv and others leak threads there."""
    for k in range(200):
        loader = DataLoader({"x": Stream(100)}, 4, 8, seed=k)
        next(iter(loader))
        if k % 3 == 0:
            loader.close()
    del loader
    gc.collect()
    wait_until(lambda: not workers())


def test_a_loader_in_a_cycle_is_collected():
    loader = DataLoader({"x": Stream(100)}, 2, 8)
    loader.itself = loader
    gone = weakref.ref(loader)
    del loader
    gc.collect()
    assert gone() is None
    wait_until(lambda: not workers())


def test_dropped_batches_are_freed():
    alive = weakref.WeakSet()

    class Watched:
        pass

    def transform(batch):
        mark = Watched()
        alive.add(mark)
        return {"mark": mark}

    loader = DataLoader({"x": Stream(100)}, 2, 8, 4, transform=transform)
    for _ in range(10):
        next(loader)
    wait_until(lambda: len(alive) == 4)  # those ahead; the consumer's are gone
    loader.close()
    assert len(alive) == 0


def test_exit_with_a_live_loader(python):
    """Blocked workers, running ones, a reader in the engine, and one in a long transform."""
    code = """
    import sys, tempfile, threading, time
    import numpy as np
    from loaderx.converter import from_numpy
    from loaderx.dataset import DenseDataset
    from loaderx.dataloader import DataLoader
    path = tempfile.mkdtemp()
    from_numpy(path, np.zeros((200, 5000), np.uint8))
    ds = DenseDataset(path)
    loaders = [DataLoader({"x": ds}, k, 64) for k in (0, 1, 4)]
    for loader in loaders:
        next(loader)
    def consume():
        for _ in loaders[2]:
            pass
    threading.excepthook = lambda args: None
    threading.Thread(target=consume, daemon=True).start()
    if sys.argv[1] == "slow":
        begun = threading.Event()
        slow = DataLoader({"x": ds}, 1, 4, transform=lambda b: (begun.set(), time.sleep(300)))
        begun.wait()
    print("done")
    if sys.argv[1] == "error":
        sys.exit(0)
    """
    for how in ("plain", "slow", "error"):
        assert python(code, how, timeout=60) == "done\n"


def test_ctrl_c_while_next_waits(interrupted):
    code = """
    import threading, time
    from loaderx.dataloader import DataLoader
    class Slow:
        def __len__(self): return 10
        def __getitems__(self, indices):
            if gate.is_set():
                return [1]
            entered.wait()
            time.sleep(0.1)  # until the main thread sleeps in next
            print("waiting", flush=True)
            gate.wait()
            return [1]
    entered, gate = threading.Event(), threading.Event()
    loader = DataLoader({"x": Slow()}, 1, 1)
    try:
        entered.set()
        next(loader)
    except KeyboardInterrupt:
        gate.set()
        print("interrupted", next(loader), loader.closed)
    """
    out, err = interrupted(code)
    assert out == "interrupted {'x': [1]} False\n", err


# ---- forks and pickles --------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 3])
def test_a_forked_child_goes_on_where_it_was(num_workers, tmp_path):
    from_numpy(tmp_path / "s", np.arange(100))
    with DenseDataset(tmp_path / "s") as ds, DataLoader({"x": ds}, num_workers, 8) as loader:
        want = sequence(100, 8, count=20)
        assert take(loader, 4) == want[:4]

        def child():
            assert take(loader, 5) == want[4:9]
            in_child(lambda: next(loader) and loader.close())
            assert take(loader, 5) == want[9:14]
            loader.close()
            with pytest.raises(ClosedError):
                next(loader)

        for _ in range(5):
            in_child(child)
        assert take(loader, 16) == want[4:]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_may_close_or_drop_what_it_never_used():
    loader = DataLoader({"x": Stream(100)}, 3, 8)
    next(loader)

    def close():
        loader.close()
        with pytest.raises(ClosedError):
            next(loader)

    def leave():
        import atexit

        atexit._run_exitfuncs()

    held, release = threading.Event(), threading.Event()

    def hold():  # as a worker may at that moment
        with loader._front._lock:
            held.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    in_child(close)
    in_child(leave)
    in_child(lambda: next(loader) and loader.close())
    release.set()
    holder.join()
    next(loader)
    loader.close()
    in_child(close)


@pytest.mark.parametrize("clone", [copy.copy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_at_the_step(clone):
    with DataLoader({"x": Stream(34)}, 2, 4, mode=2, seed=3, transform=identity) as loader:
        take(loader, 3)
        with clone(loader) as other:
            assert (other.batch_size, other.mode, other.seed) == (4, 2, 3)
            assert take(other, 4) == take(loader, 4) == sequence(34, 4, 2, 3, 7)[3:]
    with pytest.raises(ClosedError):
        clone(loader)


def test_the_representation_tells_what_it_is():
    with DataLoader({"x": Stream(34)}, 0, 4) as loader:
        next(loader)
        assert repr(loader) == (
            "DataLoader(['x'], records=34, batch_size=4, mode=Mode.IID, seed=42, num_workers=0, step=1)"
        )
