"""Starting, stopping and disturbing MongoDB's own programs."""

import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.harness.server_folder import ServerFolder


class ServerBinaries:
    """Runs programs of a folder as child processes; their data is in a ``ServerFolder``."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = ServerFolder()
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, name: str, program: str, *arguments: str) -> None:
        """Start ``program``; its files and its log are called ``name``."""
        folder = self._folder.path
        if program == "mongod":
            data = folder / name
            data.mkdir()
            arguments = (*arguments, "--dbpath", str(data))
        # The file's path also identifies the process as one of this folder.
        arguments = (*arguments, "--pidfilepath", str(folder / f"{name}.pid"))
        self._commands[name] = [str(self._binaries / program), *arguments]
        self.relaunch(name)

    def relaunch(self, name: str) -> None:
        """Restart a killed program with its files."""
        with (self._folder.path / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def kill(self, name: str) -> None:
        """End a program at once, as a power cut would."""
        self._processes[name].kill()
        self._processes[name].wait()

    def running(self, name: str) -> bool:
        """Return whether a launched program has neither ended nor been killed."""
        return self._processes[name].poll() is None

    def pause(self, name: str) -> None:
        """Suspend a program."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def unpause(self, name: str) -> None:
        """Resume a suspended program."""
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all programs; their data is lost."""
        # Their data is discarded, so an orderly shutdown has no benefit.
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._folder.remove()


class Containers:
    """Does the same with a Docker image on the host's network, so that all addresses agree."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._containers: dict[str, Any] = {}

    def launch(self, name: str, program: str, *arguments: str) -> None:
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(self._image)
        container.with_command([program, *arguments]).with_kwargs(network_mode="host")
        container.start()
        self._containers[name] = container

    def kill(self, name: str) -> None:
        self._containers[name].get_wrapped_container().kill()

    def relaunch(self, name: str) -> None:
        self._containers[name].get_wrapped_container().start()

    def running(self, name: str) -> bool:
        container = self._containers[name].get_wrapped_container()
        container.reload()
        return bool(container.status in ("running", "paused"))

    def pause(self, name: str) -> None:
        self._containers[name].get_wrapped_container().pause()

    def unpause(self, name: str) -> None:
        self._containers[name].get_wrapped_container().unpause()

    def stop(self) -> None:
        for container in reversed(self._containers.values()):
            container.stop()


Launcher = ServerBinaries | Containers
