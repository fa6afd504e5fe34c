"""How Sphinx makes the book of the pages that `build.py` has put together."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

project = "Lockstep"
html_title = "Lockstep"
language = "en"
extensions = ["myst_nb"]
nb_execution_mode = "off"  # build.py has run the lessons
nb_ipywidgets_js: dict[str, Any] = {}  # from another host; widgets are frames here
nb_merge_streams = True
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]
exclude_patterns = ["**/checks"]

html_theme = "furo"
html_static_path = ["_static"]
html_extra_path = ["_extra"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-background-primary": "#ffffff"},
    "dark_css_variables": {"color-background-primary": "#15181c"},
}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# what docutils' converter does not know
MATH = {r"\\dots\b": r"\\ldots", r"\\([bB]ig)[lr]?(?=\W)": "", r"\\;": r"\\,"}


def mathml(text: str, block: bool) -> str:
    """A formula that browsers draw by themselves, without a script or a font."""
    for pattern, known in MATH.items():
        text = re.sub(pattern, known, text)
    return tex2mathml(text.strip(), as_block=block)


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(self: Any, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
