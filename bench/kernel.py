"""What the kernel tells of processes: their CPU, memory, children and arguments."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds, user and system, that a process and its children have used so far.

    The figure is the kernel's count for the whole process, in ticks of 10 ms. It includes threads
    and children that have ended.
    """
    ticks = sum(map(int, _statistics(pid)[11:15])) / os.sysconf("SC_CLK_TCK")
    for child in children(pid):
        with contextlib.suppress(OSError):  # it has just ended
            ticks += cpu_seconds(child)
    return ticks


def cpu_of(processes: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the CPU seconds that some processes have used together, by the names of the groups."""
    return {name: sum(map(cpu_seconds, pids)) for name, pids in processes.items()}


def own_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds, user and system, that a process alone has used so far."""
    return sum(map(int, _statistics(pid)[11:13])) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the ids of a process's running children."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            if int(_statistics(entry.name)[1]) == pid:
                pids.append(int(entry.name))
    return pids


def _statistics(pid: int | str) -> list[str]:
    """Return the fields of a process's ``stat`` file after its id and its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def pid_of(program: str, port: int | str) -> int:
    """Return the id of the process that runs ``program`` with ``port`` among its arguments.

    Raises:
        RuntimeError: no such process runs.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(program.encode()) and str(port).encode() in words:
                return int(entry.name)
    raise RuntimeError(f"no {program} on port {port}")


def memory(pid: int, *, peak: bool = False) -> int:
    """Return a process's resident size in bytes, or the largest so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["VmHWM" if peak else "VmRSS"].split()[0]) * 1024


@contextlib.contextmanager
def reserved_core() -> Iterator[set[int]]:
    """Keep this process and the children that it starts in the block off one core; yield that core.

    The measured process runs on the reserved core, so that the scheduler's choice of neighbours
    does not affect it. On a single-core machine all processes share the core.
    """
    cores = os.sched_getaffinity(0)
    reserved = {max(cores)}
    os.sched_setaffinity(0, cores - reserved or cores)
    try:
        yield reserved
    finally:
        os.sched_setaffinity(0, cores)
