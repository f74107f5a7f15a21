"""TCP keepalive: detects a dead peer and keeps the network path to a silent one open."""

import asyncio
import socket

_OPTIONS = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")


def probe_peer(
    transport: asyncio.BaseTransport, *, idle: int = 120, interval: int = 10, times: int = 6
) -> None:
    """Enable TCP keepalive: the kernel probes a silent peer and drops the connection to a dead one.

    Args:
        transport: the connection; one without a socket (a simulated one) is left unchanged.
        idle: seconds of silence before the first probe.
        interval: seconds between probes.
        times: number of unanswered probes after which the connection ends.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(_OPTIONS, (idle, interval, times), strict=True):
        option = getattr(socket, name, None)  # not every system has them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
