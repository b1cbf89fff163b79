"""Batches on JAX's devices before they are needed, sharded over them.

`DeviceLoader` is `loaderx.dataloader.DataLoader` with the batches on the devices of this process, and
this process's part of a run of several. `prefetch_to_device` does the same for batches of any
iterator, such as one pass of ``DataLoader.epoch``.
"""

import math
from collections import deque
from itertools import islice

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ._checks import integer as _integer
from ._output import warn_narrowed
from .dataloader import DataLoader
from .errors import ArgumentError, ClosedError, DtypeError

__all__ = ["DeviceIterator", "DeviceLoader", "batch_sharding", "prefetch_to_device"]

_AXIS = "batch"

_REMAINDERS = ("replicate", "drop", "error")


def batch_sharding(devices=None):
    """Return a sharding that splits the first axis of every array.

    Parameters
    ----------
    devices : sequence of jax.Device, optional
        By default all devices of all processes, those of a process beside each other: in a single
        process they are ``jax.local_devices()``.

    Returns
    -------
    jax.sharding.NamedSharding
    """
    if devices is None:
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    devices = list(devices)
    if not devices:
        raise ArgumentError("devices is empty")
    return NamedSharding(Mesh(np.array(devices), (_AXIS,)), PartitionSpec(_AXIS))


def prefetch_to_device(batches, size=2, sharding=None, remainder="replicate"):
    """Put an iterator's batches on the devices ahead of their use.

    Parameters
    ----------
    batches : iterable
        Of NumPy arrays, or trees of them such as dicts; for instance ``loader.epoch()``.
    size, sharding
        As for `DeviceLoader`.
    remainder : {"replicate", "drop", "error"}
        What becomes of a batch whose first axis can't be split evenly over the devices, such as the
        short last one of a pass: each device gets all of an array that can't be split, or the
        batch is left out, or it raises `ArgumentError`. A sharding that spans processes can't
        replicate what differs from one to the other: there it is an error, too, unless dropped.

    Returns
    -------
    DeviceIterator
        Has ``state_dict`` if `batches` has.

    Examples
    --------
    >>> import numpy as np
    >>> for batch in prefetch_to_device([{"x": np.arange(3)}, {"x": np.arange(2)}], sharding=batch_sharding(
    ...         jax.local_devices()[:1])):
    ...     print(batch["x"].sum())
    3
    1
    """
    return DeviceIterator(batches, size, sharding, remainder)


class _Entry:
    """A batch on its way: the source's state before it, itself on the host and on the devices, or an error."""

    __slots__ = ("batch", "error", "host", "ready", "state")

    def __init__(self, state):
        self.state, self.host = state, []
        self.batch = self.error = None
        self.ready = False


