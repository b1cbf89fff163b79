"""Write torch.json: rows encoded and decoded by torch, which the Go tests compare bit for bit.

``python write_torch.py`` writes the file beside this script; ``python write_torch.py --rows 500 PATH`` writes
more of the same, which ``QUANT_VECTORS=PATH go test ./gopkg/quant`` reads, too. Made with torch 2.15.0.
"""

import argparse
import base64
import json
from pathlib import Path

import numpy as np
import torch

PACK = {
    "uint8_rowwise": (torch.ops.quantized.embedding_bag_byte_prepack, torch.ops.quantized.embedding_bag_byte_unpack),
    "int4_rowwise": (torch.ops.quantized.embedding_bag_4bit_prepack, torch.ops.quantized.embedding_bag_4bit_unpack),
}
CAST = {"fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}


def text(array):
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def regimes(rng, rows, dim):
    """Rows of many magnitudes; the largest stay within float16's range."""
    normal = rng.standard_normal((rows, dim))
    yield "normal", normal
    yield "scaled", normal * 10.0 ** rng.integers(-7, 4, (rows, 1))
    yield "tiny", normal * 10.0 ** rng.integers(-44, -6, (rows, 1))
    yield "offset", 1000 + normal
    yield "constant", np.repeat(rng.standard_normal((rows, 1)) * 1000, dim, 1)
    yield "nearly_constant", 100 + 1e-3 * normal
    yield "integers", rng.integers(-3, 4, (rows, dim)) * 1.0
    yield "halves", rng.integers(0, 31, (rows, dim)) * 0.5
    zeros = np.where(rng.random((rows, dim)) < 0.5, 0.0, -0.0)
    yield "zeros", zeros
    yield "rectified", np.where(normal > 0, normal, zeros)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", default=Path(__file__).with_name("torch.json"), type=Path)
    parser.add_argument("--rows", default=1, type=int)
    options = parser.parse_args()
    rng = np.random.default_rng(6)
    cases = []
    for dim in (1, 2, 3, 8, 10, 15, 16, 33, 64, 130):
        for regime, values in regimes(rng, options.rows, dim):
            values = values.astype(np.float32)
            source = torch.from_numpy(values)
            for kind, (pack, unpack) in PACK.items():
                if kind == "int4_rowwise" and dim % 2:
                    continue  # torch refuses it
                rows = pack(source)
                add(cases, kind, dim, regime, values, rows.numpy(), unpack(rows).numpy())
            if regime in ("scaled", "tiny"):
                for kind, dtype in CAST.items():
                    rows = source.to(dtype)
                    add(cases, kind, dim, regime, values, rows.view(torch.uint8).numpy(), rows.to(torch.float32).numpy())
    lines = ",\n".join(json.dumps(case) for case in cases)
    options.path.write_text(f"[\n{lines}\n]\n")


def add(cases, kind, dim, regime, values, rows, decoded):
    cases.append({"kind": kind, "dim": dim, "regime": regime, "source": text(values), "rows": text(rows), "decoded": text(decoded)})


if __name__ == "__main__":
    main()
