"""The command line: look at a store, check it, tidy it up, make one.

::

    loaderx info STORE
    loaderx verify STORE
    loaderx compact STORE
    loaderx cat STORE INDEX
    loaderx convert IN.npy OUT --codec zstd

The exit status is 0 when all is well, 1 when bad records were found (by
``info`` those whose chunk file is missing or too short) or the command failed,
2 when it was called wrongly, and 130 after Ctrl-C. Control characters, and
bytes that are no text, are shown escaped. With ``--json`` the one line on
standard output is JSON, also for an error of the command; numbers that JSON
lacks (NaN, infinities) are null in it, complex ones pairs, dates and durations
text.
"""

import argparse
import json
import math
import sys

import numpy as np

from . import __version__, dtypes
from ._format import codec_tag, format_info
from ._records import BLOCK_RECORDS
from ._schema import read_schema
from ._terminal import BAD, OK, execute, line, map_npy, plain, prepare, size
from .converter import from_numpy
from .errors import ArgumentError, StoreFormatError, StoreNotFoundError, ZrecordError
from .zrecord import Zrecord

__all__ = ["main"]


def main(argv=None):
    """Run a command and return its exit status.

    Parameters
    ----------
    argv : list of str, optional
        Arguments without the program's name; by default those of the process.

    Returns
    -------
    int
    """
    prepare()
    parser = _parser()
    args = parser.parse_args(argv)
    if args.run is _convert:
        _check_options(parser, args)
    return execute("loaderx", args, _show)


def _check_options(parser, args):
    """Refuse options that the codec would ignore."""
    if args.level is not None and args.codec == "raw":
        parser.error("--level has no meaning with --codec raw, which does not compress")
    if args.dict_size is not None and args.codec != "zstd_dict":
        parser.error("--dict-size goes with --codec zstd_dict")


class _Parser(argparse.ArgumentParser):
    """A parser whose epilog may be a function, which is called when the help is shown."""

    def format_help(self):
        if callable(self.epilog):
            self.epilog = self.epilog()
        return super().format_help()


def _parser():
    parser = argparse.ArgumentParser(prog="loaderx", description="Work with record stores.")
    parser.add_argument("--version", action="version", version=f"loaderx-go {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name, run, text):
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=run)
        return sub

    info = command("info", _info, "Show what a store holds and how much space it takes.")
    info.add_argument("store")

    verify = command("verify", _verify, "Read every record and list those that can't be read.")
    verify.add_argument("store")

    compact = command("compact", _compact, "Free the space of deleted records. Nobody else may have the store open.")
    compact.add_argument("store")

    cat = command("cat", _cat, "Write one record's bytes to standard output, or print its values.")
    cat.add_argument("store")
    cat.add_argument("index", type=int, help="negative numbers count from the end")
    cat.add_argument("--text", action="store_true", help="print the values as the store's schema says")

    convert = command("convert", _convert, "Write a .npy array as a dense store, or append it to one.")
    convert.add_argument("source", metavar="IN.npy")
    convert.add_argument("store", metavar="OUT")
    convert.add_argument("--codec", type=_codec, help="compression; default: the store's own, zstd for a new one")
    convert.add_argument("--level", type=int, help="compression level")
    convert.add_argument("--dict-size", type=int, help="largest size of the dictionary in bytes, for zstd_dict")
    convert.add_argument("--no-append", action="store_true", help="fail if there is a store at OUT")
    convert.epilog = lambda: f"Codecs: {', '.join(format_info()['codecs'])}."
    return parser


def _codec(name):
    try:
        codec_tag(name)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def _info(args):
    with Zrecord(args.store, mode="r") as store:
        stats = store.stats()
        schema = _schema(args.store) or {}
        logical = sum(
            int(store.lengths(np.arange(at, min(at + BLOCK_RECORDS, stats["records"]))).sum(dtype=np.int64))
            for at in range(0, stats["records"], BLOCK_RECORDS)
        )
        result = {
            "store": args.store,
            "records": stats["records"],
            **{key: schema[key] for key in ("kind", "dtype", "item_shape") if key in schema},
            "codecs": stats["codecs"],
            **({"append_codec": schema["codec"]} if schema else {}),
            "dictionary": store.has_dict(),
            "record_bytes": logical,
            "live_bytes": stats["live_bytes"],
            "ratio": round(logical / stats["live_bytes"], 3) if stats["live_bytes"] else None,
            "chunk_bytes": stats["chunk_bytes"],
            "reclaimable": stats["reclaimable"],
            "lost": stats["lost"],
        }
        if stats["lost"]:
            lost = f"{stats['lost']} of {stats['records']} records can't be read: a chunk file is missing or too short"
            print(f"loaderx: {line(args.store)}: {lost}", file=sys.stderr)
        return result, BAD if stats["lost"] else OK


