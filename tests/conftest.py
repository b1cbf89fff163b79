"""Fixtures that several test modules share."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from loaderx.converter import from_numpy
from tests.processes import ROOT, command, environment, run_python
from tools.bench.peers.install import loaderx_folder

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def rng():
    """A seeded random generator."""
    return np.random.default_rng(20240229)


@pytest.fixture
def python():
    """Run code, or a file of it, in a fresh interpreter and return what it prints."""
    return run_python


@pytest.fixture(scope="session")
def rows():
    """The records of `store`."""
    return np.arange(1000 * 16, dtype=np.float32).reshape(1000, 16)


@pytest.fixture(scope="session")
def store(rows, tmp_path_factory):
    """The path of a dense store, which no test changes."""
    path = tmp_path_factory.mktemp("shared") / "store"
    from_numpy(path, rows, codec="zstd")
    return path


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
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command(code, *args), **pipes, text=True, env=environment()) as child:
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
    """A folder with the real loaderx, installed aside from this package; the benchmarks use the same."""
    return loaderx_folder(ROOT / "build" / "peers")


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
