"""The child's side: a loop that answers one JSON line with another.

Run as a script (``child.py MODULE ROOT``) rather than with ``-m``, because then the directories
named in PYTHONPATH, where the peer is, are looked up before the checkout at ROOT, which holds a
package of the same name.

Requests are ``{"op": "setup", "case": name, "args": {...}}``, ``{"op": "run", "id": k, "n": n}``,
``{"op": "memory"}``, ``{"op": "drop", "id": k}`` and ``{"op": "quit"}``. Answers have ``"ok"``, and
``"id"``, ``"seconds"``, ``"memory"`` or ``"error"``. Between two requests the child sleeps in a read, so
that other contestants have the machine for themselves.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TextIO

__all__ = ["serve"]

Cases = Mapping[str, Callable[..., AbstractContextManager[Callable[[int], float]]]]


def _memory() -> dict[str, int]:
    """Return bytes of resident memory: all of it, and what is not pages of files."""
    try:
        with open("/proc/self/status") as file:
            found = dict(line.split(":", 1) for line in file)
    except OSError:  # no Linux
        return {}
    return {name: int(found[key].split()[0]) << 10 for name, key in (("resident", "VmRSS"), ("own", "RssAnon"))}


class _Server:
    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self._open: dict[int, tuple[ExitStack, Callable[[int], float]]] = {}
        self._next = 0
        self._before = _memory()

    def answer(self, request: Mapping) -> dict:
        op = request["op"]
        if op == "setup":
            stack = ExitStack()
            run = stack.enter_context(self._cases[request["case"]](**request["args"]))
            self._next += 1
            self._open[self._next] = stack, run
            return {"id": self._next}
        if op == "run":
            return {"seconds": self._open[request["id"]][1](request["n"])}
        if op == "memory":
            return {"memory": {name: size - self._before[name] for name, size in _memory().items()}}
        if op == "drop":
            self._open.pop(request["id"])[0].close()
            return {}
        raise ValueError(f"unknown request {op!r}")


def serve(requests: Iterable[str], replies: TextIO, cases: Cases) -> None:
    """Answer requests until ``quit`` or the end of the input.

    Parameters
    ----------
    requests : iterable of str
        One JSON document each.
    replies : text file
    cases : mapping of str to callable
        Called with the request's arguments it returns a context manager around a run.
    """
    server = _Server(cases)
    for line in requests:
        request = json.loads(line)
        if request["op"] == "quit":
            return
        try:
            reply = {"ok": True, **server.answer(request)}
        except Exception as error:  # told to the parent, which decides
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Serve the cases of the module named on the command line."""
    module, root = sys.argv[1:]
    # What the peer prints must not end up between the answers.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.pop(0)
    sys.path.insert(len(os.environ.get("PYTHONPATH", "").split(os.pathsep)), root)
    serve(sys.stdin, replies, importlib.import_module(module).CASES)
    # Without the interpreter's shutdown: some peers' threads hang in it.
    os._exit(0)


if __name__ == "__main__":
    main()
