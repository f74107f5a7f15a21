"""Node's MongoDB driver and mongosh, installed by npm into the download cache."""

import hashlib
import shutil
from pathlib import Path

from tests.drivers.download_cache import DownloadError, cached, run

_INSTALL_SECONDS = 120.0


def node_packages(wanted: Path, timeout: float = _INSTALL_SECONDS) -> Path:
    """Return a ``node_modules`` folder with the dependencies of a package.json.

    Args:
        wanted: the package.json.
        timeout: seconds for the installation.

    Raises:
        DownloadError: npm is not available or cannot install the packages.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise DownloadError("node and npm are not installed")

    def install(folder: Path) -> None:
        shutil.copy(wanted, folder)
        run(
            [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"],
            folder=folder,
            timeout=timeout,
        )

    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()[:12]
    return cached(f"node-{digest}", install) / "node_modules"
