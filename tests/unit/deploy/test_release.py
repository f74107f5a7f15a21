"""The release workflow: what can be known without a network."""

import re
from pathlib import Path

import yaml

from tests.release import problems, versions

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / ".github" / "workflows" / "release.yaml"


def test_one_version_is_named_everywhere() -> None:
    version = versions()["pyproject.toml"]
    assert problems(f"v{version}") == []
    assert len(problems("v99.0")) == len(versions())


def test_each_command_is_a_target_or_a_module_that_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    jobs = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert len(commands) >= 4
    for command in commands:
        if target := re.match(r"make (\w+)$", command):
            assert re.search(rf"(?m)^{target[1]}:", makefile), command
        else:
            module = re.match(r"python -m (tests\.\w+) ", command)
            assert module is not None, command
            assert (ROOT / f"{module[1].replace('.', '/')}.py").exists()
