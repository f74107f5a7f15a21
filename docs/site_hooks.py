"""Hooks of the documentation site: its start page, linked files, lists and blocks of code."""

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(\.\./([^)#]+)\)")
_FOLDER = "files"
_ITEM = re.compile(r"(?:- |\d+\. )")
_CODE = re.compile(
    r"(?m)(?<=\n\n)(?P<indent>(?: {4})+)(?=\S)(?:.*\n)(?:(?P=indent).*\n|\n(?=(?P=indent)))*"
)
_LANGUAGES = {
    "bash": r"\(?(echo|export|make|mergerouter|nc|openssl|pip|python|source|sudo)\b|[./\w]*bin/",
    "javascript": r"(db|sh|rs)\.|\{resource:",
    "json": r"\{\"|\[\{",
    "yaml": r"(- )?[\w.]+:( |$)",
    "python": r"(from|import|for|with) |[\w.]+( = |\()",
}
"""What the first line of a block of code in each language begins with."""


def on_files(files: Files, config: Any) -> Files:
    """Add the start page, and the files outside docs to which pages link."""
    readme = re.sub(r"\]\((?!docs/|https?:|#)", "](../", (ROOT / "README.md").read_text())
    readme = readme.replace("](docs/", "](").replace("[docs/", "[").replace('="docs/', '="')
    files.append(File.generated(config, "index.md", content=readme))
    pages = files.documentation_pages()
    linked = {path for page in pages for path in _LINK.findall(page.content_string)}
    for path in sorted(linked):
        content = (ROOT / path).read_bytes()
        files.append(File.generated(config, _stored_as(path), content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to files outside docs lead to their copies; translate GitHub's lists and code."""
    linked = _LINK.sub(lambda found: f"]({_stored_as(found[1])})", markdown)
    return _CODE.sub(_fenced, "".join(_indented(linked)))


def _indented(markdown: str) -> Iterator[str]:
    """Yield the lines, those that continue an item of a list indented by four spaces.

    GitHub takes the width of the item's mark, Python's Markdown four spaces.
    """
    width, empty = 0, True
    for line in markdown.splitlines(keepends=True):
        if item := _ITEM.match(line):
            width = item.end()
        elif empty and line.strip() and not line.startswith(" " * (width or 1)):
            width = 0
        elif width and line.startswith(" " * width):
            line = " " * (4 - width) + line
        empty = not line.strip()
        yield line


def _fenced(block: re.Match[str]) -> str:
    """Return a block of code with the name of its language, unless it is the text of a list."""
    indent = block["indent"]
    before = block.string[: block.start()].rstrip("\n").rpartition("\n")[2]
    if len(before) - len(before.lstrip()) == len(indent) or _ITEM.match(before[len(indent) - 4 :]):
        return block[0]
    code = dedent(block[0])
    matches = (name for name, beginning in _LANGUAGES.items() if re.match(beginning, code))
    fenced = f"```{next(matches, 'text')}\n{code}```\n"
    return "".join(f"{indent[4:]}{line}" for line in fenced.splitlines(keepends=True))


def _stored_as(path: str) -> str:
    """Return a file's path in the site; as text where it would become a page."""
    return f"{_FOLDER}/{path}" + (".txt" if path.endswith((".md", ".py")) else "")
