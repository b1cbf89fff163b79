"""Batches on JAX's devices before they are needed, sharded over them.

`DeviceLoader` is `loaderx.dataloader.DataLoader` with the batches on the devices of this process, and
this process's part of a run of several. `prefetch_to_device` does the same for batches of any
iterator, such as one pass of ``DataLoader.epoch``.
"""

import math
from collections import deque

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ._checks import integer as _integer
from .dataloader import DataLoader
from .errors import ArgumentError, ClosedError, DtypeError

__all__ = ["DeviceIterator", "DeviceLoader", "batch_sharding", "prefetch_to_device"]

_AXIS = "batch"


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


def prefetch_to_device(batches, size=2, sharding=None):
    """Put an iterator's batches on the devices ahead of their use.

    Parameters
    ----------
    batches : iterable
        Of NumPy arrays, or trees of them such as dicts; for instance ``loader.epoch()``.
    size, sharding
        As for `DeviceLoader`.

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
    return DeviceIterator(batches, size, sharding)


class DeviceIterator:
    """Batches of an iterator as arrays on JAX's devices; what `prefetch_to_device` returns.

    Notes
    -----
    For one thread. On the CPU JAX may use the memory of an array as it is, and holds a reference to
    it meanwhile; a `DataLoader` uses no memory again that anything refers to, so batches that are
    kept stay as they are. With another source it must not write to what it has handed out.
    """

    def __init__(self, batches, size=2, sharding=None):
        self._size = _integer("size", size, 1, 1 << 16)
        if sharding is None:
            sharding = batch_sharding()
        elif not isinstance(sharding, Sharding):
            raise DtypeError(f"sharding must be a jax.sharding.Sharding or None, got {type(sharding).__name__}")
        self.sharding = sharding
        self._several = not sharding.is_fully_addressable
        self._batches = batches
        self._stateful = hasattr(batches, "state_dict")
        self._restart()

    def _restart(self):
        self._iterator = iter(self._batches)
        self._queue = deque()  # the state before a batch, the batch, and the error in place of it
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
        while len(queue) < self._size and not self._ended:
            self._fetch()
        _state, batch, error = queue[0]
        if isinstance(error, StopIteration):
            raise StopIteration
        queue.popleft()
        if error is None:
            return batch
        self._ended = False
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def _fetch(self):
        """Begin the transfer of one more batch, or note why there is none."""
        state = self._batches.state_dict() if self._stateful else None
        batch = error = None
        try:
            batch = self._put(next(self._iterator))
        except Exception as exc:
            error = exc  # for the consumer, after the batches that came earlier
        self._ended = error is not None
        self._queue.append((state, batch, error))
        del error

    def _put(self, batch):
        """Return a tree of host arrays on the devices."""
        return jax.tree_util.tree_map_with_path(self._leaf, batch)

    def _leaf(self, path, array):
        sharding = self.sharding
        if np.ndim(array) == 0 and isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec())  # there is nothing to split
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
        return self._queue[0][0] if self._queue else self._batches.state_dict()

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
    JAX turns integers and floats of 64 bits into 32, unless ``jax_enable_x64`` is set.

    `state_dict` counts the batches that were handed out, and fits a `DataLoader`, too. For one thread.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from loaderx.converter import from_numpy
    >>> from loaderx.dataset import DenseDataset
    >>> path = tempfile.mkdtemp()
    >>> from_numpy(path, np.arange(10) * 10)
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
            super().__init__(self.loader, size, sharding)
            self._check_batch()
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

    @property
    def step(self):
        """The step of the batch that `next` returns next."""
        return self._queue[0][0]["step"] if self._queue else self.loader.step

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
