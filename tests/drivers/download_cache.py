"""Where tests keep what they download: outside the repository, kept between runs."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FOLDER = "MERGEROUTER_TEST_CACHE"


class DownloadError(Exception):
    """What is to be downloaded cannot be had; the message says why."""


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of the cache, filled once.

    Args:
        name: the folder's; names what is in it, version included.
        fill: puts the content into the empty folder that it is given.

    Raises:
        DownloadError: ``fill`` could not do it; nothing is kept.
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
        if not folder.is_dir():  # another run may have been quicker
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
        folder: where it runs.
        timeout: seconds after which it is given up.
        env: its environment, ours by default.

    Raises:
        DownloadError: it failed or took too long.
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
