"""Wheel and source distribution: equal builds, which start in an empty environment."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.request
import venv
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCES = ("router", "shard_client", "spark_sink", "embedded")
FILES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DAY = 86_400

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("distribution")]


def build(source: Path, out: Path, *kinds: str) -> list[Path]:
    """Build with a fixed SOURCE_DATE_EPOCH; return the files."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *kinds, source],
        check=True,
        capture_output=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
    )
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the source distribution, and the wheel that is built from it."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def digests(files: list[Path]) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_builds_of_equal_sources_are_equal(built: list[Path], tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    for folder in SOURCES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for file in FILES:
        shutil.copy(ROOT / file, copy / file)
    for path in copy.rglob("*"):
        os.utime(path, (DAY, DAY))
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert digests(build(copy, tmp_path / "dist", "--wheel", "--sdist")) == digests(built)


class Installed:
    """An environment of its own, without the variables of this one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)
        self._env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder)}
        # Only pip may see how this machine reaches a package index.
        self._pip_env = {**os.environ, "PYTHONPATH": ""}

    def install(self, *arguments: str | Path) -> None:
        pip = [self.folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check", "--no-compile", *arguments]
        done = subprocess.run(
            pip, env=self._pip_env, cwd=self.folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "bin" / "mergerouter", *arguments],
            env=self._env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.folder / "bin" / "mergerouter", *arguments],
            env=self._env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def installed(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return an environment with the wheel and its dependencies alone."""
    folder = tmp_path_factory.mktemp("installed")
    tried = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
         "--dest", folder, "typing-extensions"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if tried.returncode:
        pytest.skip(f"pip reaches no package index: {tried.stderr.strip()[-200:]}")
    environment = Installed(folder / "venv")
    environment.install(next(file for file in built if file.suffix == ".whl"))
    return environment


def test_the_wheel_brings_all_that_the_commands_need(installed: Installed) -> None:
    assert installed.run("--version").stdout == f"mergerouter {VERSION}\n"
    checked = installed.run("check-config", "--offline", "-f", ROOT / "deploy" / "mergerouter.yaml")
    assert (checked.returncode, checked.stdout) == (0, "ok   settings\n")
    for command in ("serve", "status", "tail"):
        assert installed.run(command, "--help").returncode == 0
    demo = installed.run("demo")
    assert " -m pip install '" in demo.stderr
    assert "'pyspark>=" in demo.stderr


def ready(router: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    assert router.stdout is not None
    for line in router.stdout:
        logged = json.loads(line)
        if logged["msg"] == "Waiting for connections":
            yield logged["attr"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_router_starts_there_and_ends(installed: Installed, workers: str) -> None:
    ports = ("--port", "0", "--admin-port", "0")
    router = installed.start(
        "serve", "--configdb", "none/127.0.0.1:1", "--workers", workers, *ports
    )
    try:
        port = next(ready(router))["adminPort"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
            assert (answer.status, answer.read()) == (200, b"ok\n")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert b"<html" in answer.read()
        router.send_signal(signal.SIGTERM)
        assert router.wait(120) == 0
    finally:
        router.kill()
        router.communicate()


def test_the_source_distribution_installs_too(built: list[Path], installed: Installed) -> None:
    sdist = next(file for file in built if file.name.endswith(".tar.gz"))
    installed.install("--no-deps", "--force-reinstall", sdist)
    assert installed.run("--version").stdout == f"mergerouter {VERSION}\n"


def test_the_extra_has_what_spark_s_arrow_functions_need() -> None:
    """Spark refuses to call them otherwise, at a job's first batch."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = {Requirement(each).name for each in extras["optional-dependencies"]["spark"]}
    needed = {
        requirement.name
        for requirement in map(Requirement, requires("pyspark") or [])
        if requirement.marker is not None and requirement.marker.evaluate({"extra": "sql"})
    }
    assert needed
    assert needed <= given
