"""The command line: make a table, look at one, check it, measure it.

::

    ngram-store pack rows.npy TABLE --codec zstd --predictor auto
    ngram-store pack rows.f32 BUNDLE --kind int8 --dim 128
    ngram-store info TABLE
    ngram-store cat TABLE ID ID
    ngram-store verify TABLE
    ngram-store bench TABLE

TABLE is a MEFTNAT1 file or a bundle. The exit status is 0 when all is well, 1
when damage was found or the command failed, 2 when it was called wrongly, and
130 after Ctrl-C. Control characters, and bytes that are no text, are shown
escaped. With ``--json`` the one line on standard output is JSON, also for an
error of the command.
"""

import argparse
import dataclasses
import json
import os
import re
import sys
import time

import numpy as np

from loaderx import __version__, _engine
from loaderx._terminal import BAD, OK, execute, is_npy, line, map_npy, plain, prepare, size
from loaderx.errors import CorruptRecordError, DtypeError, StoreExistsError, ZrecordError

from ._arguments import BLOCK_ROWS, CHUNK_ROWS, POLICIES
from ._formats import check_replaceable
from ._identity import check_sha256
from ._kinds import OTHER, dtype_of_kind, kind_name, same_kind
from ._plain import PlainRows
from .bundle import META_FILE, unreplaced
from .quantized import QuantizedRows
from .quantizer import QUANTIZED, pack_quantized, pack_quantized_file
from .rows import NativeRows
from .writer import pack_native

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
    if args.run is _pack:
        _check_options(parser, args)
    run = args.run
    args.run = lambda args: _as_typed(run, args)
    return execute("ngram-store", args, _show)


def _as_typed(run, args):
    """Run a command; its errors name options as they are typed."""
    try:
        return run(args)
    except (ZrecordError, ValueError) as error:
        names = [name for name in vars(args) if "_" in name]
        pattern = rf"(?<![\w./-])({'|'.join([*names, 'overwrite=True'])})(?![\w./-])"
        error.args = tuple(
            re.sub(pattern, lambda found: "--" + found[1].removesuffix("=True").replace("_", "-"), arg)
            if isinstance(arg, str)
            else arg
            for arg in error.args
        )
        raise


def _check_options(parser, args):
    """Refuse options that would be ignored."""
    if args.kind is None:
        for option in ("dim", "native", "chunk_rows"):
            if getattr(args, option) is not None:
                parser.error(f"--{option.replace('_', '-')} goes with --kind")
    elif args.row_bytes is not None:
        parser.error("--row-bytes has no meaning with --kind: --dim tells how many numbers a row has")
    elif args.dtype is not None:
        parser.error("--dtype has no meaning with --kind, which tells what rows consist of")
    if args.level is not None and args.codec == "raw":
        parser.error("--level has no meaning with --codec raw, which does not compress")


