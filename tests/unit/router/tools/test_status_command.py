"""``mergerouter status``: the page as text."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

from router.tls.handshake import Handshakes
from router.tools.status import status
from shard_client.wire.tls import TlsContexts, TlsFiles
from tests.harness.admin import admin_port, watched_facade
from tests.harness.certificates import Authority


async def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(status)
    runner = CliRunner(env={"COLUMNS": "200"})
    return await asyncio.to_thread(runner.invoke, app, arguments)


async def test_the_text_shows_lanes_streams_and_readiness() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        result = await invoke("--admin", f"http://127.0.0.1:{port}")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].endswith(": ready")
    (north,) = [line for line in lines if line.startswith("north")]
    assert "40 s behind" in north
    assert "1 stream waits for it: reconnecting" in north
    (row,) = [line.split() for line in lines if "ns.coll" in line]
    assert row[:6] == ["3", "shop.orders", "1", "20", "north:", "reconnecting"]


async def test_json_is_the_document_of_the_page() -> None:
    async with watched_facade() as made, admin_port(made) as port:
        result = await invoke("--admin", f"http://127.0.0.1:{port}", "--json")
    assert json.loads(result.output)["streams"] == 0


async def test_the_token_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    async with watched_facade() as made, admin_port(made, "secret") as port:
        address = f"http://127.0.0.1:{port}"
        refused = await invoke("--admin", address)
        accepted = await invoke("--admin", address, "--token-file", str(file))
    assert refused.exit_code == 1
    assert "pass --token-file" in refused.output
    assert accepted.exit_code == 0


async def test_watching_goes_on_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = Mock(side_effect=[None, KeyboardInterrupt])
    monkeypatch.setattr("router.tools.status.time", Mock(sleep=pause))
    result = await invoke("--admin", "http://127.0.0.1:1", "--watch", "1")
    assert pause.call_count == 2, "a router that restarts is watched"
    assert result.output.count("mergerouter status: ") == 2


async def test_the_wrong_scheme_is_reported(authority: Authority) -> None:
    contexts = TlsContexts(TlsFiles(authority.issue("router")))
    handshakes = Handshakes(lambda: contexts.unasked, required=True)
    async with watched_facade() as made, admin_port(made, handshakes=handshakes) as port:
        plain = await invoke("--admin", f"http://127.0.0.1:{port}")
    async with watched_facade() as made, admin_port(made) as port:
        encrypted = await invoke("--admin", f"https://127.0.0.1:{port}")
    assert (plain.exit_code, encrypted.exit_code) == (1, 1)
    assert "https://" in plain.output
    assert "http://" in encrypted.output
