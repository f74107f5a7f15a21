"""Child processes of a benchmark, and the CPU and memory that the kernel counts for them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from statistics import median
from typing import Any, Self

from pymongo import MongoClient

READY = "Waiting for connections"


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


def listening(program: str, port: int | str) -> int:
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


def open_cursors(servers: Sequence[str]) -> int:
    """Return the number of cursors that servers, given by their host strings, have open."""
    count = 0
    for port in map(port_of, servers):
        with MongoClient[dict[str, Any]]("127.0.0.1", int(port), directConnection=True) as client:
            status = client.admin.command("serverStatus")
            count += int(status["metrics"]["cursor"]["open"]["total"])
    return count


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
    kept = {max(cores)}
    os.sched_setaffinity(0, cores - kept or cores)
    try:
        yield kept
    finally:
        os.sched_setaffinity(0, cores)


def spawn(*arguments: str, cores: set[int] | None = None) -> subprocess.Popen[str]:
    """Start a Python program on ``cores`` only; its stdin and stdout are pipes to the caller."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or own)  # the child inherits the affinity
    try:
        return subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    finally:
        os.sched_setaffinity(0, own)


class Program:
    """A running module that prints lines and reads lines from its stdin.

    Leave the context to end the process.

    Args:
        module: the module's dotted name.
        arguments: its command line.
        cores: the cores that it may use; None for those of the caller.
    """

    def __init__(self, module: str, *arguments: str, cores: set[int] | None = None) -> None:
        self._process = spawn("-m", module, *arguments, cores=cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def tell(self) -> None:
        """Send an empty line: the program's signal to go on or to finish."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def has_line(self, seconds: float) -> bool:
        """Wait for output up to some seconds; return whether there is any."""
        assert self._process.stdout is not None
        return bool(select([self._process.stdout], [], [], seconds)[0])

    def line(self) -> str:
        """Wait for the next line and return it. Raises RuntimeError if the program has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a program of the benchmark has ended")
        return line


@contextlib.contextmanager
def started(module: str, *arguments: str) -> Iterator[Program]:
    """Run a program during the block, from when it prints that it is ready."""
    with Program(module, *arguments) as program:
        program.line()
        yield program


def results_of(programs: Sequence[Program]) -> list[dict[str, Any]]:
    """Signal all programs, then return the JSON object that each of them prints."""
    for program in programs:
        program.tell()
    return [json.loads(program.line()) for program in programs]


def flags(**given: Any) -> list[str]:
    """Return a command line with these options; the values of a list follow its name."""
    parts = []
    for name, value in given.items():
        values = value if isinstance(value, list | tuple) else [value]
        parts += [f"--{name.replace('_', '-')}", *map(str, values)] if values else []
    return parts


def run_json(*arguments: str, timeout: float = 900.0) -> dict[str, Any]:
    """Run a Python program to its end and return the last JSON object on a line of its output.

    Raises:
        CalledProcessError: the program fails.
        RuntimeError: it prints nothing.
        TimeoutExpired: the program has not ended after ``timeout`` seconds.
    """
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout, check=True)
    objects = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not objects:
        raise RuntimeError(f"{' '.join(arguments)} has no result")
    result: dict[str, Any] = json.loads(objects[-1])
    return result


def drain(
    ports: list[str],
    events: int,
    start: str,
    *arguments: str,
    cpu_of: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, float]:
    """Drain one stream on each port, all in parallel, until ``events`` events have arrived.

    ``start`` is a cluster time, "SECONDS:INCREMENT"; ``cpu_of`` has process ids by the names of
    their figures: the CPU in µs per event from the streams' opening on. Returns these, ``rate`` in
    events a second, and ``opening``, the time to open the streams in ms.
    """
    wanted = ("--events", str(events), "--start", start, "--cpu-of", json.dumps(cpu_of or {}))
    return run_json("-m", "bench.drain", *ports, *wanted, *arguments)


def medians(results: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over several runs."""
    return {name: median(result[name] for result in results) for name in results[0]}


@dataclass(frozen=True, slots=True)
class ReplayedCluster:
    """Replaying shards and a config server in a process ``pid``: ``events`` on all shards."""

    events: int
    ports: list[str]
    configdb: str
    pid: int


@contextlib.contextmanager
def replayed_cluster(
    shards: int, events: int, size: int, *arguments: str
) -> Iterator[ReplayedCluster]:
    """Run a replayed cluster during the block.

    Args:
        shards: how many shards.
        events: how many events on all shards together; rounded down to a multiple of ``shards``.
        size: bytes of an event.
        arguments: further arguments of ``bench.replaying_cluster``.
    """
    events -= events % shards
    wanted = ("--shards", str(shards), "--events", str(events), "--size", str(size))
    with Program("bench.replaying_cluster", *wanted, *arguments) as program:
        started = json.loads(program.line())
        ports = [port_of(host) for host in started["shards"].values()]
        yield ReplayedCluster(events, ports, started["configdb"], program.pid)


@contextlib.contextmanager
def router(
    servers: str,
    *arguments: str,
    cores: set[int] | None = None,
    flag: str = "--configdb",
    module: str = "router.cli",
) -> Iterator[tuple[int, int]]:
    """Run `mergerouter serve`, or a module like it; yield its port and its process id."""
    command = ("serve", flag, servers, "--port", "0", *arguments)
    with Program(module, *command, cores=cores) as program:
        while READY not in (line := program.line()):
            pass
        yield json.loads(line)["attr"]["port"], program.pid


def port_of(host: str) -> str:
    """Return the port at the end of a host string."""
    return host.rpartition(":")[2]
