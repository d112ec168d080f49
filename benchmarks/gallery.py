"""What do the examples show? `python -m benchmarks.gallery [NAME ...]` runs them, and writes docs/gallery.md.

Each example is run as it is. What it prints is on the page, and its figure is drawn from its variables. With names,
only those examples run again; the rest of the page stays.
"""

import argparse
import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLES = Path("examples")
PAGE = Path("docs/gallery.md")
FIGURES = Path("docs/figures")
FIRST = ("condensation", "language_sources", "weight_net")
"""What the page begins with."""
NAMES = {"maml": "MAML", "mlp": "MLP"}
"""Words of file names that are written otherwise."""
INTRODUCTION = """# Gallery

Each example is a script of at most 60 lines in `examples/`, with no data to download. It prints the ordinary model
beside its result, and does not hide where that one wins. `python -m benchmarks.gallery` runs them all and writes this
page. Seeds are fixed, and there is one of each: what is shown is that it works, not how often it wins.
[Results](results/README.md) have several seeds.
"""


def curve(*names: str, key: str, x: str = "outer step", y: str = "") -> Callable[[Any, dict[str, Any]], None]:
    """Curves of a list of numbers, or of tuples of numbers, one for each name."""

    def draw(ax: Any, found: dict[str, Any]) -> None:
        values = [float(v) if not isinstance(v, tuple) else v for v in found[key]]
        lines = ax.plot(values)
        for line, name in zip(lines, names, strict=False):
            line.set_label(name)
        ax.set(xlabel=x, ylabel=y)
        if names:
            ax.legend(frameon=False)

    return draw


def bars(pairs: Callable[[dict[str, Any]], dict[str, float]], y: str) -> Callable[[Any, dict[str, Any]], None]:
    """A bar for each name."""

    def draw(ax: Any, found: dict[str, Any]) -> None:
        for i, value in enumerate(pairs(found).values()):
            ax.bar(i, value, width=0.6)
            ax.annotate(f"{value:.3g}", (i, value), (0, 2), textcoords="offset points", ha="center", fontsize=8)
        ax.set_xticks(range(len(pairs(found))), list(pairs(found)), fontsize=8)
        ax.set_ylabel(y)

    return draw


def images(ax: Any, found: dict[str, Any]) -> None:
    """Twenty condensed digits, two rows of ten."""
    picture = found["x"].detach().reshape(2, 10, 8, 8).permute(0, 2, 1, 3).reshape(16, 80)
    ax.imshow(picture, cmap="gray_r", vmin=-0.5, vmax=1.5)
    ax.axis("off")
    ax.figure.set_size_inches(4.6, 1.0)


def federation(ax: Any, found: dict[str, Any]) -> None:
    """The learned weights, clients of one kind side by side."""
    order = sorted(range(found["CLIENTS"]), key=lambda client: client % 3)
    ax.imshow(found["x"].detach().softmax(1)[order][:, order], cmap="gray_r", vmin=0)
    ax.set(xlabel="learns from client", ylabel="client")
    ax.set_xticks(range(len(order)), order, fontsize=8)
    ax.set_yticks(range(len(order)), order, fontsize=8)


def histories(found: dict[str, Any]) -> list[list[Any]]:
    """Those of the two runs of `long_run`."""
    return [found[name].history for name in ("again", "alone")]


