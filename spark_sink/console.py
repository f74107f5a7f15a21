"""Lines for the user on stderr; of several jobs in one process, each begins with the job's name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

JOB_NAME: ContextVar[str] = ContextVar("job_name", default="")
"""The name with which the lines of a job begin that runs beside others; empty for a single job."""


def say(text: str) -> None:
    """Print a line for the user on stderr; stdout is for the result of a command."""
    name = JOB_NAME.get()
    print(f"{name}: {text}" if name else text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def lines_of_job(name: str) -> Iterator[None]:
    """Let the lines that the block prints begin with the name of a job, if it is not empty."""
    before = JOB_NAME.set(name)
    try:
        yield
    finally:
        JOB_NAME.reset(before)
