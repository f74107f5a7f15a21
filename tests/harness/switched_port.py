"""A port whose connections go to a server that the test chooses, and may exchange."""

import socket
import socketserver
import threading
from contextlib import suppress
from typing import Self

_BLOCK = 64 * 1024


class SwitchedPort:
    """Forwards connections to ``server`` (``host:port``), to nothing while that is None."""

    def __init__(self, server: str | None = None) -> None:
        self.server = server
        self._open: set[socket.socket] = set()
        self._exchanging = threading.Lock()
        switch = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                switch._forward(self.request)

        self._listening = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._listening.daemon_threads = True
        self.address = f"127.0.0.1:{self._listening.server_address[1]}"
        threading.Thread(target=self._listening.serve_forever, daemon=True).start()

    def exchange(self, server: str | None) -> None:
        """Let ``server`` be behind the port from now on; open connections end."""
        with self._exchanging:
            self.server = server
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.shutdown()
        self._listening.server_close()
        self.exchange(None)

    def _forward(self, client: socket.socket) -> None:
        chosen = self.server
        if chosen is None:
            return
        host, _, port = chosen.rpartition(":")
        with socket.create_connection((host, int(port))) as server:
            with self._exchanging:
                if self.server != chosen:
                    return
                self._open |= {client, server}
            try:
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join()
            finally:
                with self._exchanging:
                    self._open -= {client, server}


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(_BLOCK):
            sink.sendall(block)
    for each in (source, sink):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
