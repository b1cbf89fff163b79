"""Write torch.json: bags reduced by torch, which the Go tests compare bit for bit.

``python write_torch.py`` writes the file beside this script; ``python write_torch.py --large PATH`` writes more of
the same, which ``BAG_VECTORS=PATH go test ./gopkg/bag`` reads, too. Made with torch 2.15.0.
"""

import argparse
import base64
import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16}
QUANTISED = {
    "uint8_rowwise": (torch.ops.quantized.embedding_bag_byte_prepack, torch.ops.quantized.embedding_bag_byte_rowwise_offsets),
    "int4_rowwise": (torch.ops.quantized.embedding_bag_4bit_prepack, torch.ops.quantized.embedding_bag_4bit_rowwise_offsets),
}
PADDING = 3


def text(tensor):
    return base64.b64encode(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).decode()


def special(table, rng):
    """Overwrite some numbers with NaN, infinities, zeros of both signs and subnormals."""
    draw = torch.from_numpy(rng.random(tuple(table.shape)))
    small = {torch.float16: 1e-6, torch.float64: 1e-310}.get(table.dtype, 1e-40)
    table = torch.where(draw < 0.2, table * small, table)
    for low, value in ((0.0, float("nan")), (0.02, float("inf")), (0.04, -float("inf")), (0.06, -0.0), (0.1, 0.0)):
        table = torch.where((draw >= low) & (draw < low + 0.03), torch.tensor(value, dtype=table.dtype), table)
    return table


def tables(rng, rows, dims):
    for dim in dims:
        normal = torch.from_numpy(rng.standard_normal((rows, dim)) * 3)
        for kind, dtype in DTYPES.items():
            yield kind, dim, normal.to(dtype)
            yield kind, dim, special(normal.to(dtype), rng)
        for kind, (pack, _) in QUANTISED.items():
            if kind == "uint8_rowwise" or dim % 2 == 0:
                yield kind, dim, pack(normal.to(torch.float32))


def draw_bags(rng, rows, lookups, bags, long):
    cuts = np.sort(rng.integers(0, lookups - long + 1, bags - 1))
    cuts[-1] = lookups - long  # so that the last bag has `long` lookups
    return torch.from_numpy(rng.integers(0, rows, lookups)), torch.from_numpy(np.concatenate([[0], cuts]))


def reductions(kind, table, ids, offsets, rng):
    """Yield what Spec says, weights and torch's result."""
    if kind in QUANTISED:
        lookup = QUANTISED[kind][1]
        yield "sum", False, None, lookup(table, ids, offsets)
        weights = torch.from_numpy(rng.standard_normal(len(ids))).to(torch.float32)
        yield "sum", False, weights, lookup(table, ids, offsets, per_sample_weights=weights)
        return
    weights = torch.from_numpy(rng.standard_normal(len(ids))).to(table.dtype)
    for padding in (None, PADDING):
        for mode in ("sum", "mean", "max"):
            yield mode, padding is not None, None, functional.embedding_bag(ids, table, offsets, mode=mode, padding_idx=padding)
        result = functional.embedding_bag(ids, table, offsets, mode="sum", padding_idx=padding, per_sample_weights=weights)
        yield "sum", padding is not None, weights, result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("path", nargs="?", default=Path(__file__).with_name("torch.json"), type=Path)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(7)
    dims = (1, 3, 8, 16, 31, 64, 100, 127, 128, 130, 300, 1024, 1025) if options.large else (1, 7, 36)
    rows, lookups, bags, long = (300, 6000, 40, 2500) if options.large else (10, 290, 6, 261)
    out = []
    for kind, dim, table in tables(rng, rows, dims):
        ids, offsets = draw_bags(rng, rows, lookups, bags, long)
        cases = [
            {"mode": mode, "padding": padding, "weights": "" if weights is None else text(weights), "result": text(result)}
            for mode, padding, weights, result in reductions(kind, table, ids, offsets, rng)
        ]
        out.append(
            {
                "kind": kind,
                "dim": dim,
                "rows": text(table),
                "ids": ids.tolist(),
                "offsets": [*offsets.tolist(), lookups],
                "paddingIndex": PADDING,
                "cases": cases,
            }
        )
    options.path.write_text("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]\n")


if __name__ == "__main__":
    main()
