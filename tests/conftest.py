"""Fixtures that several test modules share."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
ORACLE_VERSION = "0.9.4"


@pytest.fixture
def rng():
    """A seeded random generator."""
    return np.random.default_rng(20240229)


@pytest.fixture
def python():
    """Run code, or a file of it, in a fresh interpreter and return what it prints."""

    def run(code, *args, timeout=120, env=None):
        what = [code] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", *what, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def script(tmp_path_factory, python):
    """Run code as a script file, which spawned workers can import again."""

    def run(code, *args, timeout=120):
        file = tmp_path_factory.mktemp("script") / "script.py"
        file.write_text(textwrap.dedent(code))
        return python(file, *args, timeout=timeout)

    return run


@pytest.fixture
def interrupted():
    """Run code until it prints a line, send it SIGINT, and return what else it prints.

    The code must work for far longer than the timeout, so that its end proves
    that it was interrupted.
    """

    def run(code, *args, timeout=30):
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *map(str, args)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as child:
            try:
                first = child.stdout.readline()
                assert first, child.stderr.read()
                child.send_signal(signal.SIGINT)
                return child.communicate(timeout=timeout)
            finally:
                child.kill()

    return run


@pytest.fixture(scope="session")
def oracle_folder():
    """A folder with the real loaderx, installed aside from this package."""
    given = os.environ.get("LOADERX_ORACLE")
    if given:
        return Path(given)
    folder = ROOT / "build" / "oracle"
    if not (folder / f"loaderx-{ORACLE_VERSION}.dist-info").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, f"loaderx=={ORACLE_VERSION}"]
        subprocess.run(command, check=True)
    return folder


@pytest.fixture
def oracle(oracle_folder, tmp_path):
    """Run code in an interpreter where ``loaderx`` is the real one."""

    def run(code, *args):
        # Started in an empty folder, because the current one comes first on the path.
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        check = f"import loaderx; assert loaderx.__file__.startswith({str(oracle_folder)!r}), loaderx.__file__\n"
        done = subprocess.run(
            [sys.executable, "-c", check + textwrap.dedent(code), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=elsewhere,
            env={**os.environ, "PYTHONPATH": str(oracle_folder)},
        )
        assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def growth():
    """Return by how many bytes the resident memory grows while a function runs."""

    def measure(work):
        gc.collect()
        before = _resident()
        work()
        gc.collect()
        return _resident() - before

    return measure


def _resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def handles():
    """Return how many objects the engine holds."""
    from loaderx import _engine

    return lambda: _engine.check(_engine.lib.NumHandles())
