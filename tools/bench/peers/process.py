"""The parent's side: a child process that holds another package."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..case import Case

__all__ = ["PeerError", "PeerProcess", "PeerUnavailable"]

_CHILD = Path(__file__).with_name("child.py")
_ROOT = Path(__file__).resolve().parents[3]


class PeerUnavailable(RuntimeError):
    """The peer can't take part in this run; the message says why."""


class PeerError(RuntimeError):
    """The peer's process answered with an error, died, or did not answer in time."""


class PeerProcess:
    """A child process that runs cases and reports the seconds they took, measured inside it.

    Not safe for concurrent use: one request at a time.

    Parameters
    ----------
    module : str
        Imported in the child; its ``CASES`` maps names to context managers around runs.
    path : sequence of path-like
        Directories that the child imports from before all others.
    root : path-like, optional
        Directory that `module` is found in; the checkout by default.
    timeout : float, optional
        Seconds to wait for an answer before the child counts as hung and is killed.
    """

    def __init__(
        self,
        module: str,
        path: Sequence[str | os.PathLike],
        root: str | os.PathLike = _ROOT,
        timeout: float = 300.0,
    ) -> None:
        self._timeout = timeout
        self._buffer = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._child = subprocess.Popen(
            [sys.executable, str(_CHILD), module, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, path))),
            bufsize=0,
        )

    @property
    def alive(self) -> bool:
        """Whether the child can still be asked."""
        return self._child.poll() is None

    def enter(self, case: Case, name: str, peer_case: str, **args: object) -> None:
        """Set up `peer_case` in the child and enter it into `case` under `name`.

        What goes wrong becomes the reason why the contestant was skipped. What memory the child has taken since
        its start can be asked for afterwards.
        """
        try:
            handle = self._ask(op="setup", case=peer_case, args=args)["id"]
        except PeerError as error:
            case.skip(name, str(error))
            return
        case.add(name, lambda n: self._ask(op="run", id=handle, n=n)["seconds"])
        case.memory[name] = lambda: self._ask(op="memory")["memory"]
        case.on_close(lambda: self.alive and self._ask(op="drop", id=handle))

    def close(self) -> None:
        """End the child; harmless when it has ended."""
        if self.alive:
            try:
                self._child.stdin.write(b'{"op": "quit"}\n')
                self._child.wait(5)
            except (OSError, subprocess.TimeoutExpired):
                self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._stderr):
            stream.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _ask(self, **request: object) -> dict:
        try:
            self._child.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise PeerError(self._last_words()) from error
        reply = json.loads(self._line())
        if not reply["ok"]:
            raise PeerError(reply["error"])
        return reply

    def _line(self) -> bytes:
        deadline = time.monotonic() + self._timeout
        with selectors.DefaultSelector() as ready:
            ready.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not ready.select(max(0.0, deadline - time.monotonic())):
                    self._child.kill()
                    raise PeerError(f"no answer in {self._timeout:g} s")
                part = os.read(self._child.stdout.fileno(), 1 << 16)
                if not part:
                    raise PeerError(self._last_words())
                self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        status = self._child.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f"the process ended with status {status}" + (f": {said[-1]}" if said else "")
