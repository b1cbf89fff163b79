"""Packages put aside with ``pip install --target``, out of this environment's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .process import PeerUnavailable

__all__ = ["LOADERX_VERSION", "folder_of", "loaderx_folder"]

LOADERX_VERSION = "0.9.4"


def loaderx_folder(below: Path) -> Path:
    """Return `folder_of` the real loaderx, which the tests compare this package with, too."""
    return folder_of("loaderx", LOADERX_VERSION, below, "LOADERX_ORACLE")


def folder_of(package: str, version: str, below: Path, override: str, needs: tuple[str, ...] = ()) -> Path:
    """Return a directory from which `package` of that version can be imported, installed on demand.

    Parameters
    ----------
    package, version : str
        As on PyPI.
    below : Path
        Where installed peers are kept.
    override : str
        Environment variable that names a directory to use instead.
    needs : tuple of str, optional
        Install these beside it, and not what the package itself asks for.

    Raises
    ------
    PeerUnavailable
        It is not there and can't be installed; the message says why.
    """
    given = os.environ.get(override)
    if given:
        if not (Path(given) / package).is_dir():
            raise PeerUnavailable(f"{override}={given} has no package {package}")
        return Path(given)
    target = below / f"{package}-{version}"
    if target.is_dir():
        return target
    below.mkdir(parents=True, exist_ok=True)
    # Installed beside its place and renamed: an interrupted download must not look like a peer.
    scratch = Path(tempfile.mkdtemp(prefix=f"{package}-", dir=below))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--target", str(scratch)]
    parts = [[*needs], ["--no-deps", f"{package}=={version}"]] if needs else [[f"{package}=={version}"]]
    try:
        for part in parts:
            done = subprocess.run([*command, *part], capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                last = (done.stderr.strip() or "no message").splitlines()[-1]
                raise PeerUnavailable(f"pip could not install {package}=={version}: {last}")
        try:
            scratch.rename(target)
        except OSError:
            if not target.is_dir():  # where another process was faster, its copy is as good
                raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"pip could not install {package}=={version}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target
