"""How do error and cost of the estimators compare at a glance? `python -m benchmarks.error_figure` draws the README's.

The numbers are those of docs/results/accuracy.md, as recorded. Nothing is measured here.
"""

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

PAGE = Path("docs/results/accuracy.md")
PICTURE = Path("docs/results/figures/error-against-cost.svg")
PROBLEM = "transformer, GD"
SHOWN = {
    "Direct()": (8, 4),
    "Auto()": (0, 9),
    "Unrolled()": (-8, -14),
    "Unrolled(checkpoint=True)": (8, -13),
    'Unrolled(products="forward")': (8, 4),
    'Unrolled(products="difference")': (8, -4),
    "Implicit(FixedPoint(10))": (8, -3),
    "Implicit(Neumann(0.2, 10))": (8, -7),
    "Nudged()": (8, -2),
    "ForwardMode(directions=3, sampler=Orthogonal())": (-1, -15),
    "PZOBO(directions=3, sampler=Orthogonal())": (8, -4),
}
"""One dot for each estimator, and where its name stands, in points."""
COLORS = {"PZOBO": "#D55E00", "Auto": "#0072B2", "Direct": "#000000"}


def rows(page: str, problem: str) -> dict[str, tuple[float, float]]:
    """Error in float32, and time as a multiple of the path alone, of each estimator of a problem's table."""
    section = page.split(f"## {problem}\n", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        name = re.match(r"`([^`]+)`", cells[0])
        if name and len(cells) > 3 and re.fullmatch(r"[\d.e+-]+", cells[1]) and re.fullmatch(r"[\d.]+", cells[-2]):
            found[name[1]] = float(cells[1]), float(cells[-2])
    return found


def picture(found: dict[str, tuple[float, float]]) -> Figure:
    figure = Figure(figsize=(7.2, 3.9), layout="constrained", facecolor="white")
    ax = figure.subplots()
    ax.set(xscale="log", yscale="log", xlim=(0.85, 22), ylim=(2e-8, 20))
    ax.axhspan(2e-8, 1e-2, color="#009E73", alpha=0.07, linewidth=0)
    ax.text(0.9, 1.3e-2, "right to 1 % below this line", fontsize=8, color="#5a626c")
    for name, place in SHOWN.items():
        error, time = found[name]
        color = next((c for start, c in COLORS.items() if name.startswith(start)), "#5a626c")
        ax.plot(time, error, "o", color=color, markersize=7)
        short = name.replace(", sampler=Orthogonal()", "")
        align = "right" if place[0] < 0 else "left"
        ax.annotate(short, (time, error), place, textcoords="offset points", fontsize=8, color=color, ha=align)
    ax.set_xlabel("time of a hypergradient, as a multiple of training alone")
    ax.set_ylabel("relative error")
    ax.set_xticks([1, 2, 3, 5, 10, 20], ["1", "2", "3", "5", "10", "20"])
    ax.set_xticks([], minor=True)
    ax.grid(color="#e6e8eb", linewidth=0.7)
    ax.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pzobo", "font.family": "sans-serif"}):
        picture(rows(PAGE.read_text(), PROBLEM)).savefig(PICTURE, metadata={"Date": None})
    print(PICTURE)


if __name__ == "__main__":
    main()
