"""The simulation's command line, as tests run it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.simulation.repeatable import HASH_SEED

ROOT = Path(__file__).parents[2]


def simulate(*arguments: str, seconds: float = 110.0) -> tuple[int, str]:
    """Run ``python -m tests.simulation``; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout
