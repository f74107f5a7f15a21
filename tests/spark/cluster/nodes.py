"""A standalone cluster of Spark: a master, workers and their Pythons, each as on a host of its own.

Every process has a folder and an installation of Spark of its own and a clean environment. The
Python of executors has the packages that docs/on-a-cluster.md names, and nothing else.
"""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import threading
import venv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import distribution
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

from spark_sink.spark_session import find_java

REPOSITORY = Path(__file__).parents[3]
_HOME = Path(pyspark.__file__).parent
_PAGE = REPOSITORY / "docs" / "on-a-cluster.md"
_WAIT = 240.0
_SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.memory": "600m",
    "spark.executor.memory": "500m",
    "spark.executor.extraJavaOptions": _SMALL,
    "spark.driver.extraJavaOptions": f"-Xss16m {_SMALL}",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    # A worker that is lost is noticed after this time.
    "spark.network.timeout": "60s",
}
"""What makes drivers and executors small."""


def command_in_docs(program: str, replaced: Mapping[str, str]) -> list[str]:
    """Return the command of a program on the page, with the variables before it, by `env`.

    Args:
        replaced: what stands there instead of addresses, folders and names of the page.
    """
    text = _PAGE.read_text().replace("\\\n", "")
    [found] = re.findall(rf"^    ((?:[A-Z_]+=\S+ )*{program} .*)$", text, re.MULTILINE)
    return ["env", *shlex.split(_with(found, replaced))]


def query_in_docs(replaced: Mapping[str, str]) -> str:
    """Return the script of the page, as `command_in_docs` does."""
    [found] = re.findall(r"<!-- test: own query -->\n\n((?:    .*\n|\n)+)", _PAGE.read_text())
    return textwrap.dedent(_with(found, replaced))


def _with(text: str, replaced: Mapping[str, str]) -> str:
    for before, after in replaced.items():
        assert before in text, f"{before} is not in: {text}"
        text = text.replace(before, after)
    return text


def packages_in_docs(python: str) -> list[str]:
    """Return what the page has pip install into a Python, such as `executors/bin/pip`."""
    [found] = re.findall(rf"{python}/bin/pip install (.*)", _PAGE.read_text())
    return [Requirement(each.strip("'")).name for each in found.split()]


def make_python(folder: Path, packages: Iterable[str]) -> Path:
    """Make an environment with packages of this one, and those that they need; return its Python.

    They are linked, so nothing is downloaded.
    """
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/*/site-packages")
    left, known = [*packages], set[str]()
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        found = distribution(name)
        for each in {Path(str(path)).parts[0] for path in found.files or ()} - {
            "..",
            "__pycache__",
        }:
            with suppress(FileExistsError):
                (site / each).symlink_to(Path(str(found.locate_file(each))).resolve())
        needed = [Requirement(text) for text in found.requires or ()]
        left += [
            each.name for each in needed if not each.marker or each.marker.evaluate({"extra": ""})
        ]
    return folder / "bin" / "python"


class SparkNodes:
    """The processes; those that drivers start on workers, too.

    Args:
        folder: in which each host has its folder.
        workers: how many, of one core and 1 GB each.
    """

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._java = str(find_java(os.environ))
        self.python = make_python(folder / "executors", packages_in_docs("executors"))
        """The Python of executors."""
        arguments = ["--host", "127.0.0.1", "--port", "0"]
        self.master = self._start("master", *arguments, ready=r"spark://127\.0\.0\.1:\d+")
        """Its address for drivers."""
        self._workers = [f"worker-{number}" for number in range(workers)]
        for name in self._workers:
            self.start_worker(name)

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a host, whose folder has an installation of Spark."""
        host = self._folder / name
        host.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (host / "spark").symlink_to(_HOME)
        return {
            "PATH": f"{host}/spark/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(host),
            "JAVA_HOME": self._java,
            "SPARK_HOME": str(host / "spark"),
            "SPARK_LOCAL_IP": "127.0.0.1",  # of all: they are on one machine
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _SMALL,
        }

    def driver(self, name: str) -> dict[str, str]:
        """Return the variables of a driver on a host, with this process's of an object store."""
        store = {name: text for name, text in os.environ.items() if name.startswith("AWS_")}
        return {**self.environment(name), "PYSPARK_PYTHON": str(self.python), **store}

    def start_worker(self, name: str) -> None:
        """Start a worker, and wait until the master knows it."""
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._folder / name / "work")]
        arguments = ["--host", "127.0.0.1", *size, self.master]
        self._start(name, *arguments, ready="Successfully registered")

    def kill_worker(self, chance: random.Random) -> None:
        """Kill a worker with its executors, and start it again."""
        name = chance.choice(self._workers)
        self._kill(name)
        self.start_worker(name)

    def kill_executor(self, chance: random.Random) -> bool:
        """Kill one of the processes of executors, of Java or Python; False if there is none."""
        found = [pid for name in self._workers for pid in self._processes(name)]
        if not found:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(found), signal.SIGKILL)
        return True

    def has_run(self, name: str) -> bool:
        """Return whether executors were started on a worker."""
        return any((self._folder / name).glob("work/app-*/*"))

    @property
    def workers(self) -> list[str]:
        """The names of the workers."""
        return self._workers

    def close(self) -> None:
        """Kill all processes."""
        for name in self._running:
            self._kill(name)

    def _kill(self, name: str) -> None:
        """Kill a daemon, and the executors that it has started."""
        process = self._running[name]
        process.kill()
        process.wait(_WAIT)
        for pid in self._processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self, name: str) -> list[int]:
        """Return the processes of executors on a worker, by their folders."""
        found, work = [], self._folder / name / "work"
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if Path(os.readlink(entry / "cwd")).is_relative_to(work):
                    found.append(int(entry.name))
        return sorted(found)

    def _start(self, name: str, *arguments: str, ready: str) -> str:
        """Start a daemon; return what `ready` matches in its log."""
        kind = "master.Master" if name == "master" else "worker.Worker"
        command = [str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        process = subprocess.Popen(
            [*command, *arguments, "--webui-port", "0"],
            env=self.environment(name),
            cwd=self._folder / name,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        self._running[name] = process
        guard = threading.Timer(_WAIT, process.kill)
        guard.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(ready, line):
                guard.cancel()
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return found[0]
        raise AssertionError("".join(lines))


@contextmanager
def spark_nodes(folder: Path) -> Iterator[SparkNodes]:
    """Run a standalone cluster in a folder."""
    nodes = SparkNodes(folder)
    try:
        yield nodes
    finally:
        nodes.close()