class DeviceIterator:
    """Batches of an iterator as arrays on JAX's devices; what `prefetch_to_device` returns.

    Notes
    -----
    For one thread. On the CPU JAX may use the memory of an array as it is, and holds a reference to
    it meanwhile; a `DataLoader` uses no memory again that anything refers to, so batches that are
    kept stay as they are. With another source it must not write to what it has handed out.

    Ctrl-C, or whatever else a signal handler raises, loses no batch of a source with ``state_dict``:
    the next call goes on where this one was.
    """

    def __init__(self, batches, size=2, sharding=None, remainder="replicate"):
        self._size = _integer("size", size, 1, 1 << 16)
        if sharding is None:
            sharding = batch_sharding()
        elif not isinstance(sharding, Sharding):
            raise DtypeError(f"sharding must be a jax.sharding.Sharding or None, got {type(sharding).__name__}")
        if remainder not in _REMAINDERS:
            raise ArgumentError(f"remainder must be one of {_REMAINDERS}, got {remainder!r}")
        self.sharding, self.remainder = sharding, remainder
        self._several = not sharding.is_fully_addressable
        self._shapes = {}  # whether the devices can share an array
        self._batches = batches
        self._stateful = hasattr(batches, "state_dict")
        self._restart()

    def _restart(self):
        self._iterator = iter(self._batches)
        self._queue = deque()  # of entries; only the last may be unfinished
        self._ended = False  # the last in the queue is an error
        self._closed = False

    def __iter__(self):
        return self

    def __next__(self):
        """Return the next batch, and begin to put the one after it on the devices.

        Raises
        ------
        ArgumentError
            An array's first axis can't be split evenly over the devices.
        DtypeError
            JAX has no such arrays.
        ClosedError
            It was closed.
        """
        if self._closed:
            raise ClosedError("the iterator is closed")
        queue = self._queue
        while not self._ended and (len(queue) < self._size or not queue[-1].ready):
            self._fetch()
        entry = queue[0]
        if isinstance(entry.error, StopIteration):
            raise StopIteration
        try:
            queue.popleft()
            if entry.error is None:
                return entry.batch
        except BaseException:  # of a signal handler: it is not handed out
            if not queue or queue[0] is not entry:
                queue.appendleft(entry)
            raise
        self._ended = False
        try:
            raise entry.error
        finally:
            del entry  # the error's traceback refers to this frame

    def _fetch(self):
        """Begin the transfer of one more batch, or note why there is none.

        A signal handler may raise anywhere in here; then the next call goes on with the same entry.
        """
        queue = self._queue
        if not queue or queue[-1].ready:
            queue.append(_Entry(self._batches.state_dict() if self._stateful else None))
            entry = queue[-1]
        else:
            entry = queue[-1]
            entry.error = None
            if not entry.host and self._stateful:
                # The source may have handed it out, and it was lost on the way.
                if self._batches.state_dict() != entry.state:
                    self._batches.load_state_dict(entry.state)
                self._iterator = iter(self._batches)  # a generator ends by what a handler raises
        try:
            while True:
                if not entry.host:
                    entry.host.extend(islice(self._iterator, 1))  # nothing can come between the two
                    if not entry.host:
                        raise StopIteration
                if self.remainder != "drop" or self._divides(entry.host[0]):
                    break
                entry.state = self._batches.state_dict() if self._stateful else None
                entry.host.clear()
            entry.batch = self._put(entry.host[0])
        except Exception as exc:
            entry.error = exc  # for the consumer, after the batches that came earlier
        self._ended = entry.error is not None
        entry.ready = True
        entry.host.clear()

    def _divides(self, batch):
        """Whether all arrays of a batch can be split over the devices."""
        return all(np.ndim(leaf) == 0 or self._fits(np.shape(leaf)) for leaf in jax.tree_util.tree_leaves(batch))

    def _fits(self, shape):
        fits = self._shapes.get(shape)
        if fits is None:
            if len(self._shapes) > 256:  # of padded batches there are many
                self._shapes.clear()
            parts = jax.process_count() if self._several else 1
            try:
                self.sharding.shard_shape((shape[0] * parts, *shape[1:]))
                fits = True
            except ValueError:
                fits = False
            self._shapes[shape] = fits
        return fits

    def _put(self, batch):
        """Return a tree of host arrays on the devices."""
        return jax.tree_util.tree_map_with_path(self._leaf, batch)

    def _leaf(self, path, array):
        sharding = self.sharding
        shape = np.shape(array)
        named = isinstance(sharding, NamedSharding)
        whole = named and not shape  # there is nothing to split
        if shape and not self._several and not self._fits(shape):  # of several, JAX knows who has what
            whole = named and self.remainder == "replicate"
            if not whole:
                raise ArgumentError(self._uneven(f"{_name(path)}: {_described(array)}"))
        if whole:
            sharding = NamedSharding(sharding.mesh, PartitionSpec(), memory_kind=sharding.memory_kind)
        try:
            if self._several:
                return jax.make_array_from_process_local_data(sharding, np.asarray(array))
            return jax.device_put(array, sharding)
        except TypeError as error:
            raise DtypeError(f"{_name(path)}: JAX takes no {_described(array)}: {error}") from None
        except ValueError as error:
            raise ArgumentError(
                f"{_name(path)}: {_described(array)} can't be put on {len(sharding.device_set)} devices: {error}"
            ) from None

    def _uneven(self, what):
        text = f"{what} can't be split evenly over {len(self.sharding.device_set)} devices"
        if self.remainder != "replicate":
            return f"{text}, and remainder is {self.remainder!r}"
        return f"{text}, and only a NamedSharding can replicate it"

    def state_dict(self):
        """Return the source's state at the next batch that was not handed out.

        Batches that are on the devices already are not lost.

        Raises
        ------
        DtypeError
            The source has no ``state_dict``.
        """
        if not self._stateful:
            raise DtypeError(f"{type(self._batches).__name__} has no state_dict")
        return self._queue[0].state if self._queue else self._batches.state_dict()

    def load_state_dict(self, state):
        """Load a state into the source, and go on there."""
        if not self._stateful:
            raise DtypeError(f"{type(self._batches).__name__} has no state_dict")
        self._batches.load_state_dict(state)
        self._restart()

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._closed

    def close(self):
        """Drop the batches that were prepared, and close the source if it can be. Idempotent."""
        self._closed = True
        self._queue.clear()
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        self.close()


class DeviceLoader(DeviceIterator):
    """The endless batches of a `DataLoader` as arrays on JAX's devices, put there ahead of their use.

    While a batch is computed with, the next one is on its way. By default the first axis is split
    over all devices, and each process of a distributed run reads its own part of the global batch.

    Parameters
    ----------
    streams : mapping of str to dataset
    size : int
        Batches on the devices, with the one that is handed out: 2 is double buffering.
    sharding : jax.sharding.Sharding, optional
        Of every array; `batch_sharding` by default. It may span processes.
    rank, world_size : int, optional
        By default ``jax.process_index()`` and ``jax.process_count()``.
    **options
        The other arguments of `DataLoader`, such as ``records``; ``batch_size`` is that of this process.

    Attributes
    ----------
    sharding : jax.sharding.Sharding
    loader : DataLoader

    Raises
    ------
    ArgumentError
        As for `DataLoader`; or the batches can't be split evenly over the devices.

    Notes
    -----
    Arrays are global if the sharding spans processes: then their first axis has
    ``world_size * batch_size`` records, and each process holds its part.
    JAX turns integers and floats of 64 bits into 32, unless ``jax_enable_x64`` is set: a
    `loaderx.errors.PrecisionWarning` names the streams.

    `state_dict` counts the batches that were handed out, and fits a `DataLoader`, too. For one thread.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from loaderx.converter import from_numpy
    >>> from loaderx.dataset import DenseDataset
    >>> path = tempfile.mkdtemp()
    >>> from_numpy(path, np.arange(10, dtype=np.int32) * 10)
    10
    >>> sharding = batch_sharding(jax.local_devices()[:1])
    >>> with DeviceLoader({"x": DenseDataset(path)}, sharding=sharding, batch_size=4, mode=0) as loader:
    ...     next(loader)["x"], loader.step
    (Array([ 0, 10, 20, 30], dtype=int32), 1)
    """

    def __init__(self, streams, *, size=2, sharding=None, rank=None, world_size=None, **options):
        if "output" in options or "pin_memory" in options:
            raise ArgumentError("a DeviceLoader makes JAX arrays; it takes neither output nor pin_memory")
        if (rank is None) != (world_size is None):
            raise ArgumentError("rank and world_size go together: give both, or neither")
        if rank is None:
            rank, world_size = jax.process_index(), jax.process_count()
        self.loader = DataLoader(streams, rank=rank, world_size=world_size, **options)
        try:
            super().__init__(self.loader, size, sharding, "error")
            self._check_batch()
            warn_narrowed(self.loader.streams)
        except BaseException:
            self.loader.close()
            raise

    def _check_batch(self):
        """Refuse a batch size that the devices can't share, before anything is read."""
        sharding = self.sharding
        axes = sharding.spec[0] if isinstance(sharding, NamedSharding) and len(sharding.spec) else None
        if axes is None:
            return
        parts = math.prod(sharding.mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))
        size = self.loader._plan.most * (jax.process_count() if self._several else 1)
        if size % parts:
            raise ArgumentError(
                f"a batch of {size} records can't be split evenly over {parts} devices; choose another batch_size, or "
                f"a sharding over fewer"
            )

    def __bool__(self):
        return True  # not by the length, which there is none of

    def __len__(self):
        raise TypeError(
            "the loader is endless and has no length; take the batches you need, with itertools.islice, or one pass, "
            "with epoch()"
        )

    @property
    def step(self):
        """The step of the batch that `next` returns next."""
        return self._queue[0].state["step"] if self._queue else self.loader.step

    def epoch(self, remainder="replicate"):
        """Yield one pass over the records in their order on the devices, as `DataLoader.epoch` does.

        Parameters
        ----------
        remainder : {"replicate", "drop", "error"}
            What becomes of a short last batch that can't be split evenly over the devices: each
            device gets all of it, or it is left out, or raises `ArgumentError`. With a sharding that
            spans processes it can't be replicated; there "drop" leaves out what is less than
            ``world_size * batch_size`` records, and the others raise at once.

        Returns
        -------
        DeviceIterator
        """
        batches, plan = self.loader.epoch(), self.loader._plan
        each = plan.world_size * plan.batch_size
        if self._several and plan.records % each:
            if remainder != "drop":
                raise ArgumentError(
                    f"the last batch of a pass has {plan.records % each} records of {each}, which {plan.world_size} "
                    "processes can't make one array of: choose remainder='drop', or another batch_size"
                )
            batches = islice(batches, plan.records // each)
        return DeviceIterator(batches, self._size, self.sharding, remainder)

    def seek(self, step):
        """Go to a step, as `DataLoader.seek`."""
        self.loader.seek(step)
        self._restart()

    def __repr__(self):
        return f"DeviceLoader({self.loader!r}, devices={len(self.sharding.device_set)}, step={self.step})"


def _name(path):
    return jax.tree_util.keystr(path) or "the batch"


def _described(array):
    return f"{array.dtype}{array.shape}" if hasattr(array, "dtype") else type(array).__name__
