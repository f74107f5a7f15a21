"""Draws the architecture for README.md: ``python -m tests.architecture_picture``."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"


class Colours(NamedTuple):
    """The colours of one picture."""

    text: str
    line: str
    box: str
    router: str
    router_text: str
    quiet: str


LIGHT = Colours("#1f2328", "#59636e", "#f6f8fa", "#0f6e56", "#ffffff", "#59636e")
DARK = Colours("#f0f6fc", "#9198a1", "#151b23", "#1d9e75", "#04120d", "#9198a1")

_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 300" role="img" '
    'font-family="system-ui, sans-serif" font-size="15">'
)


def drawing(colours: Colours) -> str:
    """Return the picture as SVG."""
    return "\n".join((_HEAD, *_parts(colours), "</svg>\n"))


def _parts(colours: Colours) -> Iterator[str]:
    yield (
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colours.line}"/></marker>'
        "</defs>"
    )
    yield from _box(10, 20, 190, 54, "applications", "any MongoDB driver", colours)
    yield from _box(10, 96, 190, 54, "Spark jobs", "Delta tables, exactly once", colours)
    yield from _box(10, 172, 190, 54, "other programs", "feed: lines of JSON", colours)
    yield from _box(310, 72, 190, 102, "mergerouter", "one ordered stream", colours, main=True)
    for number, name in enumerate(("shard A", "shard B", "shard C", "config server")):
        yield from _box(620, 8 + 54 * number, 190, 44, name, "", colours)
        yield _arrow(500, 123, 616, 30 + 54 * number, colours)
    for height in (47, 123, 199):
        yield _arrow(200, height, 306, 123, colours)
    yield from _box(310, 236, 190, 54, "mongos", "reads, writes, transactions", colours)
    yield _arrow(405, 174, 405, 232, colours)
    yield _label(416, 208, "all other commands", colours)
    yield _label(540, 262, "change streams of each shard,", colours)
    yield _label(540, 280, "no-op writes for idle ones", colours)


def _box(
    x: int, y: int, width: int, height: int, name: str, note: str, colours: Colours,
    *, main: bool = False,
) -> Iterator[str]:  # fmt: skip
    fill, text = (colours.router, colours.router_text) if main else (colours.box, colours.text)
    quiet = text if main else colours.quiet
    middle, centre = x + width // 2, y + height // 2
    yield (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
        f'stroke="{colours.line}"/>'
    )
    top = centre - 3 if note else centre + 5
    yield (
        f'<text x="{middle}" y="{top}" text-anchor="middle" font-weight="600" '
        f'fill="{text}">{name}</text>'
    )
    if note:
        yield (
            f'<text x="{middle}" y="{centre + 16}" text-anchor="middle" font-size="13" '
            f'fill="{quiet}">{note}</text>'
        )


def _arrow(x: int, y: int, to_x: int, to_y: int, colours: Colours) -> str:
    return (
        f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{colours.line}" '
        'stroke-width="1.5" marker-end="url(#end)"/>'
    )


def _label(x: int, y: int, text: str, colours: Colours) -> str:
    return f'<text x="{x}" y="{y}" font-size="13" fill="{colours.quiet}">{text}</text>'


if __name__ == "__main__":
    (FOLDER / "architecture-light.svg").write_text(drawing(LIGHT))
    (FOLDER / "architecture-dark.svg").write_text(drawing(DARK))
