"""Folders that are read and written through pyarrow, without a JVM."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from spark_sink.errors import OptionError

_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_DELETES = 16  # files that are deleted at a time


def absolute(address: str) -> str:
    """Return the absolute address of a folder, given as a path or a URI."""
    return address if "://" in address else str(Path(address).resolve())


def is_local(address: str) -> bool:
    """Return whether a folder, given as a path or a URI, is on this machine."""
    return "://" not in address or address.startswith("file://")


class Folder:
    """A folder, given as a path or a URI; the paths of methods are relative to it.

    Raises OptionError if pyarrow does not know the URI.
    """

    def __init__(self, address: str) -> None:
        scheme, separator, rest = address.partition("://")
        uri = (
            f"{_SCHEMES.get(scheme, scheme)}://{rest}"
            if separator
            else Path(absolute(address)).as_uri()
        )
        try:
            files, root = fs.FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:
            raise OptionError(
                f"the folder {address} cannot be read here: use a path, or a URI of s3, gs, hdfs "
                "or file",
                error,
            ) from None
        self.address = address
        """As it was given."""
        self.files = fs.SubTreeFileSystem(root, files)
        """The folder as a file system of its own."""

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        return bool(self.files.get_file_info(path).type == fs.FileType.File)

    def text(self, path: str) -> str | None:
        """Return the text of a file, with U+FFFD for invalid UTF-8; None if there is none."""
        missing = FileNotFoundError, NotADirectoryError
        with suppress(*missing), self.files.open_input_stream(path) as stream:
            return bytes(stream.read()).decode(errors="replace")
        return None

    def create(self, path: str) -> pa.NativeFile:
        """Return a stream that writes a file, whose folder is created."""
        base = self.files.base_fs
        if isinstance(base, fs.LocalFileSystem):  # others make folders themselves
            base.create_dir(str(Path(self.files.base_path, path).parent))
        return self.files.open_output_stream(path)

    def write(self, path: str, text: str) -> None:
        """Write a file, and create its folder.

        Readers see the old file or the new one, never a part of it: object stores guarantee that,
        and a local file is first written under a hidden name.
        """
        parent, slash, name = path.rpartition("/")
        local = isinstance(self.files.base_fs, fs.LocalFileSystem)
        draft = f"{parent}{slash}.{name}-{uuid4().hex}" if local else path
        try:
            with self.create(draft) as stream:
                stream.write(text.encode())
            if local:  # otherwise a power failure leaves an empty file
                with open(f"{self.files.base_path}{draft}", "rb") as written:
                    os.fsync(written.fileno())
                self.files.move(draft, path)
        except OSError:
            if local:
                self.remove(draft)
            raise

    def listed(self, path: str) -> list[fs.FileInfo]:
        """Return what is directly in a folder, which need not exist."""
        return list(self.files.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def remove(self, *paths: str) -> None:
        """Remove files and folders, which need not exist. Raises OSError."""

        def remove(path: str) -> None:
            with suppress(FileNotFoundError):
                try:
                    self.files.delete_file(path)
                except (FileNotFoundError, IsADirectoryError):
                    self.files.delete_dir(path)

        with ThreadPoolExecutor(_DELETES) as pool:
            list(pool.map(remove, set(paths)))