def _parser():
    parser = argparse.ArgumentParser(prog="ngram-store", description="Work with tables of rows.")
    parser.add_argument("--version", action="version", version=f"loaderx-go {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run, text):
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=run)
        return sub

    pack = command("pack", _pack, "Write rows as a MEFTNAT1 file, or with --kind as a bundle of quantised rows.")
    pack.add_argument("source", metavar="IN", help="a .npy file, or a file of nothing but rows")
    pack.add_argument("table", metavar="TABLE")
    pack.add_argument("--overwrite", action="store_true", help="replace a table or bundle at TABLE")
    pack.add_argument("--row-bytes", type=_count, help="width of a row; a .npy file tells it")
    pack.add_argument(
        "--dtype",
        type=_kind,
        metavar="DTYPE",
        help="what rows consist of, for the table to record it; a .npy file tells it",
    )
    pack.add_argument(
        "--codec", choices=["zlib", "zstd", "raw"], default="zlib", help="compression of blocks; default: zlib"
    )
    pack.add_argument("--predictor", choices=["none", "xor", "shuffle", "auto"], help="default: none, auto with --kind")
    pack.add_argument("--level", type=_count, help="compression level; default: 6 for zlib, 3 for zstd")
    pack.add_argument(
        "--block-rows",
        type=_count,
        default=BLOCK_ROWS,
        help="rows that are compressed together; default: %(default)s",
    )
    pack.add_argument("--max-block-bytes", type=_count, help="lowers --block-rows")
    pack.add_argument("--deduplicate", action="store_true", help="store equal rows once")
    pack.add_argument("--threads", type=_count, help="how many compress; default: one for each processor")
    pack.add_argument("--kind", choices=list(QUANTIZED), help="encode float32 numbers in this way")
    pack.add_argument("--dim", type=_count, help="numbers of a row, with --kind; a .npy file tells it")
    pack.add_argument(
        "--native",
        choices=["auto", "yes", "no"],
        help="with --kind: write a MEFTNAT1 table, or encoded rows alone; default: auto, which is both, and keeps the "
        "smaller",
    )
    pack.add_argument(
        "--chunk-rows", type=_count, help=f"with --kind: most rows that are encoded at once; default: {CHUNK_ROWS}"
    )

    info = command("info", _info, "Show what a table holds and how much space it takes.")
    info.add_argument("table", metavar="TABLE")

    cat = command("cat", _cat, "Print rows: their numbers, or their bytes if nobody says what they consist of.")
    cat.add_argument("table", metavar="TABLE")
    cat.add_argument("ids", metavar="ID", type=int, nargs="+", help="negative numbers count from the end")
    cat.add_argument("--dtype", metavar="DTYPE", help="what rows consist of; default: as the table or bundle says")

    verify = command("verify", _verify, "Read a whole table and list what is damaged.")
    verify.add_argument("table", metavar="TABLE")

    bench = command("bench", _bench, "Measure look-ups of random rows.")
    bench.add_argument("table", metavar="TABLE")
    bench.add_argument("--ids", type=_count, default=4096, help="rows of a query; default: 4096")
    bench.add_argument("--seconds", type=float, default=1.0, help="for how long; default: 1")
    bench.add_argument("--seed", type=int, default=0, help="of the random rows; default: 0")
    bench.add_argument("--threads", type=_count, help="most threads of a query; default: one for each core")
    bench.add_argument("--cache-bytes", type=int, default=0, help="memory for decoded rows; default: 0, no cache")
    bench.add_argument(
        "--cache-policy",
        choices=list(POLICIES),
        default="blocks",
        help="what the cache keeps, decoded blocks or single rows; default: blocks",
    )
    return parser


def _kind(text):
    try:
        return kind_name(text)
    except DtypeError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("dtype ")) from None


