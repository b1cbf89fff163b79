"""A compressed, randomly addressable record store and a data pipeline on it.

The public names live in their modules:

==========================  ====================================================
``loaderx.converter``       ``from_numpy``, ``from_iterator``: write a store
``loaderx.dataset``         ``DenseDataset``, ``RaggedDataset``, ``pad``: read it
``loaderx.dataloader``      ``DataLoader``: endless, shuffled, ordered batches
``loaderx.collate``         ``Pad``, ``Flat``: ragged records in its batches
``loaderx.torch``           ``IterableLoader``, ``MapDataset``: for torch's own loader
``loaderx.jax``             ``DeviceLoader``: batches on JAX's devices ahead of their use
``loaderx.sampler``         ``Sampler``, ``Mode``: which records make up a step
``loaderx.zrecord``         ``Zrecord``: the store of byte records beneath
``loaderx.errors``          every exception class
``loaderx.cli``             the command ``loaderx``: info, verify, compact, cat, convert
==========================  ====================================================

The engine is compiled from Go and is loaded at its first use, not when a
module is imported, so importing starts no threads.

Examples
--------
>>> import tempfile, numpy as np
>>> from loaderx.converter import from_numpy
>>> from loaderx.dataset import DenseDataset
>>> path = tempfile.mkdtemp()
>>> from_numpy(path, np.arange(12, dtype=np.float32).reshape(4, 3))
4
>>> with DenseDataset(path) as ds:
...     ds[[3, -4]]
array([[ 9., 10., 11.],
       [ 0.,  1.,  2.]], dtype=float32)
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
