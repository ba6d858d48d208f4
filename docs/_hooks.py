"""Docstrings are written for numpydoc, where a role marks a name (:func:`sweep`); a page shows the name alone."""

import re

_ROLE = re.compile(r":(?:py:)?(?:attr|class|const|data|exc|func|meth|mod|obj):(<code>)~?")


def on_page_content(html: str, **_: object) -> str:
    """Drop the roles in front of code."""
    return _ROLE.sub(r"\1", html)
