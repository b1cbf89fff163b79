"""Stores under ``torch.utils.data``: endless, resumable streams, and map-style datasets.

`IterableLoader` is `loaderx.dataloader.DataLoader` as an ``IterableDataset``, for training loops and
trainers that want a ``torch.utils.data.DataLoader``. `MapDataset` with `collate` gives samplers,
subsets and splits of torch's whole batches at a time. Both make tensors without any Python object
per record, bfloat16 and float8 included, with or without ``ml_dtypes``.

A `loaderx.dataset.DenseDataset` is a map-style dataset by itself as well, of NumPy arrays.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from . import _state
from ._buffers import masked
from ._checks import integer as _integer
from ._output import Output
from ._sources import PythonSource
from .collate import Flat
from .dataloader import DataLoader
from .dataset import RaggedDataset
from .errors import ArgumentError, ClosedError, DtypeError
from .sampler import LAST_STEP

__all__ = ["IterableLoader", "MapDataset", "collate"]


class IterableLoader(IterableDataset):
    """An endless stream of batches of tensors, as an ``IterableDataset``.

    Iterate over it, or pass it on as ``torch.utils.data.DataLoader(loader, batch_size=None)``: with
    another ``batch_size``, or none given, torch stacks whole batches to batches of batches. Its
    batches are the dicts of `loaderx.dataloader.DataLoader` with ``output="torch"``, the same in
    either way and with any number of worker processes.

    Parameters
    ----------
    streams : mapping of str to dataset
    num_workers : int
        Threads that read and transform. Worker processes of torch have none.
    batch_size, prefetch_size, mode, seed, transform
        As for `loaderx.dataloader.DataLoader`.
    rank, world_size : int, optional
        By default those of ``torch.distributed`` if it is initialised, and 0 and 1 otherwise.
    step : int
        The step to begin with.
    pin_memory : bool
        Page-locked batches, safe to copy with ``non_blocking=True``; in worker processes it is
        without effect, where the ``pin_memory`` of torch's loader does it.
    indices : bool
        Add ``batch["indices"]``.
    records : int, optional
        Use only the first so many of each stream; by default all that there are now.

    Attributes
    ----------
    streams : dict
        The streams; the loader does not close them.

    Raises
    ------
    ArgumentError, DtypeError
        As for `loaderx.dataloader.DataLoader`; at construction.

    Notes
    -----
    In the process that made it, iterating goes on where the last iteration was left, and
    `state_dict` holds the next batch that was not handed out. There is no need of worker processes:
    the threads of the engine read ahead without them.

    Of W worker processes, the one with number w makes the steps w, w + W, ... from the loader's step
    on, and torch takes them in turn: steps come in order. They come from copies, so each new
    iteration over torch's loader begins at the `step` of the original, which does not move:
    `seek` before it, and count the batches for ``state_dict(step=...)``. With
    ``persistent_workers=True`` the copies are made once, at the first iteration: a `seek` or
    `load_state_dict` after it does not reach them, and every iteration begins where the first did.
    The ``StatefulDataLoader`` of torchdata counts them itself: it saves and loads the states of the
    copies.

    To begin, torch's loader draws a number from torch's global generator, which shifts what a model
    draws after a resume: give it a ``generator=`` of its own, or iterate over this object.

    Pickles, to worker processes under fork, spawn and forkserver, as its arguments and its step.

    Examples
    --------
    >>> import tempfile, numpy as np, torch
    >>> from loaderx.converter import from_numpy
    >>> from loaderx.dataset import DenseDataset
    >>> path = tempfile.mkdtemp()
    >>> from_numpy(path, np.arange(10) * 10)
    10
    >>> with IterableLoader({"x": DenseDataset(path)}, batch_size=3, mode=0) as loader:
    ...     batches = iter(torch.utils.data.DataLoader(loader, batch_size=None))
    ...     next(batches)["x"], next(batches)["x"], loader.step
    (tensor([ 0, 10, 20]), tensor([30, 40, 50]), 2)
    """

    def __init__(
        self,
        streams,
        num_workers=4,
        batch_size=256,
        prefetch_size=4,
        mode=1,
        seed=42,
        transform=None,
        *,
        rank=None,
        world_size=None,
        step=0,
        pin_memory=False,
        indices=False,
        records=None,
    ):
        if (rank is None) != (world_size is None):
            raise ArgumentError("rank and world_size go together: give both, or neither")
        self._asked = rank is None
        if self._asked:
            rank, world_size = _process()
        self._options = {
            "num_workers": num_workers,
            "batch_size": batch_size,
            "prefetch_size": prefetch_size,
            "mode": mode,
            "seed": seed,
            "transform": transform,
            "rank": rank,
            "world_size": world_size,
            "indices": indices,
            "records": records,
        }
        _integer("num_workers", num_workers, 0, 1024)
        # Checks the rest, and without workers reads nothing yet.
        with DataLoader(streams, **{**self._options, "num_workers": 0}, step=step, output="torch") as loader:
            self.streams, self._plan, self._step = loader.streams, loader._plan, loader.step
        # A store may grow before the loader is iterated over, and the other one later.
        self._options.update(pin_memory=pin_memory, records=self._plan.records)
        self._closed = False
        self._prepare()

    def _prepare(self):
        """Make what does not pickle."""
        self._loader = self._prints = None
        self._worker = self._next = None  # in a worker process: which it is, and its own next step

    def __bool__(self):
        return True  # not by the length, which there is none of

    def __len__(self):
        raise TypeError("the loader is endless and has no length; take the batches you need, with itertools.islice")

    # ---- iteration ------------------------------------------------------------------------

    def __iter__(self):
        here, made = _process(), (self._plan.rank, self._plan.world_size)
        if self._asked and here not in ((0, 1), made):  # a spawned worker process knows of no other
            raise ArgumentError(
                f"the loader was made for rank {made[0]} of {made[1]}, and torch.distributed says {here[0]} of "
                f"{here[1]} now: make it after init_process_group"
            )
        info = get_worker_info()
        if info is None:
            return self._own()
        self._next = self._first(info.id, info.num_workers)
        return self._share(info.num_workers)

    def _own(self):
        """Yield batches of the loader's threads."""
        while True:
            loader = self._loader
            if loader is None:
                self._check_open()
                loader = DataLoader(self.streams, **self._options, step=self._step, output="torch")
                if self._plan != loader._plan:
                    loader._move("seek", self._plan, self._step)
                self._loader = loader
            batch = next(loader)
            yield batch
            del batch  # or its memory could not be used for the next

    def _first(self, worker, workers):
        """Return the first step of a worker process."""
        if self._worker is None:
            return self.step + worker
        if self._worker != (worker, workers):
            raise ArgumentError(
                f"the state is that of worker {self._worker[0]} of {self._worker[1]}, and this is worker {worker} of "
                f"{workers}: resume with the number of worker processes it was saved with"
            )
        return self._step

    def _share(self, workers):
        """Yield the batches of a worker process, read by the process itself."""
        options = self._options
        output = Output("torch", False)
        indices = "indices" if options["indices"] else None
        source = PythonSource(output.sources(self.streams), self._plan, output, indices)
        transform = options["transform"]
        while True:
            batch = source.read(self._next)
            if transform is not None:
                batch = transform(batch)
            self._next += workers
            yield batch
            del batch

    # ---- position -------------------------------------------------------------------------

    @property
    def step(self):
        """The step of the batch that iterating yields next."""
        return self._step if self._loader is None else self._loader.step

    def seek(self, step):
        """Go to a step of the run that the arguments describe, whatever was loaded before."""
        self._go(self._plan.restarted(), _integer("step", step, 0, LAST_STEP))

    def state_dict(self, step=None):
        """Return what a new loader needs to go on exactly here, as plain JSON values.

        Parameters
        ----------
        step : int, optional
            Another step than the next one: how many batches were taken from worker processes.

        Returns
        -------
        dict
            As from `loaderx.dataloader.DataLoader.state_dict`, which takes it, too. In a worker
            process it has the place of the worker besides.
        """
        if step is not None:
            return self._saved(_integer("step", step, 0, LAST_STEP))
        info = get_worker_info()
        if info is None:
            return self._saved(self.step)
        if self._next is None:
            self._next = self._first(info.id, info.num_workers)
        return {**self._saved(self._next), "worker": [info.id, info.num_workers]}

    def _saved(self, step):
        return _state.save(self._plan, step, self._fingerprints())

    def load_state_dict(self, state):
        """Go on where another loader of the same streams, mode and seed was.

        Parameters
        ----------
        state : dict
            From `state_dict` of this class or of `loaderx.dataloader.DataLoader`.

        Raises
        ------
        ArgumentError
            The state is of another run; the message says what differs.
        """
        plan, step = _state.check(state, self._plan, self._fingerprints())
        worker = state.get("worker")
        if worker is not None and get_worker_info() is None:
            raise ArgumentError("the state is that of a single worker process; load it by torchdata's loader")
        self._go(plan, step)
        self._worker = worker if worker is None else tuple(worker)

    def _go(self, plan, step):
        self._check_open()
        if self._loader is not None:
            self._loader.close()
        self._plan, self._step = plan, step
        self._loader = self._worker = self._next = None

    def _fingerprints(self):
        if self._prints is None:
            sources = Output("torch", False).sources(self.streams)
            records = self._plan.records
            self._prints = {name: _state.fingerprint(stream, records) for name, stream in sources.items()}
        return self._prints

    # ---- the end --------------------------------------------------------------------------

    def close(self):
        """Stop the loader's threads. Idempotent; iterating after it raises `ClosedError`."""
        self._closed = True
        if self._loader is not None:
            self._loader.close()

    def _check_open(self):
        if self._closed:
            raise ClosedError("the loader is closed")

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()

    def __getstate__(self):
        self._check_open()
        kept = "streams", "_options", "_asked", "_plan", "_closed"
        return {**{name: self.__dict__[name] for name in kept}, "_step": self.step}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._prepare()

    def __repr__(self):
        plan = self._plan
        ranks = f"rank={plan.rank}/{plan.world_size}, " if plan.world_size > 1 else ""
        return (
            f"IterableLoader({list(self.streams)}, records={plan.records}, batch_size={plan.batch_size}, "
            f"mode=Mode.{plan.mode.name}, seed={plan.seed}, {ranks}step={self.step})"
        )


