"""Copy the latest tables into docs/performance.md: `python -m bench.document [suite...]`.

Each suite's tables replace the text between `<!-- figures: NAME -->` and `<!-- end -->`.
"""

import re
import sys
from pathlib import Path

from bench.report import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def main() -> None:
    """Copy the tables of the suites that the command line names, by default of all."""
    document(sys.argv[1:])


def document(names: list[str]) -> None:
    """Copy the tables of these suites into the page, by default of all that the page has marks for.

    Raises:
        SystemExit: the page has no marks for a suite, or the suite has no stored figures.
    """
    page = PAGE.read_text()
    marked = re.findall(r"<!-- figures: (\w+) -->", page)
    for name in names or marked:
        found = RESULTS / f"{name}.md"
        if name not in marked or not found.exists():
            raise SystemExit(f"no place or no figures for {name!r}")
        tables = found.read_text().partition("\n\n")[2].strip()
        before, begin, rest = page.partition(f"<!-- figures: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}\n{tables}\n\n{end}{after}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
