"""A cache of the tests' downloads, outside the repository and kept between runs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FOLDER = "MERGEROUTER_TEST_CACHE"


class DownloadError(Exception):
    """A download failed; the message has the reason."""


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of the cache; fill it if it is new.

    Args:
        name: the folder's name, which includes the version of its content.
        fill: called with an empty folder to put the content into.

    Raises:
        DownloadError: ``fill`` failed; nothing is kept.
    """
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mergerouter-tests"
    cache = Path(os.environ.get(FOLDER) or default)
    folder = cache / name
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        filling = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache))
    except OSError as error:
        raise DownloadError(f"no cache folder: {error}") from error
    try:
        fill(filling)
        if not folder.is_dir():  # another run may have filled it first
            filling.rename(folder)
    finally:
        shutil.rmtree(filling, ignore_errors=True)
    return folder


def run(
    command: Sequence[str], *, folder: Path, timeout: float, env: Mapping[str, str] | None = None
) -> None:
    """Run a program that downloads.

    Args:
        command: the program and its arguments.
        folder: its working directory.
        timeout: seconds after which it is killed.
        env: its environment, by default this process's.

    Raises:
        DownloadError: the program failed or took too long.
    """
    program = " ".join(command[:4])
    try:
        finished = subprocess.run(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(f"{program} … took longer than {timeout:g} s") from None
    except OSError as error:
        raise DownloadError(f"{program} …: {error}") from error
    if finished.returncode != 0:
        said = (finished.stderr or finished.stdout).strip().splitlines() or ["no message"]
        raise DownloadError(f"{program} … failed: {said[-1]}")
