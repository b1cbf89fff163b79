"""Finding and loading the compiled extension, once for each process.

A Go runtime does not survive ``fork``: in the child every call would hang. A forked child
therefore loads a private copy of the same file, which brings a fresh runtime.
"""

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from .errors import ForkError

__all__ = ["load_copy", "load_first"]

_NAME = "loaderx._native"
_MFD_EXEC = 0x10  # Linux 6.3: says that the file is meant to be executed
_OWNER = "_loaderx_native_owner"


def _file():
    """Return the path of the compiled extension beside this module."""
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"_native{suffix}"
        if path.is_file():
            return path
    if (folder.parent / "pyproject.toml").is_file():
        raise ImportError(
            f"{folder} is the source tree, which hides an installed package and has no compiled engine: run from "
            "another directory, or compile in place with `make build` or `pip install -e .`"
        )
    raise ImportError(
        f"the compiled engine is missing from {folder}: install the package with "
        "`pip install .` (or build it in place with `make build`)"
    )


def _load(path):
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, str(path), loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load_first():
    """Load the extension in a process that has none yet.

    Raises
    ------
    ImportError
        The file is missing, or another copy of it runs in this process already: two Go
        runtimes in one process are not safe.
    """
    path = _file()
    owner = getattr(sys, _OWNER, None)
    if owner is not None and owner[0] == os.getpid():
        if owner[1] == str(path):
            return owner[2]  # this package was imported anew
        raise ImportError(
            f"two copies of the engine in one process: {owner[1]} is loaded, so {path} is not; "
            "remove one of the two installations from sys.path"
        )
    module = _load(path)
    setattr(sys, _OWNER, (os.getpid(), str(path), module))
    return module


def load_copy(depth):
    """Load a private copy of the extension in a forked child.

    Parameters
    ----------
    depth : int
        How many forks lie between the first process and this one; it makes the copy's
        path one that no ancestor used, since Python and the dynamic loader remember paths.

    Raises
    ------
    ForkError
        The system allows neither anonymous nor temporary files to be executed.
    """
    failures = []
    for copy in (_anonymous_copy, _temporary_copy):
        try:
            return copy(depth)
        except (OSError, ImportError) as exc:
            failures.append(f"{copy.__name__[1:]}: {exc}")
    raise ForkError(
        f"the engine can't be loaded in this forked process ({'; '.join(failures)}); where the system executes "
        "neither anonymous nor temporary files, use the start method 'spawn' or 'forkserver', or set TMPDIR to a "
        "folder that is not mounted noexec"
    )


def _anonymous_copy(depth):
    if not hasattr(os, "memfd_create"):
        raise OSError("this platform has no memfd_create")
    content = _file().read_bytes()
    try:
        fd = os.memfd_create("loaderx-engine", os.MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        fd = os.memfd_create("loaderx-engine", os.MFD_CLOEXEC)
    with open(fd, "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        return _load(f"/proc/self/{'./' * depth}fd/{fd}")


def _temporary_copy(depth):
    content = _file().read_bytes()
    with tempfile.TemporaryDirectory(prefix=f"loaderx-engine-{depth}-") as folder:
        path = Path(folder) / f"_native-{os.getpid()}-{depth}.so"
        path.write_bytes(content)
        path.chmod(0o700)
        return _load(path)
