"""``mergerouter status``: the page as text."""

import asyncio
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from router.tools.status import status
from tests.harness.admin import NOW, admin_port, watched_facade
from tests.harness.ports import free_port

_now = partial(datetime.fromtimestamp, NOW, UTC)


async def invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(status)
    runner = CliRunner(env={"COLUMNS": "200"})
    return await asyncio.to_thread(runner.invoke, app, arguments)


async def test_the_text_shows_lanes_streams_and_readiness() -> None:
    async with watched_facade(now=_now) as made, admin_port(made) as port:
        result = await invoke("--admin", f"http://127.0.0.1:{port}")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0].endswith(": ready")
    (north,) = [line for line in lines if line.startswith("north")]
    assert "40 s behind" in north
    assert "holds 1: reconnecting" in north
    (row,) = [line for line in lines if line.startswith("  shop.orders")]
    assert row.split()[1:5] == ["1", "20", "north:", "reconnecting"]


async def test_json_is_the_document_of_the_page() -> None:
    async with watched_facade(now=_now) as made, admin_port(made) as port:
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


async def test_a_router_that_does_not_answer_is_said() -> None:
    result = await invoke("--admin", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 1
    assert "no router answers" in result.output
    assert "--admin-port" in result.output


async def test_only_http_is_asked() -> None:
    result = await invoke("--admin", "file:///etc/passwd")
    assert result.exit_code == 2
