"""Checks that a release says one version everywhere: ``python -m tests.release v0.2.0``."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """Return the version that each file names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = (ROOT / "deploy" / "helm" / "mergerouter" / "Chart.yaml").read_text()
    changes = re.findall(r"(?m)^## (\d[\w.]*)", (ROOT / "CHANGELOG.md").read_text())
    image = re.findall(
        r"image: \S+mergerouter:(\S+)",
        (ROOT / "deploy" / "kubernetes" / "sidecar.yaml").read_text(),
    )
    return {
        "pyproject.toml": str(project["version"]),
        "Chart.yaml, version": re.findall(r"(?m)^version: (\S+)", chart)[0],
        "Chart.yaml, appVersion": re.findall(r"(?m)^appVersion: (\S+)", chart)[0],
        "CHANGELOG.md": changes[0],
        "sidecar.yaml": image[0],
    }


def problems(tag: str) -> list[str]:
    """Return a line for each file that does not name the version of a tag, such as v0.2.0."""
    wanted = tag.removeprefix("v")
    return [
        f"{file}: {found}, not {wanted}" for file, found in versions().items() if found != wanted
    ]


if __name__ == "__main__":
    if lines := problems(sys.argv[1]):
        sys.exit("\n".join(lines))
