"""How MongoDB's own programs are started, stopped and disturbed by tests."""

import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Protocol


class Launcher(Protocol):
    """How MongoDB's programs are started and ended."""

    def launch(self, name: str, program: str, *arguments: str) -> None:
        """Start ``program``; ``name`` is for its files and its log."""

    def kill(self, name: str) -> None:
        """End a program at once, as a power cut would."""

    def relaunch(self, name: str) -> None:
        """Start a program that was killed once more, with its files."""

    def pause(self, name: str) -> None:
        """Have a program stand still."""

    def unpause(self, name: str) -> None:
        """Have a program that stands still go on."""

    def stop(self) -> None:
        """End everything that was started, the last first."""


class ServerBinaries:
    """Programs from a folder, as child processes; their data goes to a temporary folder."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="mergerouter-cluster-"))
        self._commands: dict[str, list[str]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, name: str, program: str, *arguments: str) -> None:
        if program == "mongod":
            data = self._folder / name
            data.mkdir()
            arguments = (*arguments, "--dbpath", str(data))
        self._commands[name] = [str(self._binaries / program), *arguments]
        self.relaunch(name)

    def relaunch(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def pause(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGSTOP)

    def unpause(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        processes = [*reversed(self._processes.values())]
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


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

    def pause(self, name: str) -> None:
        self._containers[name].get_wrapped_container().pause()

    def unpause(self, name: str) -> None:
        self._containers[name].get_wrapped_container().unpause()

    def stop(self) -> None:
        for container in reversed(self._containers.values()):
            container.stop()
