"""bfloat16, float8 and their kin: the bits are what was written, whether ml_dtypes is installed or not."""

import json
import pickle
import textwrap

import numpy as np
import pytest

from loaderx.collate import Flat, Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, DtypeError

#: Makes a fresh interpreter one without ml_dtypes.
HIDE = """
import sys, json
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ml_dtypes":
            raise ModuleNotFoundError("No module named 'ml_dtypes'", name="ml_dtypes")
sys.meta_path.insert(0, Hide())
import numpy as np
from loaderx.collate import Flat, Pad
from loaderx.converter import from_iterator, from_numpy
from loaderx.dataloader import DataLoader
from loaderx.dataset import DenseDataset, RaggedDataset
from loaderx.errors import ArgumentError, DtypeError
path = sys.argv[1]
"""

NAMES = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
VALUES = [[1.5, -2.0, 0.0], [float("inf"), -0.0, 0.25], [1.0, float("nan"), -1.0], [3.0, 4.0, 5.0]]


def hidden(python, code, *args):
    """Run code where ml_dtypes can't be imported, after the imports of `HIDE`."""
    return python(HIDE + textwrap.dedent(code), *args)


def tensor(name):
    import torch

    return torch.tensor(VALUES).to(getattr(torch, name))


def raw(t):
    """The bytes of a tensor."""
    import torch

    return t.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_tensors_round_trip_with_ml_dtypes(tmp_path, name):
    import ml_dtypes

    t = tensor(name)
    from_numpy(tmp_path / "d", t)
    from_iterator(tmp_path / "r", [t, t[:1]])
    with DenseDataset(tmp_path / "d") as d, RaggedDataset(tmp_path / "r") as r:
        assert d.dtype == np.dtype(getattr(ml_dtypes, name)) and d.dtype_name == name
        assert d[:].tobytes() == r[0].tobytes() == raw(t)
        with DataLoader({"d": d}, batch_size=4, mode=0, output="torch") as loader:
            got = next(loader)["d"]
            assert got.dtype == t.dtype and raw(got) == raw(t)
    # An array of ml_dtypes' own goes into the same store.
    from_iterator(tmp_path / "r", [np.frombuffer(raw(t), getattr(ml_dtypes, name)).reshape(t.shape)])
    with RaggedDataset(tmp_path / "r") as r:
        assert len(r) == 3


def test_tensors_round_trip_without_ml_dtypes(tmp_path, python):
    code = """
        import torch
        from loaderx.torch import IterableLoader, MapDataset
        def raw(t):
            return t.contiguous().view(torch.uint8).numpy().tobytes()
        for name in json.loads(sys.argv[2]):
            t = torch.tensor(json.loads(sys.argv[3])).to(getattr(torch, name))
            p = f"{path}/{name}"
            assert from_numpy(p + "d", t) == 4
            assert from_iterator(p + "r", [t, t[:1]]) == 2
            with DenseDataset(p + "d") as d, RaggedDataset(p + "r") as r:
                streams = {"d": d}
                for workers in (0, 2):
                    with DataLoader(streams, workers, 4, mode=0, output="torch") as loader:
                        got = next(loader)["d"]
                        state = json.dumps(loader.state_dict())
                        assert got.dtype == t.dtype and raw(got) == raw(t)
                        loader.load_state_dict(json.loads(state))
                        assert raw(next(loader)["d"]) == raw(t)
                print(state)
                with IterableLoader(streams, batch_size=4, mode=0) as loader:
                    got = next(iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=1)))["d"]
                    assert got.dtype == t.dtype and raw(got) == raw(next(iter(loader))["d"]) == raw(t)
                assert raw(MapDataset(streams).__getitems__(range(4))["d"]) == raw(t)
                assert raw(MapDataset(streams)[2]["d"]) == raw(t[2])
                for pad in (0, 1.5):
                    ragged = {"p": Pad(r, pad_value=pad), "f": Flat(r)}
                    # What is no dataset of ours makes Python read all streams.
                    class Plain:
                        __len__ = lambda self: 2
                        __getitems__ = lambda self, indices: np.asarray(indices)
                    for extra in ({}, {"x": Plain()}):
                        with DataLoader({**ragged, **extra}, 1, 2, mode=0, output="torch") as loader:
                            batch = next(loader)
                        assert batch["p"].dtype == batch["f"].dtype == t.dtype
                        assert raw(batch["p"][0]) == raw(batch["f"][:4]) == raw(t)
                        assert raw(batch["p"][1, 1:]) == raw(torch.full((3, 3), pad).to(t.dtype))
        """
    out = hidden(python, code, tmp_path, json.dumps(NAMES), json.dumps(VALUES))
    states = [json.loads(line) for line in out.splitlines()]
    for name, state in zip(NAMES, states, strict=True):
        # Written and saved there, read and resumed here.
        with DenseDataset(tmp_path / f"{name}d") as d, DataLoader({"d": d}, 1, 4, mode=0) as loader:
            loader.load_state_dict(state)
            batch = next(loader)["d"]
            assert batch.dtype.name == name and batch.tobytes() == raw(tensor(name))


