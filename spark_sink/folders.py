"""Folders that are read and written through pyarrow, without a JVM."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from spark_sink.errors import OptionError

_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def absolute(address: str) -> str:
    """Return the address of a folder, a path or a URI, with the whole path."""
    return address if "://" in address else str(Path(address).resolve())


def open_folder(address: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a folder, given as a path or a URI, and its path there.

    Raises OptionError if pyarrow does not know the URI.
    """
    scheme, found, rest = address.partition("://")
    uri = f"{_SCHEMES.get(scheme, scheme)}://{rest}" if found else Path(address).resolve().as_uri()
    try:
        files, root = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the folder {address} cannot be read here: use a path, or a URI of s3, gs, hdfs or "
            "file",
            error,
        ) from None
    return files, str(root)
