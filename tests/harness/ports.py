"""Free ports for servers that tests start."""

import random
import socket

# Below the ephemeral ports, since an outgoing connection could otherwise take the port of a
# stopped server before it restarts.
_RANGE = range(15_000, 32_000)


def free_port() -> int:
    """Return an unused TCP port of 127.0.0.1 at which a server can also be restarted."""
    while True:
        port = random.SystemRandom().choice(_RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
