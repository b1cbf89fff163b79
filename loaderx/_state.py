"""What a loader's saved state holds, and whether it belongs to the loader at hand."""

import hashlib
from dataclasses import replace

import numpy as np

from ._checks import integer as _integer
from ._view import StoreView
from .collate import Flat, Pad
from .dataset import RaggedDataset
from .errors import ArgumentError, DtypeError
from .sampler import LAST_STEP, Mode

__all__ = ["check", "fingerprint", "save"]

_VERSION = 1
_NEEDED = {"version", "step", "samples", "mode", "seed", "batch_size", "world_size", "streams"}
_SAMPLE = 16  # records whose bytes are part of a fingerprint


def fingerprint(stream, records):
    """Return what tells a stream from another one, as plain JSON values.

    Of a store that is its form and a digest of some records, spread evenly: another data set,
    another order or a store that was appended to are noticed, a change of single records is not.

    Parameters
    ----------
    stream : dataset
    records : int
        How many of its records the run uses. The stream may have more, also by now.
    """
    if isinstance(stream, (Pad, Flat)):
        stream = stream.dataset
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
        # Where the run took these sizes: 0 and 0, unless it was resumed with others.
        "from_step": plan.from_step,
        "from_samples": plan.samples,
        "streams": prints,
    }


def check(state, plan, prints):
    """Return the plan that goes on where a state was saved, and its step.

    Raises
    ------
    ArgumentError
        It is no state, one that contradicts itself, or one of other streams, another mode or
        seed; the message says what is wrong.
    DtypeError
        It is no dict, or a number in it is no integer.
    """
    if not isinstance(state, dict):
        raise DtypeError(f"a loader's state is a dict, got {type(state).__name__}")
    missing = sorted(_NEEDED - state.keys())
    if missing:
        raise ArgumentError(f"the state lacks {missing}: it is not one of a DataLoader's state_dict")
    version = _number(state, "version", (1 << 63) - 1)
    if version != _VERSION:
        raise ArgumentError(f"the state is of version {version}, this release reads version {_VERSION}")
    differs = [
        f"{name} is {got} in the state and {value} here"
        for name, value, got in (
            ("mode", int(plan.mode), _number(state, "mode", 255)),
            ("seed", plan.seed, _number(state, "seed", (1 << 64) - 1, -(1 << 63))),
        )
        if got != value
    ]
    differs += _different(state["streams"], prints)
    if differs:
        raise ArgumentError("the state belongs to another run: " + "; ".join(differs))
    step = _number(state, "step", LAST_STEP)
    samples = _number(state, "samples", (1 << 128) - 1)
    saved = _saved_plan(state, step, plan)
    want = saved.position(step)
    if samples != want:
        raise ArgumentError(
            f"the state contradicts itself: its samples is {samples}, and its step {step} with its batch_size "
            f"{saved.batch_size} and world_size {saved.world_size} comes after {want}"
        )
    if saved.world_size * saved.batch_size == plan.world_size * plan.batch_size:
        return replace(plan, from_step=saved.from_step, samples=saved.samples), step
    return plan.resumed(step, samples), step


def _saved_plan(state, step, plan):
    """Return the plan of the run that saved a state, as its first rank had it."""
    batch = _number(state, "batch_size", (1 << 63) - 1, 1)
    world = _number(state, "world_size", (1 << 31) - 1, 1)
    if batch * world > (1 << 63) - 1:
        raise ArgumentError(f"the state's world_size {world} times its batch_size {batch} is more than 2**63 - 1")
    if plan.mode == Mode.CYCLIC and world > plan.records:
        raise ArgumentError(f"the state's world_size {world} is more than the {plan.records} records")
    from_step = _number(state, "from_step", step) if "from_step" in state else 0
    # A step draws at least one sample, and at most a global batch or to the end of a cycle.
    most = from_step * (plan.records if plan.mode == Mode.CYCLIC else (1 << 63) - 1)
    samples = _number(state, "from_samples", most, from_step) if "from_samples" in state else 0
    return replace(plan.restarted(), rank=0, batch_size=batch, world_size=world, from_step=from_step, samples=samples)


def _number(state, name, high, low=0):
    return _integer(f"the state's {name}", state[name], low, high)


def _different(saved, prints):
    """Say what differs between the fingerprints in a state and those of the streams at hand."""
    if not isinstance(saved, dict):
        raise ArgumentError(f"the state's streams is no dict, but {type(saved).__name__}")
    differs = []
    for name in sorted(saved.keys() | prints.keys(), key=str):
        if name not in prints or name not in saved:
            differs.append(f"stream {name!r} is only in {'the state' if name in saved else 'this loader'}")
            continue
        old, new = saved[name], prints[name]
        if not isinstance(old, dict):
            raise ArgumentError(f"the state's stream {name!r} is no dict, but {type(old).__name__}")
        keys = [key for key in sorted(old.keys() | new.keys(), key=str) if not _same(old.get(key), new.get(key))]
        if "records" in keys and "digest" in keys:
            keys.remove("digest")  # it is that of other records, and says nothing more
        said = [f"stream {name!r}: {key} is {old.get(key)!r} in the state and {new.get(key)!r} here" for key in keys]
        if keys == ["records"] and type(old["records"]) is int and 0 < old["records"] < new["records"]:
            said[0] += f", which records={old['records']} makes the same if the store has only grown since"
        differs += said
    return differs


def _same(one, other):
    try:
        return bool(one == other)
    except (TypeError, ValueError):  # arrays, which no state has
        return False
