"""The status page: HTML rendered on the server, without resources from elsewhere."""

import secrets
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from router.admin.view import StatusView
from router.admin.words import in_bytes, in_words


def render_page(view: StatusView) -> tuple[str, str]:
    """Return the page and its Content-Security-Policy.

    The policy allows the page's own style and script, requests to this port, and nothing else.
    """
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return _template().render(view=view, nonce=nonce), policy


@cache
def _template() -> Template:
    loader = PackageLoader("router.admin")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["words"] = in_words
    environment.filters["bytes"] = in_bytes
    return environment.get_template("status.html")
