"""What is known of a table of encoded numbers."""

import dataclasses
from dataclasses import dataclass

__all__ = ["MEASURED", "QuantizedReport", "report_of"]

#: What a bundle says of the encoding: hashes and distances.
MEASURED = ("source_sha256", "decoded_sha256", "max_error", "mean_error", "cosine")


@dataclass(frozen=True)
class QuantizedReport:
    """What `pack_quantized` wrote, and how far it is from the source.

    Attributes
    ----------
    path : str
        The bundle, absolute.
    kind : str
    rows, dim, width : int
        How many rows and columns there are, and the bytes of an encoded row.
    native : bool
        Whether the table is a MEFTNAT1 file; else it is the encoded rows.
    file_bytes : int
        Size of the table.
    plain_bytes, native_bytes : int or None
        Of the table in either form, as far as it was written.
    sha256 : str
        Of the table.
    source_sha256, decoded_sha256 : str
        Of the numbers before and after, as little-endian float32 in the order
        of rows.
    max_error, mean_error : float or None
        Of ``abs(decoded - source)`` over all numbers; None if that is no
        finite number, as when ``fp16`` overflows. Numbers that come back
        as they were, NaN and infinities too, have the error 0.
    cosine : float or None
        Mean of the rows' cosines with their source; 1 for two rows of
        zeros, 0 for one.
    """

    path: str
    kind: str
    rows: int
    dim: int
    width: int
    native: bool
    file_bytes: int
    plain_bytes: int | None
    native_bytes: int | None
    sha256: str
    source_sha256: str
    decoded_sha256: str
    max_error: float | None
    mean_error: float | None
    cosine: float | None


def report_of(path, meta):
    """Return the report that a bundle was described with."""
    table, names = meta["table"], [field.name for field in dataclasses.fields(QuantizedReport)]
    told = {name: meta["quantized"].get(name) for name in names}
    return QuantizedReport(
        **{
            **told,
            "path": path,
            "kind": meta["dtype"],
            "rows": meta["num_embeddings"],
            "dim": meta["embedding_dim"],
            "width": meta["row_bytes"],
            "native": table["backend"] == "native",
            "file_bytes": table["bytes"],
            "sha256": table["sha256"],
        }
    )
