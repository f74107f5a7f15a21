"""Folders that are read and written without a JVM, through pyarrow."""

from __future__ import annotations

from pathlib import Path

from pyarrow import fs

from spark_sink.errors import OptionError

_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def open_folder(address: str) -> tuple[fs.FileSystem, str]:
    """The file system of a folder, and the folder's path there.

    address: a path, or a URI that both Spark and pyarrow know. Raises OptionError if pyarrow does
    not.
    """
    scheme, found, rest = address.partition("://")
    uri = f"{_SCHEMES.get(scheme, scheme)}://{rest}" if found else Path(address).resolve().as_uri()
    try:
        files, root = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the folder {address} cannot be read here: give a path, or a URI of s3, gs, hdfs or "
            "file",
            error,
        ) from None
    return files, str(root)
