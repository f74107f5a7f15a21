"""Folders that are read and written through pyarrow, without a JVM."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

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


def remove_files(address: str, paths: Iterable[str]) -> None:
    """Remove files of a folder, which need not exist, by their paths there. Raises OSError."""
    files, folder = open_folder(address)

    def remove(path: str) -> None:
        with suppress(FileNotFoundError):
            files.delete_file(f"{folder}/{path}")

    with ThreadPoolExecutor(_DELETES) as pool:
        list(pool.map(remove, sorted(set(paths))))


class Folder:
    """A folder, given as a path or a URI; the paths of methods are relative to it.

    Raises OptionError if pyarrow does not know the URI.
    """

    def __init__(self, address: str) -> None:
        files, root = open_folder(address)
        self._files = fs.SubTreeFileSystem(root, files)

    def has(self, path: str) -> bool:
        """Return whether a file exists."""
        return bool(self._files.get_file_info(path).type == fs.FileType.File)

    def text(self, path: str) -> str | None:
        """Return the text of a file, with U+FFFD for invalid UTF-8; None if there is none."""
        if not self.has(path):
            return None
        with self._files.open_input_stream(path) as stream:
            return bytes(stream.read()).decode(errors="replace")

    def write(self, path: str, text: str) -> None:
        """Write a file, and create its folder.

        Readers see the old file or the new one, never a part of it: object stores guarantee that,
        and a local file is first written under a hidden name.
        """
        parent, slash, name = path.rpartition("/")
        files = self._files.base_fs
        local = isinstance(files, fs.LocalFileSystem)
        if local:  # object stores make folders themselves
            files.create_dir(f"{self._files.base_path}{parent}".rstrip("/"))
        draft = f"{parent}{slash}.{name}-{uuid4().hex}" if local else path
        try:
            with self._files.open_output_stream(draft) as stream:
                stream.write(text.encode())
            if local:  # otherwise a power failure leaves an empty file
                with open(f"{self._files.base_path}{draft}", "rb") as written:
                    os.fsync(written.fileno())
                self.move(draft, path)
        except OSError:
            if local:
                self.remove(draft)
            raise

    def listed(self, path: str) -> list[fs.FileInfo]:
        """Return what is directly in a folder, which need not exist."""
        return list(self._files.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def move(self, path: str, to: str) -> None:
        """Move a file or a folder."""
        self._files.move(path, to)

    def remove(self, *paths: str) -> None:
        """Remove files and folders, which need not exist."""
        for path in paths:
            kind = self._files.get_file_info(path).type
            if kind == fs.FileType.File:
                self._files.delete_file(path)
            elif kind == fs.FileType.Directory:
                self._files.delete_dir(path)
