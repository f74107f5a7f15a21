"""The command `mergerouter demo`."""

import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer


def demo(
    seconds: Annotated[float, typer.Option(help="How long to write, in seconds.")] = 20.0,
    rate: Annotated[float, typer.Option(help="Target rate, in operations a second.")] = 400.0,
    keep: Annotated[
        bool, typer.Option(help="Leave all programs running after the verdict.")
    ] = False,
    outage: Annotated[
        bool, typer.Option("--outage", help="A second act: a shard is killed and comes back.")
    ] = False,
    spark: Annotated[bool, typer.Option(help="Run the Spark query.")] = True,
    port: Annotated[int, typer.Option(help="The router's port; 0 picks a free one.")] = 0,
    secure: Annotated[
        bool, typer.Option("--secure", help="With a key file, users, passwords and TLS everywhere.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Save the live view as an SVG file.")] = None,
) -> None:
    """Run the whole system, for about a minute.

    A cluster, the router, a load, a watcher and a Spark job; it ends with a verdict.
    """
    import anyio

    from embedded.demo.ledger import Verdict
    from embedded.demo.processes import ProgramError
    from embedded.demo.sequence import Demo, DemoOptions

    folder = Path(tempfile.mkdtemp(prefix="mergerouter-demo-"))
    options = DemoOptions(
        folder,
        seconds=seconds,
        rate=rate,
        keep=keep,
        outage=outage,
        spark=spark,
        port=port,
        secure=secure,
        picture=picture,
    )
    verdicts: list[Verdict] = []
    try:
        verdicts = anyio.run(Demo(options).run, backend_options={"use_uvloop": True})
    except* Exception as failed:  # noqa: BLE001 - whatever ends it, the cause is one line
        (folder / "demo.log").write_text("".join(traceback.format_exception(failed)))
        for error in _causes(failed):
            name = "" if isinstance(error, ProgramError) else f"{type(error).__name__}: "
            typer.echo(f"no verdict: {name}{error}", err=True)
    good = bool(verdicts) and all(verdict.good for verdict in verdicts)
    if good:
        shutil.rmtree(folder)
    else:
        typer.echo(f"The programs' logs and Spark's files are kept in {folder}")
    raise typer.Exit(0 if good else 1)


def _causes(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _causes(error)
        else:
            yield error
