"""The status page: HTML rendered on the server, without resources from elsewhere."""

import secrets
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from router.admin.words import in_bytes, in_rate, in_reason, in_scope, in_wait, in_words


def render_page(view: Mapping[str, Any]) -> tuple[str, str]:
    """Return the page of ``status_view`` and its Content-Security-Policy.

    The policy allows the page's own style and script, requests to this port, and nothing else.
    """
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return _template().render(view=view, nonce=nonce), policy


def sparkline(values: Sequence[float | None], least: float = 1.0) -> str:
    """Return the points of a polyline, 100 wide and 20 high, oldest value on the left.

    Args:
        values: the values; None leaves a gap at the bottom.
        least: the value that at least takes the whole height.
    """
    highest = max([least, *(each for each in values if each is not None)])
    step = 100 / max(1, len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{20 - 19 * (each or 0.0) / highest:.1f}"
        for number, each in enumerate(values)
    )


@cache
def _template() -> Template:
    loader = PackageLoader("router.admin")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["words"] = in_words
    environment.filters["scope"] = in_scope
    environment.filters["rate"] = in_rate
    environment.filters["reason"] = in_reason
    environment.filters["wait"] = in_wait
    environment.filters["spark"] = sparkline
    environment.filters["bytes"] = in_bytes
    return environment.get_template("status.html")