def _count(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _pack(args):
    try:
        array = map_npy(args.source) if is_npy(args.source) else None
    except OSError as error:
        raise _engine.system_error(error, f"read {args.source}") from None
    options = {
        "codec": args.codec,
        "level": args.level,
        "block_rows": args.block_rows,
        "max_block_bytes": args.max_block_bytes,
        "deduplicate": args.deduplicate,
        "threads": args.threads,
    }
    if args.kind is not None:
        return _pack_quantized(args, array, options), OK
    check_replaceable(args.table)
    if os.path.isfile(os.path.join(args.table, META_FILE)):
        raise StoreExistsError(f"{args.table} is a bundle, which --kind writes and replaces; choose another path")
    if os.path.isdir(args.table):
        raise StoreExistsError(f"{args.table} is a directory; choose another path")
    if os.path.lexists(args.table) and not args.overwrite:
        raise StoreExistsError(f"{args.table} exists; --overwrite replaces it")
    source = args.source if array is None else array
    predictor = None if args.predictor == "none" else args.predictor
    report = pack_native(source, args.table, row_bytes=args.row_bytes, dtype=args.dtype, predictor=predictor, **options)
    result = dataclasses.asdict(report)
    del result["sha256"]
    return {"table": args.table, **result, "ratio": round(report.ratio, 4)}, OK


def _pack_quantized(args, array, options):
    options = {
        **options,
        "predictor": {None: "auto", "none": None}.get(args.predictor, args.predictor),
        "native": {"yes": True, "no": False}.get(args.native, "auto"),
        "chunk_rows": args.chunk_rows or CHUNK_ROWS,
        "overwrite": args.overwrite,
    }
    if array is None:
        if args.dim is None:
            raise ValueError(f"--dim is needed: {args.source} does not tell how many numbers a row has")
        report = pack_quantized_file(args.source, args.table, args.dim, args.kind, **options)
    else:
        if args.dim not in (None, *array.shape[1:2]):
            raise ValueError(f"--dim is {args.dim}, and {args.source} has the shape {array.shape}")
        report = pack_quantized(array, args.table, args.kind, **options)
    result = dataclasses.asdict(report)
    del result["path"]
    return {"table": args.table, **result}


def _at(path, work, discard):
    """Return what something returns that is called with the bundle at a path, None for a bare file."""
    # What is no directory is not for read_bundle to refuse.
    return unreplaced(path, work, discard) if os.path.isdir(path) else work(None)


def _reader(path, bundle, **options):
    """Return the reader of a table's bytes."""
    if bundle is None:
        return NativeRows(path, **options)
    if bundle.backend == "native":
        return NativeRows(bundle.table_path, **options)
    return PlainRows(bundle.table_path, bundle.meta["row_bytes"], **options)


def _look(path, work):
    """Return what something returns that is called with the reader of a table's bytes and its bundle."""

    def look(bundle):
        with _reader(path, bundle) as rows:
            return work(rows, bundle)

    return _at(path, look, lambda _result: None)


def _info(args):
    info, bundle = _look(args.table, lambda rows, bundle: (rows.info(), bundle))
    result = {"table": args.table}
    if bundle is not None:
        meta = dict(bundle.meta)
        quantized = meta.pop("quantized", {})
        table = meta.pop("table")
        shown = {key: meta[key] for key in meta if key not in ("format", "version", "row_bytes")}
        result |= {**shown, "backend": table["backend"], "sha256": table["sha256"], **quantized}
    plain = bundle is not None and bundle.backend != "native"
    for key in ("rows", "row_bytes", "file_bytes") if plain else info:
        result[key] = _dtype(bundle, info) if key == "dtype" else info[key]
    return result, OK


def _cat(args):
    def look(rows, bundle):
        count, recorded = len(rows), _dtype(bundle, rows.info())
        dtype = args.dtype or (None if recorded == OTHER else recorded)
        if bundle is not None and _kind_of(dtype) is not None:  # a plain table does not record it
            same_kind(dtype, kind_name(recorded))
        for number in args.ids:
            if not -count <= number < count:
                raise ValueError(f"id {number} of {count} rows in {args.table}")
        ids = [number % count for number in args.ids]
        dim = bundle.meta["embedding_dim"] if bundle is not None and bundle.kind == "quantized" else None
        return ids, dtype, _numbers(rows, ids, dtype, dim)

    ids, dtype, values = _look(args.table, look)
    if args.json:
        found = [{"id": number, "values": row} for number, row in zip(ids, plain(values), strict=True)]
        return {"table": args.table, "dtype": dtype, "rows": found}, OK
    with np.printoptions(threshold=sys.maxsize, linewidth=sys.maxsize, floatmode="unique"):
        for number, row in zip(ids, values, strict=True):
            print(f"{number}: {row}")
    return None, OK


def _kind_of(dtype):
    """Return the kind that a dtype names, None if it is none, as integers are."""
    try:
        return None if dtype is None else kind_name(dtype)
    except DtypeError:
        return None


def _numbers(rows, ids, dtype, dim):
    """Return rows as numbers, as they are stored if NumPy has such."""
    kind = _kind_of(dtype)
    if kind is not None and dtype_of_kind(kind) in (None, "bfloat16"):
        return rows.gather_floats(ids, kind, dim=dim)
    return rows.gather(ids, dtype=dtype)


def _verify(args):
    def look(rows, bundle):
        bad = [{"block": one.block, "error": one.message} for one in rows.verify()]
        info = rows.info()
        return bad if bundle is None else [*bad, *_unfit(bundle, info)], info, bundle

    bad, info, bundle = _look(args.table, look)
    result = {"table": args.table, "rows": info["rows"], "dtype": _dtype(bundle, info), "blocks": info["blocks"]}
    return {**result, "bad": len(bad), "faults": bad}, BAD if bad else OK


def _dtype(bundle, info):
    """Return what rows consist of, as the bundle says, or the table of a bare file; None if it does not."""
    return info["dtype"] if bundle is None else bundle.meta["dtype"]


def _unfit(bundle, info):
    """Find where a table is not the one of its bundle; -1 stands for no block."""
    meta = bundle.meta
    said = meta["num_embeddings"], meta["row_bytes"], meta["table"]["bytes"]
    found = info["rows"], info["row_bytes"], info["file_bytes"]
    if said != found:
        yield {
            "block": -1,
            "error": f"its bundle says {said[0]} rows of {said[1]} bytes in {said[2]}, and there are {found[0]} of "
            f"{found[1]} in {found[2]}",
        }
    if info["dtype"] not in (None, kind_name(meta["dtype"])):
        yield {"block": -1, "error": f"its bundle says {meta['dtype']} rows, and the table has {info['dtype']} ones"}
    try:
        check_sha256(bundle.table_path, bundle.sha256)
    except CorruptRecordError as error:
        yield {"block": -1, "error": str(error)}


def _bench(args):
    options = {"threads": args.threads, "cache_bytes": args.cache_bytes, "cache_policy": args.cache_policy}

    def opened(bundle):
        if bundle is not None and bundle.kind == "quantized":
            return QuantizedRows(args.table, **options), bundle
        return _reader(args.table, bundle, **options), bundle

    rows, bundle = _at(args.table, opened, lambda found: found[0].close())
    with rows:
        if isinstance(rows, QuantizedRows):
            dtype, out = rows.kind, np.empty((args.ids, rows.dim), np.float32)
        else:
            dtype, out = _dtype(bundle, rows.info()), np.empty((args.ids, rows.row_bytes), np.uint8)
        if not len(rows):
            raise ValueError(f"{args.table} has no rows to look up")
        rng = np.random.default_rng(args.seed)
        times = []
        begin = time.perf_counter()
        while not times or time.perf_counter() - begin < args.seconds:
            ids = rng.integers(0, len(rows), args.ids)
            start = time.perf_counter()
            rows.gather_into(ids, out)
            times.append(time.perf_counter() - start)
        counts = rows.stats()
    median = float(np.median(times))
    return {
        "table": args.table,
        "rows": len(rows),
        "dtype": dtype,
        "ids": args.ids,
        "queries": len(times),
        "first_ms": round(times[0] * 1e3, 4),
        "median_ms": round(median * 1e3, 4),
        "least_ms": round(min(times) * 1e3, 4),
        "rows_per_second": round(args.ids / median),
        "bytes_per_second": round(out.nbytes / median),
        "cache_hits": counts["cache_hits"],
        "cache_misses": counts["cache_misses"],
    }, OK


def _show(result, as_json):
    if as_json:
        print(json.dumps(result))
        return
    for one in result.pop("faults", ()):
        named = one["block"] < 0 or one["error"].startswith(f"block {one['block']}")
        print(line(one["error"] if named else f"block {one['block']}: {one['error']}"))
    width = max(map(len, result))
    for key, value in result.items():
        if key == "encodings":
            value = ", ".join(f"{one['blocks']} {one['codec']} {one['predictor']}" for one in value) or "none"
        if (key.endswith("_bytes") or key == "bytes_per_second") and value is not None:
            value = f"{value}  ({size(value)})"
        print(f"{key.replace('_', ' '):{width}}  {line(value)}")
