"""Other processes, and what this one uses, for tests of process life."""

import fcntl
import gc
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import traceback
from itertools import repeat
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def command(code, *args):
    """Return the command that runs code, or a file of it, in a fresh interpreter."""
    what = [code] if isinstance(code, Path) else ["-c", textwrap.dedent(code)]
    return [sys.executable, "-X", "faulthandler", *map(str, [*what, *args])]


def environment(**env):
    """Return this process's environment with changes, where the checkout is found first."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **env}


def run_python(code, *args, timeout=120, silent=False, **env):
    """Run code, or a file of it, in a fresh interpreter and return what it printed; `silent` is on stderr."""
    done = subprocess.run(command(code, *args), capture_output=True, text=True, timeout=timeout, env=environment(**env))
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert not (silent and done.stderr), done.stderr
    return done.stdout


def drawn(code, *args):
    """Run Python code with a terminal as its standard error, and return what it drew there."""
    import tqdm  # noqa: F401 - what is tested uses it

    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    try:
        subprocess.run(command(code, *args), check=True, stderr=theirs, env=environment(), timeout=120)
        os.write(theirs, b"end")  # so that reading does not wait when nothing was drawn
        return os.read(mine, 1 << 16).decode()
    finally:
        os.close(theirs)
        os.close(mine)


def in_child(work, seconds=20):
    """Run work in a forked child under an alarm; fail unless it returns."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(seconds)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with wait status {status}"


def resident_kib():
    """Return the resident memory of this process in KiB."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def used():
    """Return what this process holds: KiB of resident memory, objects of the engine, descriptors."""
    from loaderx import _engine

    gc.collect()
    return resident_kib(), _engine.check(_engine.lib.NumHandles()), len(os.listdir("/proc/self/fd"))


def assert_no_growth(call, warm_up, count, kib=2048):
    """Fail if `count` calls, after a few to warm up, leave anything behind.

    For fresh processes only: in one that has done other work, memory that this
    had freed hides a leak, and what it goes on doing looks like one.
    """
    for _ in repeat(None, warm_up):
        call()
    before = used()
    for _ in repeat(None, count):
        call()
    after = used()
    assert after[1:] == before[1:], f"objects and descriptors: {before[1:]} before, {after[1:]} after"
    assert after[0] - before[0] < kib, f"resident memory: {before[0]} KiB before, {after[0]} KiB after"
