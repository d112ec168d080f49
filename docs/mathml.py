"""How do formulas get into the pages? As MathML, made from TeX when the site is built; no script has to draw them."""

import html
import re

from math_core import LatexToMathML
from mkdocs.exceptions import PluginError

# What pymdownx.arithmatex leaves of a formula: \(...\) in a line, \[...\] on lines of its own.
FORMULA = re.compile(r'(?<=class="arithmatex">)\\(?P<opening>[(\[])(?P<tex>.*?)\\[)\]](?=</(?:span|div)>)', re.S)
CONVERTER = LatexToMathML(fancy_error=False)


def mathml(formula: re.Match[str]) -> str:
    tex = html.unescape(formula["tex"]).strip()
    try:
        return CONVERTER.convert_with_local_state(tex, displaystyle=formula["opening"] == "[")
    except Exception as error:
        raise PluginError(f"a formula cannot be shown: {tex}: {error}") from error


def on_page_content(content: str, **_: object) -> str:
    """A hook of mkdocs, called with the HTML of each page."""
    return FORMULA.sub(mathml, content)
