"""Other processes, and what this one uses, for tests of process life."""

import os
import signal
import subprocess
import sys
import textwrap


def run_python(code, timeout=60, **env):
    """Run code in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def in_child(work, seconds=20):
    """Run work in a forked child under an alarm; fail unless it returns."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(seconds)
            work()
            code = 0
        except BaseException as exc:
            sys.stderr.write(f"child: {type(exc).__name__}: {exc}\n")
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with wait status {status}"


def rss_kib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
