"""Ports for servers that tests start."""

import random
import socket

# Below those that the system gives to outgoing connections: one of these could hold the port of a
# server that is away for a while.
_RANGE = range(15_000, 32_000)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on now, and where a server may restart."""
    while True:
        port = random.SystemRandom().choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
