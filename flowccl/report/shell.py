"""The frame of every page: style, script, Bokeh's JavaScript and the data in one file."""

import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from flowccl.report.figures import bokeh_modules

_TEMPLATE = """{% block head %}<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title | e }}</title>
<link rel="icon" href="data:,">
<style>{{ style }}</style>
<script type="application/json" id="facts">{{ facts }}</script>
<script>{{ script }}</script>
{{ bokeh_css if bokeh_css }}
{{ bokeh_js if bokeh_js }}
</head>{% endblock %}
{% block body %}{% from macros import embed %}<body><main>
{{ top }}
{% for part in parts %}{{ part.before }}
{% for name, label in part.figures %}
<div class="picture" role="img" aria-label="{{ label | e }}">{{ embed(roots[name]) }}</div>
{{ part.between[loop.index0] }}
{% endfor %}{{ part.after }}
{% endfor %}
</main>
{{ plot_script }}
</body>{% endblock %}
"""
"""Blocks of Bokeh's own template."""

_SCRIPTS = ("colours.js", "transfers.js", "timeline.js", "machine.js", "report.js")  # each uses those before it


def page_html(document: Any, title: str, top: str, parts: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Return a page. A part has HTML `before` and `after`, `figures` (name of a root, label), and HTML `between`."""
    bokeh = bokeh_modules()
    from bokeh.resources import INLINE

    assets = resources.files("flowccl.report") / "assets"
    variables = {
        "style": (assets / "report.css").read_text(encoding="utf-8"),
        "script": "\n".join((assets / name).read_text(encoding="utf-8") for name in _SCRIPTS),
        "facts": json.dumps(facts, separators=(",", ":")).replace("</", "<\\/"),
        "top": top,
        "parts": parts,
    }
    return str(bokeh.embed.file_html(document, INLINE, title, template=_TEMPLATE, template_variables=variables))
