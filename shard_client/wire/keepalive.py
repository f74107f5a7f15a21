"""Probes that find out that a silent peer is gone, and keep the path to one that is not."""

import asyncio
import socket

_OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


def probe_peer(
    transport: asyncio.BaseTransport, *, idle: int = 120, interval: int = 10, times: int = 6
) -> None:
    """Have the kernel probe a silent peer, and end the connection of one that is gone.

    Args:
        transport: the connection; one without a socket (a simulated one) is left alone.
        idle: seconds of silence before the first probe.
        interval: seconds between probes.
        times: probes without an answer that end the connection.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(_OPTIONS, (idle, interval, times), strict=True):
        option = getattr(socket, name, None)  # not every system has them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
