"""What tests of loaders with a transform share."""

import gc
import itertools
import threading
import time

import pytest


def workers():
    """Return the running threads of loaders."""
    return [t for t in threading.enumerate() if t.name.startswith("loaderx-worker")]


def wait_until(condition, seconds=10):
    """Wait for something that another thread brings about; the limit is only for failures."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def take(loader, n):
    """Return the next n batches as lists."""
    return [batch["x"].tolist() for batch in itertools.islice(loader, n)]


@pytest.fixture
def no_threads_left():
    """No test leaves a thread behind, so no loader does."""
    yield
    gc.collect()
    wait_until(lambda: not workers())