DRAW: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "weight_net": curve("weight-net", "ordinary CNN", key="curves", y="test accuracy"),
    "language_sources": bars(lambda found: dict(zip(found["texts"], found["weights"], strict=True)), "learned weight"),
    "condensation": images,
    "augmentation": bars(lambda found: {"as they are": found["plain"], "moved": found["learned"]}, "test accuracy"),
    "hyper_representation": curve(key="losses", y="loss on the other half"),
    "own_algorithm": bars(
        lambda found: (
            {name: accuracy for name, (_, accuracy) in found["found"].items()} | {"ordinary": found["ordinary"]}
        ),
        "test accuracy",
    ),
    "data_reweighting": curve(key="accuracies", y="test accuracy"),
    "black_box": curve(key="losses", y="validation error"),
    "hyperparameter_optimization": bars(
        lambda found: {name: after for name, (_, after) in found["found"].items()}, "validation loss"
    ),
    "federated_weights": federation,
    "lightning_trainer": lambda ax, found: curve(key="losses", y="validation loss")(ax, vars(found["module"])),
    "response_search": bars(lambda found: {n.partition(",")[0]: e for n, e in found["errors"].items()}, "test error"),
    "black_box_cluster": curve(key="losses", y="validation loss"),
    "many_ranks": lambda ax, found: curve(key="loss", y="outer loss")(
        ax, {"loss": [row["outer_loss"] for row in found["found"].history]}
    ),
    "long_run": lambda ax, found: curve("killed and resumed", "left alone", key="both", y="validation loss")(
        ax, {"both": [(a["outer_loss"], b["outer_loss"]) for a, b in zip(*histories(found), strict=True)]}
    ),
    "maml_sines": bars(lambda found: found["found"], "squared error on new waves"),
    "mlp_decays": bars(lambda found: {n: unseen for n, (_, unseen) in found["found"].items()}, "loss on unseen data"),
}
"""How an example's figure is drawn; one without an entry has none."""


def run(name: str) -> str:
    """Run an example in a process of its own; what it printed. Its figure is written there too."""
    command = [sys.executable, "-m", "benchmarks.gallery", "--draw", name]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def draw(name: str) -> None:
    """Run an example here, and draw its figure."""
    import runpy

    import matplotlib as mpl
    from matplotlib.figure import Figure

    path = str(EXAMPLES / f"{name}.py")
    sys.argv = [path]
    found = runpy.run_path(path, run_name="__main__")
    if name in DRAW:
        FIGURES.mkdir(exist_ok=True)
        with mpl.rc_context({"svg.hashsalt": "pzobo", "svg.fonttype": "none", "font.family": "sans-serif"}):
            figure = Figure(figsize=(4.6, 2.6), layout="constrained", facecolor="white")
            ax = figure.subplots()
            ax.spines[["top", "right"]].set_visible(False)
            DRAW[name](ax, found)
            figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None})


def section(name: str, printed: str) -> str:
    """What the page says of an example: its docstring, its figure, what it prints."""
    title, _, rest = (ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or "").partition("\n\n")
    figure = f"\n![{name.replace('_', ' ')}](figures/{name}.svg)\n" if (FIGURES / f"{name}.svg").exists() else ""
    head, _, lead = " ".join(title.split()).partition(": ")
    first = f"**{head.rstrip('.:')}.** {lead[:1].upper()}{lead[1:]}".rstrip()
    more = rest.strip("\n")
    words = [NAMES.get(word, word) for word in name.split("_")]
    return (
        f"## {words[0][:1].upper()}{' '.join(words)[1:]}\n\n<!-- {name} -->\n\n{first}\n\n"
        f"{more}\n{figure}\n"
        f"```text\n{printed.strip()}\n```\n\n`examples/{name}.py`\n"
    )


def sections(page: str) -> dict[str, str]:
    """The sections of the page as it is."""
    found = {}
    for part in page.split("\n## ")[1:]:
        name = part.split("<!-- ", 1)[-1].split(" -->", 1)[0]
        found[name] = f"## {part.rstrip()}\n"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="examples; all by default")
    parser.add_argument("--draw", help="run this one here, and draw its figure")
    options = parser.parse_args()
    if options.draw:
        draw(options.draw)
        return
    present = sorted((path.stem for path in EXAMPLES.glob("*.py")), key=lambda name: (name not in FIRST, name))
    known = sections(PAGE.read_text()) if PAGE.exists() else {}
    for name in options.names or present:
        print(name, flush=True)
        known[name] = section(name, run(name))
        body = "\n".join(known[other] for other in present if other in known)
        PAGE.write_text(f"{INTRODUCTION}\n{body}")


if __name__ == "__main__":
    main()
