"""How MongoDB's own programs are started, stopped and disturbed by tests."""

import signal
import subprocess
from pathlib import Path
from typing import Any, Protocol

from tests.harness.server_folder import ServerFolder


class Launcher(Protocol):
    """How MongoDB's programs are started and ended."""

    def launch(self, name: str, program: str, *arguments: str) -> None:
        """Start ``program``; ``name`` is for its files and its log."""

    def kill(self, name: str) -> None:
        """End a program at once, as a power cut would."""

    def relaunch(self, name: str) -> None:
        """Start a program that was killed once more, with its files."""

    def running(self, name: str) -> bool:
        """Tell whether a program that was launched has neither ended nor been killed."""

    def pause(self, name: str) -> None:
        """Have a program stand still."""

    def unpause(self, name: str) -> None:
        """Have a program that stands still go on."""

    def stop(self) -> None:
        """End everything that was started; its data is lost."""


class ServerBinaries:
    """Programs from a folder, as child processes; their data goes to a ``ServerFolder``."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = ServerFolder()
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, name: str, program: str, *arguments: str) -> None:
        folder = self._folder.path
        if program == "mongod":
            data = folder / name
            data.mkdir()
            arguments = (*arguments, "--dbpath", str(data))
        # The file's path also marks the process as one of this folder's.
        arguments = (*arguments, "--pidfilepath", str(folder / f"{name}.pid"))
        self._commands[name] = [str(self._binaries / program), *arguments]
        self.relaunch(name)

    def relaunch(self, name: str) -> None:
        with (self._folder.path / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def running(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def pause(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def unpause(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        # Their data is thrown away, so nothing is gained by an orderly shutdown.
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._folder.remove()


class Containers:
    """Programs of a Docker image, on the machine's own network, so that all addresses agree."""

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
