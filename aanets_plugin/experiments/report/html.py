"""Pieces of HTML. Text is escaped; figures and tables are our own and are not."""

import markdown
from markupsafe import Markup


def table(text: str) -> Markup:
    """Markdown with tables as HTML; it is made by us, so that it has no foreign HTML."""
    return Markup('<div class="wide">{}</div>').format(
        Markup(markdown.markdown(text, extensions=["tables"]))
    )


def figure(content: str, caption: str = "") -> Markup:
    """A figure around markup that is trusted; the caption is escaped."""
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(Markup(content), caption)


def details(title: str, content: Markup) -> Markup:
    """A part of the page that opens when its title is clicked."""
    return Markup("<details><summary>{}</summary>{}</details>").format(title, content)