def _verify(args):
    with Zrecord(args.store, mode="r") as store:
        count = len(store)
        bad = [{"index": one.index, "error": one.message} for one in store.verify()]
        schema = "none"
        try:
            bad += _unfit(read_schema(args.store), store, count, [one["index"] for one in bad])
            schema = "ok"
        except StoreNotFoundError:
            pass
        except ZrecordError as error:
            schema = str(error)
    result = {"store": args.store, "records": count, "bad": len(bad), "schema": schema, "bad_records": bad}
    return result, BAD if bad or schema not in ("ok", "none") else OK


def _unfit(schema, store, count, known):
    """Find whole records that are no rows of the schema's type and shape, beside the ones `known` to be bad."""
    row = dtypes.from_name(schema["dtype"]).itemsize * math.prod(schema["item_shape"])
    unfit = []
    for start in range(0, count, BLOCK_RECORDS):
        idxs = np.setdiff1d(np.arange(start, min(start + BLOCK_RECORDS, count)), known)
        sizes = store.lengths(idxs).astype(np.int64)
        wrong = sizes != row if schema.get("kind") == "dense" else sizes % max(row, 1) != 0
        for index, found in zip(idxs[wrong].tolist(), sizes[wrong].tolist(), strict=True):
            unfit.append({"index": index, "error": f"has {found} bytes, a row of the schema has {row}"})
    return unfit


def _compact(args):
    with Zrecord(args.store, mode="r+") as store:
        before = store.stats()
        store.compact()
        after = store.stats()
    freed = before["chunk_bytes"] - after["chunk_bytes"]
    return {"store": args.store, "freed": freed, **after}, OK


def _cat(args):
    with Zrecord(args.store, mode="r") as store:
        count = len(store)
        index = args.index + count if args.index < 0 else args.index
        if not 0 <= index < count:
            raise ValueError(f"index {args.index} of {count} records in {args.store}")
        record = np.empty(int(store.lengths([index])[0]), np.uint8)
        store.gather([index], record, [0])
    if not args.json and not args.text:
        sys.stdout.buffer.write(record)
        return None, OK
    schema = _schema(args.store)
    values = record
    if schema is not None:
        values = record.view(dtypes.from_name(schema["dtype"]))
        shape = schema["item_shape"] if schema["kind"] == "dense" else [-1, *schema["item_shape"]]
        values = values.reshape(shape)
    if not args.json:
        with np.printoptions(threshold=sys.maxsize):
            print(values)
        return None, OK
    result = {"index": index, "bytes": record.nbytes, "dtype": str(values.dtype), "shape": list(values.shape)}
    return {**result, "values": plain(values)}, OK


def _convert(args):
    array = map_npy(args.source)
    options = {"codec": args.codec, "level": args.level, "dict_size": args.dict_size}
    count = from_numpy(args.store, array, **options, exist_ok=not args.no_append)
    with Zrecord(args.store, mode="r") as store:
        stats = store.stats()
    return {"store": args.store, "converted": count, "bytes": array.nbytes, **stats}, OK


def _schema(path):
    """Return a store's schema, None when it has none or one that this release can't read."""
    try:
        return read_schema(path)
    except (StoreNotFoundError, StoreFormatError):
        return None


def _show(result, as_json):
    if as_json:
        print(json.dumps(result))
        return
    bad = result.pop("bad_records", ())
    for one in bad:
        print(f"record {one['index']}: {line(one['error'])}")
    width = max(map(len, result))
    for key, value in result.items():
        if key == "codecs":
            value = ", ".join(f"{n} {name}" for name, n in value.items() if n) or "none"
        if key in _BYTES:
            value = f"{value}  ({size(value)})"
        print(f"{key.replace('_', ' '):{width}}  {line(value)}")


_BYTES = {"record_bytes", "live_bytes", "chunk_bytes", "reclaimable", "freed", "bytes"}
