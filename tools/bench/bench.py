"""What a section gets from the frame: a place for its files, and the peers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from .case import Case
from .peers.install import LOADERX_VERSION, folder_of, loaderx_folder
from .peers.process import PeerProcess, PeerUnavailable

__all__ = ["ARRAY_LOADERS", "LOADERX", "Bench"]

LOADERX = f"loaderx {LOADERX_VERSION}"

#: Loaders of other packages: name, version and what else they need. Those without a version come
#: from this environment.
ARRAY_LOADERS = {
    "torch": (None, ()),
    "grain": ("0.2.18", ()),
    "webdataset": ("1.0.2", ()),
    # Without its own list of requirements, which holds torch and the clients of every cloud.
    "litdata": ("0.2.76", ("lightning-utilities", "boto3", "obstore", "requests", "filelock", "tifffile")),
}


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

    def enter_array_loaders(self, case: Case, **args: object) -> None:
        """Enter the other packages' loaders into `case`, or say there why one is left out."""
        for name, (version, needs) in ARRAY_LOADERS.items():
            try:
                path = [folder_of(name, version, self._peers, f"BENCH_{name.upper()}", needs)] if version else []
            except PeerUnavailable as error:
                case.skip(name, str(error))
                continue
            peer = PeerProcess("tools.bench.peers.array_loaders", path)
            case.on_close(peer.close)
            peer.enter(case, name, name, **args)

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