class MapDataset(Dataset):
    """Several streams as one map-style dataset of dicts of tensors.

    Parameters
    ----------
    streams : mapping of str to dataset
        A `DenseDataset`, a `RaggedDataset` in a `loaderx.collate.Pad` or ``Flat``, or anything with a
        length and ``__getitems__(indices)``. All have one length.

    Raises
    ------
    ArgumentError, DtypeError
        A stream is none of these or empty, torch has no such dtype, or lengths differ.

    Notes
    -----
    Use it with `collate`, so that a batch is one read of each stream and one dict of tensors::

        torch.utils.data.DataLoader(MapDataset(streams), batch_size=64, shuffle=True, collate_fn=collate)

    ``num_workers``, ``pin_memory``, samplers, ``Subset`` and ``random_split`` work as with any other
    dataset, and workers may be forked or spawned. Safe to use from many threads.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from loaderx.converter import from_numpy
    >>> from loaderx.dataset import DenseDataset
    >>> path = tempfile.mkdtemp()
    >>> from_numpy(path, np.arange(10) * 10)
    10
    >>> dataset = MapDataset({"x": DenseDataset(path)})
    >>> len(dataset), dataset[-1], dataset.__getitems__([3, 0])
    (10, {'x': tensor(90)}, {'x': tensor([30,  0])})
    """

    def __init__(self, streams):
        for name, stream in streams.items() if isinstance(streams, Mapping) else ():
            if isinstance(stream, RaggedDataset):
                raise ArgumentError(f"stream {name!r} is ragged: wrap it in loaderx.collate.Pad or Flat")
        # Checks everything, and reads nothing.
        with DataLoader(streams, num_workers=0, batch_size=1, output="torch") as loader:
            self.streams = loader.streams
        self._source = None

    def _reader(self):
        source = self._source
        if source is None:
            output = Output("torch", False)
            source = self._source = PythonSource(output.sources(self.streams), None, output, None)
        return source

    def __len__(self):
        return min(len(stream) for stream in self.streams.values())

    def __getitem__(self, index):
        """Return one record of each stream.

        Of a `Pad` it is padded, to ``max_len`` if there is one.

        Raises
        ------
        RecordIndexError
            The index is outside the store.
        DtypeError
            A stream is a `Flat`, which has batches and no single records.
        """
        flat = [name for name, stream in self.streams.items() if isinstance(stream, Flat)]
        if flat:
            raise DtypeError(f"streams {flat} are flat and have no single records: use loaderx.torch.collate")
        batch = self._reader().gathered(np.array([_integer("index", index, -(1 << 63), LAST_STEP)]))
        return {name: value[0] for name, value in batch.items()}

    def __getitems__(self, indices):
        """Return a batch, one read of each stream.

        Parameters
        ----------
        indices : sequence of int

        Returns
        -------
        dict of str to torch.Tensor
            A whole batch, and no list of records: torch's loader needs `collate` to take it.
        """
        if np.ma.isMaskedArray(indices):
            raise masked("indices")
        array = np.asarray(indices)
        if not array.size:
            array = array.astype(np.int64)
        if array.dtype.kind not in "iub":
            raise DtypeError(f"records are asked for by integers, got {array.dtype}")
        return _Batch(self._reader().gathered(array))

    def __getstate__(self):
        return {"streams": self.streams, "_source": None}

    def __repr__(self):
        return f"MapDataset({self.streams!r})"


def collate(batch):
    """Return a batch of `MapDataset` as it is: the ``collate_fn`` for torch's loader.

    Parameters
    ----------
    batch : dict or list
        A list of single records, which wrappers such as ``ConcatDataset`` ask for, goes through
        torch's ``default_collate``.

    Returns
    -------
    dict of str to torch.Tensor
    """
    if type(batch) is _Batch:
        return dict(batch)
    return batch if isinstance(batch, dict) else default_collate(batch)


class _Batch(dict):
    """What torch's loader hands to its ``collate_fn``; others than `collate` take it for a list of records."""

    def __missing__(self, key):
        if isinstance(key, int):
            raise ArgumentError(
                "a MapDataset makes whole batches, not lists of records: pass collate_fn=loaderx.torch.collate to "
                "torch.utils.data.DataLoader"
            )
        raise KeyError(key)


def _process():
    """Return the rank and the number of processes of a distributed run."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
