"""Repeatable runs: all randomness and time from the system are seeded instead."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from unittest import mock

import bson.objectid

HASH_SEED = "0"
_SECONDS = 850.0  # a busy machine needs ten times as long as an idle one


def with_fixed_hashes() -> None:
    """Restart this process with fixed string hashes unless it has them."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


@contextmanager
def repeatable(seed: int, wall: Callable[[], float]) -> Iterator[None]:
    """Derive ``random``, the system's random bytes, object ids and the clocks from ``seed``.

    The clock that measures work advances at random, so that a piece of work is divided anywhere.
    """
    source = random.Random(f"system {seed}")
    worked = accumulate(iter(lambda: source.choice((0.0, 1e-6, 1e-4, 1e-3)), None))
    before = random.getstate()
    random.seed(f"module {seed}")
    object_id = bson.objectid.ObjectId
    with (
        mock.patch.object(os, "urandom", source.randbytes),
        mock.patch.object(random, "_urandom", source.randbytes),
        mock.patch.object(time, "time", wall),
        mock.patch.object(time, "perf_counter", worked.__next__),
        mock.patch.object(object_id, "_random", return_value=b"simul"),
        mock.patch.object(object_id, "_inc", 0),
    ):
        try:
            yield
        finally:
            random.setstate(before)


def simulate(*arguments: str) -> tuple[int, str]:
    """Run the command line ``python -m tests.simulation``; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout
