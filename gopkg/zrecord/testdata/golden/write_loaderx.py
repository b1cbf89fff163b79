"""Write the golden stores of loaderx 0.9.4; run it where that is installed."""

import os
import pathlib
import tempfile

import numpy as np
from loaderx.zrecord import Zrecord


def record(i):
    j = np.arange(1 + i * i * 31 % 500)
    return ((j % 61) ^ np.where(j % 10 == 0, i, 0)).astype(np.uint8)


def cut(path, length):
    with open(path, "rb") as f:
        return f.read(length).rstrip(b"\0")


here = pathlib.Path(__file__).parent
records = [record(i) for i in range(40)]
src = np.concatenate(records)
sizes = np.array([len(r) for r in records], np.uint64)
offsets = np.cumsum(sizes) - sizes
for codec in ("raw", "zstd", "zstd_dict"):
    target = here / f"3_{codec}_loaderx"
    if target.exists():
        continue
    with tempfile.TemporaryDirectory() as temp:
        store = Zrecord(temp, codec)
        if codec == "zstd_dict":
            store.train_dict(src, sizes, 1024)
        store.append(src, offsets)
        store.sync()
        store.close()
        target.mkdir()
        for name, length in (("meta.zr", 16 + 40 * 16), ("0.zr", 1 << 20)):
            (target / name).write_bytes(cut(os.path.join(temp, name), length))
        if codec == "zstd_dict":
            (target / "dict.zr").write_bytes(pathlib.Path(temp, "dict.zr").read_bytes())
