"""Hooks of the documentation site: README.md is its start page, linked files are part of it."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"\]\(\.\./([^)#]+)\)")
_FOLDER = "files"


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
    """Let links to files outside docs lead to their copies in the site."""
    return _LINK.sub(lambda found: f"]({_stored_as(found[1])})", markdown)


def _stored_as(path: str) -> str:
    """Return a file's path in the site; as text where it would become a page."""
    return f"{_FOLDER}/{path}" + (".txt" if path.endswith((".md", ".py")) else "")
