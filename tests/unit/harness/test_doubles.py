"""The guide to the test doubles."""

import re
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "doubles"


def test_the_guide_names_every_module() -> None:
    named = re.findall(r"\]\((\w+\.py)\)", (_FOLDER / "README.md").read_text())
    modules = [path.name for path in _FOLDER.glob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(modules)