def test_what_is_told_without_ml_dtypes_and_without_torch(tmp_path, python):
    t = tensor("bfloat16")
    from_numpy(tmp_path / "d", t)
    from_iterator(tmp_path / "r", [t])
    with DenseDataset(tmp_path / "d") as d:
        (tmp_path / "pickle").write_bytes(pickle.dumps(d))
    code = """
        import pickle
        sys.modules["torch"] = None
        def refused(call, *words):
            try:
                call()
            except DtypeError as error:
                assert all(word in str(error) for word in words), error
            else:
                raise AssertionError("not refused")
        ways = "bfloat16", "pip install ml_dtypes", "bits=True"
        d, r = DenseDataset(path + "/d"), RaggedDataset(path + "/r")
        assert len(d) == 4 and d.shape == (4, 3) and d.itemsize == 2 and d.nbytes == 24 and d.ndim == 2
        assert "dtype=bfloat16" in repr(d) and "dtype=bfloat16" in repr(r)
        assert r.lengths().tolist() == [4]
        for read in (lambda: d[0], lambda: d[[0, 1]], lambda: d[:], lambda: d[np.arange(2)], lambda: next(iter(d)),
                     lambda: d.dtype, lambda: d.gather([0], np.zeros((1, 3), np.uint16)), lambda: r[0], lambda: r[[0]],
                     lambda: d.__getitems__([0]), lambda: np.asarray(d)):
            refused(read, *ways)
        refused(lambda: DataLoader({"x": d}), "stream 'x'", *ways)
        refused(lambda: pickle.loads(open(path + "/pickle", "rb").read())[0], *ways)
        refused(lambda: from_iterator(path + "/new", [b"ab"], schema={"dtype": "bfloat17"}), "ml_dtypes")
        with DenseDataset(path + "/d", bits=True) as bits, RaggedDataset(path + "/r", bits=True) as ragged:
            assert bits.dtype == np.uint16 and bits.dtype_name == "bfloat16" and "bits=True" in repr(bits)
            assert pickle.loads(pickle.dumps(bits))[0, 0] == bits[0, 0] == 0x3FC0
            assert bits[:].tobytes() == ragged[0].tobytes()
            with DataLoader({"x": bits}, batch_size=4, mode=0) as loader:
                batch = next(loader)["x"]
            assert batch.dtype == np.uint16
            print(batch.tobytes().hex())
        # Bytes are records of a type that is only named.
        assert from_iterator(path + "/b", [b"abcd"], schema={"dtype": "bfloat16"}) == 1
        print(RaggedDataset(path + "/b").lengths()[0])
    """
    assert hidden(python, code, tmp_path).split() == [raw(t).hex(), "2"]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("<f4", "<u4"), (">f4", ">u4"), ("<f2", "<u2"), ("|i1", "|u1"), ("<M8[ns]", "<u8"), ("|b1", "|u1")],
)
def test_bits_of_any_type_as_wide_as_an_integer(tmp_path, dtype, bits):
    array = np.arange(6).astype(dtype)
    from_numpy(tmp_path / "s", array)
    with DenseDataset(tmp_path / "s", bits=True) as ds:
        assert ds.dtype.str == bits and ds.itemsize == array.itemsize
        assert ds[:].tobytes() == array.tobytes()


def test_bits_of_other_widths_are_refused(tmp_path):
    from_numpy(tmp_path / "s", np.zeros(3, np.complex128))
    with pytest.raises(DtypeError, match="no unsigned integer is as wide as complex128"):
        DenseDataset(tmp_path / "s", bits=True)


def test_bits_and_numbers_do_not_mix(tmp_path):
    import torch

    t = torch.ones(3, dtype=torch.bfloat16)
    with pytest.raises(ArgumentError, match="record 1 is uint16, the records before it are bfloat16"):
        from_iterator(tmp_path / "a", [t, np.ones(3, np.uint16)])
    with pytest.raises(ArgumentError, match="record 1 is bfloat16, the records before it are uint16"):
        from_iterator(tmp_path / "a", [np.ones(3, np.uint16), t])
    from_numpy(tmp_path / "a", t)
    with pytest.raises(ArgumentError, match="can't append"):
        from_numpy(tmp_path / "a", np.ones(3, np.uint16))


def test_tensors_of_other_kinds(tmp_path):
    import torch

    from_numpy(tmp_path / "a", torch.arange(6.0, requires_grad=True).reshape(2, 3).T)
    with DenseDataset(tmp_path / "a") as ds:
        assert ds[:].tolist() == [[0, 3], [1, 4], [2, 5]]
    with pytest.raises(DtypeError, match="no NumPy equivalent"):
        from_numpy(tmp_path / "b", torch.zeros(3).to_sparse())
    with pytest.raises(ArgumentError, match="no axis of records"):
        from_numpy(tmp_path / "b", torch.tensor(1.0))


def test_padding_with_bfloat16(tmp_path):
    t = tensor("bfloat16")
    from_iterator(tmp_path / "r", [t[:1], t])
    with RaggedDataset(tmp_path / "r") as r:
        for output in ("torch", "numpy"):
            with DataLoader({"p": Pad(r, pad_value=1.5), "f": Flat(r)}, batch_size=2, mode=0, output=output) as loader:
                batch = next(loader)
                assert str(batch["p"].dtype).endswith("bfloat16")
                assert set(np.asarray(batch["p"][0, 1:].tolist()).reshape(-1)) == {1.5}
