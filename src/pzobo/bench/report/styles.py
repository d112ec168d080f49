"""How does a method look in every plot? Its family gives the colour, its form the dash and the marker."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

# Okabe and Ito's palette, which the colour-blind can tell apart, without its yellow (too pale on white); wine, olive
# and grey are added for what rarely meets the others in one plot.
BLACK, ORANGE, SKY, GREEN, BLUE = "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2"
VERMILION, PURPLE, WINE, OLIVE, GREY = "#D55E00", "#CC79A7", "#882255", "#8A8A2E", "#7F7F7F"

# Lengths of strokes and gaps: plotly, matplotlib and SVG all take them.
SOLID, DASH, DOT, DASHDOT, LONG, LONGDOT = (), (6, 3), (2, 2), (6, 2, 2, 2), (11, 3), (11, 2, 2, 2)
DASHES: tuple[tuple[int, ...], ...] = (SOLID, DASH, DOT, DASHDOT, LONG, LONGDOT)

# Marker names of plotly, with those of matplotlib and a path of SVG around (0, 0).
MARKERS = {
    "circle": ("o", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z"),
    "square": ("s", "M-3.5,-3.5H3.5V3.5H-3.5Z"),
    "diamond": ("D", "M0,-5L5,0L0,5L-5,0Z"),
    "triangle-up": ("^", "M0,-4.5L4.5,3.5H-4.5Z"),
    "triangle-down": ("v", "M0,4.5L4.5,-3.5H-4.5Z"),
    "cross": ("P", "M-1.5,-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z"),
    "star": ("*", "M0,-5L1.5,-1.5L5,-1.5L2,1L3,4.5L0,2.5L-3,4.5L-2,1L-5,-1.5L-1.5,-1.5Z"),
}

# From few to many: dark to light, in the order of viridis, whose pale end is left out.
ORDINAL = ("#440154", "#414487", "#2A788E", "#22A884", "#5CC863", "#8FC93A")


@dataclass(frozen=True)
class Style:
    """A line: colour, strokes and gaps, plotly's marker name, width in pixels."""

    color: str
    dash: tuple[int, ...] = SOLID
    marker: str = "circle"
    width: float = 2.0

    def variant(self, index: int) -> Style:
        """The same colour with other strokes and another marker, for a curve that would look like one before it."""
        dashes, markers = (*DASHES, self.dash), list(MARKERS)
        return replace(
            self,
            dash=dashes[(dashes.index(self.dash) + index) % len(dashes)],
            marker=markers[(markers.index(self.marker) + index) % len(markers)],
        )

    def faint(self, alpha: float = 0.16) -> str:
        """The colour of its band."""
        red, green, blue = (int(self.color[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{alpha})"


def _family(color: str, *names: str, first: int = 0) -> dict[str, Style]:
    markers = list(MARKERS)
    return {
        name: Style(color, DASHES[i % len(DASHES)], markers[i % len(markers)]) for i, name in enumerate(names, first)
    }


STYLES: dict[str, Style] = {
    **_family(VERMILION, "pzobo", "pzobo-paper", "pzobo-authors", "pzobo-s", "pzobo-s-paper", "pzobo-s-authors"),
    **_family(PURPLE, "hozog", first=1),
    **_family(BLUE, "aid-cg", "aid-cg-difference", "aid-cg-s", first=2),
    **_family(SKY, "aid-fp", "aid-fp-difference", "aid-fp-s", first=3),
    **_family(GREEN, "itd-r", "itd-r-difference", first=4),
    **_family(ORANGE, "stocbio"),
    **_family(WINE, "nudged"),
    **_family(OLIVE, "forward", first=1),
    "exact": Style(BLACK, SOLID, "star"),
    "direct": Style(BLACK, (9, 4), "square", 3.5),
    # Few-shot learners meet `direct`, and none of the others above.
    **_family(BLUE, "maml", "fomaml"),
    **_family(VERMILION, "pzobo-x", "pzobo-z"),
    **_family(GREEN, "anil", first=2),
    **_family(SKY, "protonet", first=3),
    **_family(PURPLE, "metaoptnet-rr", "metaoptnet-svm", first=1),
    **_family(ORANGE, "es-maml", first=4),
    **_family(WINE, "unrolled", first=2),
    **_family(OLIVE, "implicit", first=3),
}
ORDER = {name: i for i, name in enumerate(STYLES)}


def style(name: str) -> Style:
    """The style of a method; of a name that is not known, one that is the same every time."""
    own = STYLES.get(name)
    if own is not None:
        return own
    code = zlib.crc32(name.encode())
    colors: Sequence[str] = (BLUE, ORANGE, GREEN, PURPLE, SKY, WINE, OLIVE, GREY)
    return Style(colors[code % 8], DASHES[code // 8 % len(DASHES)], list(MARKERS)[code // 64 % len(MARKERS)])


def ordinal(index: int, count: int) -> Style:
    """The style of the index-th of `count` values of a setting such as N."""
    at = 0 if count < 2 else round(index * (len(ORDINAL) - 1) / (count - 1))
    return Style(ORDINAL[at], DASHES[index % len(DASHES)], list(MARKERS)[index % len(MARKERS)])
