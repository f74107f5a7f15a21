"""The connection to a server that is not there."""

from __future__ import annotations

import socket

import pytest

from spark_sink.errors import StreamError
from spark_sink.options.stream_options import parse_options
from spark_sink.stream.router_client import RouterClient


@pytest.mark.parametrize("listens", [False, True], ids=["nothing listens", "nothing answers"])
def test_an_unreachable_server_is_reported(listens: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        port = server.getsockname()[1]
        client = RouterClient(parse_options({"uri": f"mongodb://127.0.0.1:{port}"}))
        try:
            with pytest.raises(StreamError) as failure:
                client.require_reachable()
        finally:
            client.close()
    message = str(failure.value)
    assert message.startswith(f"the server at 127.0.0.1:{port} cannot be reached: start it")
    assert ("refused" in message) is not listens


def test_names_that_dns_does_not_know_are_reported() -> None:
    with pytest.raises(StreamError, match="DNS does not tell the servers"):
        RouterClient(parse_options({"uri": "mongodb+srv://cluster0.abcde.invalid/"}))
