"""Flame graphs of a working router, sampled by py-spy."""

import contextlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_RATE = 400
"""Samples a second."""


@contextlib.contextmanager
def profiled(pid: int, path: Path | None) -> Iterator[None]:
    """Sample process ``pid`` during the block and write a flame graph to ``path``.

    Does nothing if ``path`` is None. The sampler stops the process for each sample, so discard the
    figures of a profiled run.

    Raises:
        RuntimeError: py-spy is not installed, or lacks the permission to inspect the process.
    """
    if path is None:
        yield
        return
    beside = Path(sys.executable).parent / "py-spy"
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if program is None:
        raise RuntimeError("PROFILE=1 needs py-spy: pip install py-spy")
    sampler = subprocess.Popen(
        [
            program, "record", "--pid", str(pid), "--rate", str(_RATE), "--threads",
            "--duration", "600", "--format", "flamegraph", "--output", str(path),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    time.sleep(1.0)  # py-spy does not report when it has started
    try:
        yield
    finally:
        sampler.send_signal(signal.SIGINT)
        _, said = sampler.communicate(timeout=60)
    if sampler.returncode or not path.exists():
        raise RuntimeError(f"py-spy failed: {said.strip()}")
