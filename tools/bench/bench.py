"""What a section gets from the frame: a place for its files, and the peers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from .case import Case
from .peers.install import LOADERX_VERSION, loaderx_folder
from .peers.process import PeerProcess, PeerUnavailable

__all__ = ["LOADERX", "Bench"]

LOADERX = f"loaderx {LOADERX_VERSION}"


class Bench:
    """The run that the sections belong to.

    Parameters
    ----------
    work : Path
        Scratch directory for stores and arrays, on a disk like the one users have.
    peers : Path
        Where peers are installed.
    quick : bool
        Ask sections for less data.
    """

    def __init__(self, work: Path, peers: Path, quick: bool = False) -> None:
        self.work = work
        self.quick = quick
        self._peers = peers
        self._process: PeerProcess | None = None
        self._why_not: str | None = None
        self._stack = ExitStack()

    def enter_loaderx(self, case: Case, peer_case: str, **args: object) -> None:
        """Enter the real loaderx 0.9.4 into `case`, or say there why it is left out."""
        try:
            peer = self._loaderx()
        except PeerUnavailable as error:
            case.skip(LOADERX, str(error))
            return
        peer.enter(case, LOADERX, peer_case, **args)

    def close(self) -> None:
        """End the peers."""
        self._stack.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _loaderx(self) -> PeerProcess:
        if self._why_not is not None:
            raise PeerUnavailable(self._why_not)
        if self._process is None or not self._process.alive:
            try:
                folder = loaderx_folder(self._peers)
            except PeerUnavailable as error:
                self._why_not = str(error)
                raise
            self._process = PeerProcess("tools.bench.peers.loaderx094", [folder])
            self._stack.callback(self._process.close)
        return self._process
