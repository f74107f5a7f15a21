"""A job in a process of its own, which is killed in whole and in part and started again."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from spark_sink.jobs.job_folder import JobFolder
from spark_sink.jobs.job_tables import BRONZE, CURRENT, MESSAGES
from tests.spark.quick_session import QUICK

_END_SECONDS = 120.0
_MOST_STARTS = 40
_WORKERS = b"pyspark.daemon"


class JobProcess:
    """``mergerouter job run``, with the process groups that its starts leave behind.

    Args:
        uri: the router's connection string.
        folder: the job's folder; its log is beside it.
        scope: the arguments of the next start that name the collections.
        options: of the source.
        out: where the tables are, if not in the folder.
        conf: settings of Spark.
        environment: the variables of its process; those of this one if it is left out.
    """

    def __init__(
        self,
        uri: str,
        folder: Path,
        scope: Sequence[str],
        options: dict[str, str],
        out: str | None = None,
        conf: Mapping[str, str] = QUICK,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = JobFolder(out or str(folder), str(folder) if out else "")
        self.log = folder.with_suffix(".log")
        self.starts = 0
        self.ends: list[int] = []
        """The exit statuses of starts that ended by themselves."""
        self.scope = scope
        command = [sys.executable, "-m", "spark_sink.cli", "run", "--uri", uri]
        self._environment = environment
        command += ["--out", out or str(folder), "--trigger", "0 seconds"]
        command += ["--checkpoint", str(folder)] if out else []
        command += [f"--table={name}" for name in (BRONZE, MESSAGES, CURRENT)]
        command.append("--message=prefix=p")
        command += [f"--option={name}={text}" for name, text in options.items()]
        command += [f"--conf={name}={text}" for name, text in conf.items()]
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def committed(self) -> int:
        """The number of the last committed batch; -1 before the first."""
        commits = Path(self.folder.checkpoint.address, "commits").glob("[0-9]*")
        return max((int(file.name) for file in commits), default=-1)

    def keep_running(self) -> None:
        """Start the job unless it runs, as its supervisor does.

        Raises:
            AssertionError: it has ended too often; the message has the end of its log.
        """
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self.ends.append(status)
        assert self.starts < _MOST_STARTS, self.last_output()
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *self.scope],
                cwd=self.log.parent,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pause(self) -> None:
        """Stop driver, JVM and workers, as a virtual machine that stalls."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let them run again."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    @property
    def has_ended(self) -> bool:
        """Whether the last start has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """Kill driver, JVM and workers with SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_END_SECONDS)
            self._process = None

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one of the Python processes in which Spark plans or reads; False if there is none.

        Local Spark has its executors in the driver's JVM: their Python workers are what can be
        killed apart from it.
        """
        workers = [] if self._process is None else _workers_below(self._process.pid)
        if not workers:
            return False
        try:
            os.kill(chance.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def limit_files(self, size: int) -> None:
        """Let no process of the job write a file beyond a number of bytes, as on a full disk."""
        for pid in [] if self._process is None else _below(self._process.pid):
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def memory(self) -> tuple[int, int]:
        """Return the MB that its Pythons have, and those of objects in its JVM that are in use.

        The latter is 0 without `jcmd`.
        """
        python = java = 0
        for pid in [] if self._process is None else _below(self._process.pid):
            with suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if name.startswith("python"):
                    python += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                elif name == "java" and shutil.which("jcmd"):
                    command = ["jcmd", str(pid), "GC.class_histogram"]
                    done = subprocess.run(command, capture_output=True, text=True, check=False)
                    java += int(done.stdout.split()[-1]) if done.returncode == 0 else 0
        return python * resource.getpagesize() >> 20, java >> 20

    def end(self) -> int:
        """Ask for an orderly end with SIGTERM; return the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_END_SECONDS)
        finally:
            self.kill()

    def last_output(self) -> str:
        """Return the end of the job's log."""
        return self.log.read_text(errors="replace")[-4000:]


def _workers_below(pid: int) -> list[int]:
    """Return the Python workers among the descendants of a process, in the order of their ids."""
    found = []
    for child in _below(pid):
        with suppress(OSError):
            if _WORKERS in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return sorted(found)


def _below(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):  # it has ended meanwhile
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found
