"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path

__all__ = ["describe", "go_version"]

_BUILD_INFO = b"\xff Go buildinf:"
_LIBRARIES = ("numpy", "torch", "jax")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _field(path: str, name: str) -> str | None:
    for line in (_read(path) or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _cgroup_cpus() -> float | None:
    """Return the CPUs' worth of time that the control group allows, None without a limit."""
    group = (_field("/proc/self/cgroup", "0") or "").lstrip(":").lstrip("/")
    folder = Path("/sys/fs/cgroup")
    for candidate in (folder / group, folder):
        quota, _, period = (_read(str(candidate / "cpu.max")) or "").partition(" ")
        if quota.isdigit() and period.isdigit():
            return int(quota) / int(period)
    quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def go_version(binary: Path) -> str | None:
    """Return the Go release a binary was built with, from the note that the linker leaves in it."""
    try:
        data = binary.read_bytes()
    except OSError:
        return None
    at = data.find(_BUILD_INFO)
    if at < 0 or len(data) < at + 33:
        return None
    length = data[at + 32]
    return data[at + 33 : at + 33 + length].decode("ascii", "replace")


def _engine() -> str | None:
    # Found, not imported: looking up a module inside a package runs no more than the package's own
    # __init__, and the version is in the file.
    try:
        spec = importlib.util.find_spec("loaderx._native")
    except ModuleNotFoundError:
        return None
    return go_version(Path(spec.origin)) if spec and spec.origin else None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory() -> str | None:
    kib = (_field("/proc/meminfo", "MemTotal") or "").removesuffix("kB").strip()
    return f"{int(kib) / 2**20:.1f} GiB" if kib.isdigit() else None


def describe() -> dict[str, object]:
    """Return the machine block; a value is None where the system does not tell.

    Returns
    -------
    dict
        JSON-able, in the order in which it is printed.
    """
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    try:
        load = [round(x, 2) for x in os.getloadavg()]
    except OSError:
        load = None
    block: dict[str, object] = {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "affinity": affinity,
        "cgroup_cpus": _cgroup_cpus(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory": _memory(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average": load,
        "python": f"{platform.python_version()} ({sys.implementation.name})",
        "go_engine": _engine(),
    }
    block.update({name: _version(name) for name in _LIBRARIES})
    return block
