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
    return "".join(_translated(linked.splitlines(keepends=True)))


def _translated(lines: list[str]) -> Iterator[str]:
    """Yield the lines in Python's Markdown: text of lists indented by four, code with a language.

    GitHub indents the text of an item by the width of its mark, and code by four spaces more.
    """
    width, code, empty = 0, list[str](), True
    for line in [*lines, "<!-- end -->\n"]:
        blank = not line.strip()
        if ((code or empty) and line.startswith(" " * (width + 4))) or (code and blank):
            code.append(line)
        else:
            if code:
                yield from _fenced(code, " " * 4 if width else "")
                code = []
            if item := _ITEM.match(line):
                width = item.end()
            elif empty and not blank and not line.startswith(" " * (width or 1)):
                width = 0
            elif width and line.startswith(" " * width):
                line = " " * (4 - width) + line
            yield line
        empty = blank


def _fenced(block: list[str], indent: str) -> Iterator[str]:
    """Yield a block of code with the name of its language, by its first line."""
    code = dedent("".join(block)).rstrip("\n")
    matches = (name for name, beginning in _LANGUAGES.items() if re.match(beginning, code))
    for line in f"```{next(matches, 'text')}\n{code}\n```\n\n".splitlines():
        yield f"{indent}{line}".rstrip() + "\n"


def _stored_as(path: str) -> str:
    """Return a file's path in the site; as text where it would become a page."""
    return f"{_FOLDER}/{path}" + (".txt" if path.endswith((".md", ".py")) else "")
