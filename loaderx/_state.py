"""What a loader's saved state holds, and whether it belongs to the loader at hand."""

import hashlib

import numpy as np

from ._checks import integer as _integer
from ._view import StoreView
from .collate import Flat, Pad
from .dataset import RaggedDataset
from .errors import ArgumentError, DtypeError

__all__ = ["check", "fingerprint", "save"]

_VERSION = 1
_SAMPLE = 16  # records whose bytes are part of a fingerprint


def fingerprint(stream):
    """Return what tells a stream from another one, as plain JSON values.

    Of a store that is its form and a digest of some records, spread evenly: another data set,
    another order or a store that was appended to are noticed, a change of single records is not.
    """
    if isinstance(stream, (Pad, Flat)):
        stream = stream.dataset
    records = len(stream)
    if not isinstance(stream, StoreView):
        return {"records": records, "type": f"{type(stream).__module__}.{type(stream).__qualname__}"}
    picked = np.unique(np.linspace(0, records - 1, min(records, _SAMPLE)).astype(np.int64))
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(stream, RaggedDataset):
        for record in stream[picked]:
            digest.update(len(record).to_bytes(8, "little"))
            digest.update(record.tobytes())
    else:
        digest.update(stream[picked].tobytes())
    return {
        "records": records,
        "dtype": stream.dtype_name,
        "item_shape": list(stream.item_shape),
        "digest": digest.hexdigest(),
    }


def save(plan, step, prints):
    """Return the state of a run at a step."""
    return {
        "version": _VERSION,
        "step": step,
        "samples": plan.position(step),
        "mode": int(plan.mode),
        "seed": plan.seed,
        "batch_size": plan.batch_size,
        "world_size": plan.world_size,
        "streams": prints,
    }


def check(state, plan, prints):
    """Return step and samples of a state.

    Raises
    ------
    ArgumentError
        It is no state, or one of other streams, another mode or seed; the message says what
        differs.
    """
    if not isinstance(state, dict):
        raise DtypeError(f"a loader's state is a dict, got {type(state).__name__}")
    missing = sorted({"version", "step", "samples", "mode", "seed", "streams"} - state.keys())
    if missing:
        raise ArgumentError(f"the state lacks {missing}: it is not one of a DataLoader's state_dict")
    if state["version"] != _VERSION:
        raise ArgumentError(f"the state is of version {state['version']!r}, this release reads version {_VERSION}")
    differs = [
        f"{name} is {state[name]!r} in the state and {value!r} here"
        for name, value in (("mode", int(plan.mode)), ("seed", plan.seed))
        if state[name] != value
    ]
    saved = state["streams"] if isinstance(state["streams"], dict) else {}
    for name in sorted(saved.keys() | prints.keys()):
        if name not in prints or name not in saved:
            differs.append(f"stream {name!r} is only in {'the state' if name in saved else 'this loader'}")
            continue
        old, new = saved[name], prints[name]
        if not isinstance(old, dict):
            old = {}
        differs += [
            f"stream {name!r}: {key} is {old.get(key)!r} in the state and {new.get(key)!r} here"
            for key in sorted(old.keys() | new.keys())
            if old.get(key) != new.get(key)
        ]
    if differs:
        raise ArgumentError("the state belongs to another run: " + "; ".join(differs))
    step = _integer("the state's step", state["step"], 0, (1 << 63) - 1)
    return step, _integer("the state's samples", state["samples"], 0, (1 << 128) - 1)
