"""How many operations has an outer step of each few-shot learner? `python -m benchmarks.operations`.

Floating-point operations (a multiply and an add are two) are counted by torch as the steps run, on three small tasks:
they are a S + b Q for S support and Q query images of a task, and the paper's size follows from a and b. The head's
steps are in it and hardly matter. Hours are derived: operations by a rate that is assumed, not measured.
"""

import argparse
from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

import pzobo
from benchmarks.few_shot import learners, noise
from pzobo.data.few_shot import FewShotData
from pzobo.meta import FewShot, Learner, MetaOptNet, Ridge
from pzobo.networks import CNN4, ResNet12

WAYS = 5
CARDS = (("P100", 9.5, 0.4), ("V100", 15.7, 0.4), ("A100, TF32", 156.0, 0.2))
"""Peak TFLOP/s in float32 as the maker gives it, and the share of it that is assumed."""


def problem(backbone: str, shots: int, queries: int) -> FewShot:
    classes = noise(WAYS, shots + queries, 3, 84)
    net = ResNet12 if backbone == "resnet12" else partial(CNN4, filters=int(backbone.removeprefix("cnn4-")))
    return FewShot(FewShotData(classes, classes, classes), net, WAYS, shots, queries, meta_batch=1)


def count(learner: Learner, few_shot: FewShot) -> tuple[float, float]:
    """Operations of the outer loss and its gradient, and the bytes that are kept between the two."""
    objective = learner.start(few_shot)
    objective.outer_loss()  # the first one also looks at what the loss does
    kept: dict[int, int] = {}

    def keep(t: torch.Tensor) -> torch.Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            loss = objective.outer_loss()
        loss.backward()
    return float(counter.get_total_flops()), float(sum(kept.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backbone", choices=["resnet12", "cnn4-32", "cnn4-64"], default="resnet12")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--queries", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4000, help="outer steps; the authors' schedule ends at 3500")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hours = " | ".join(f"hours, {card} ({share:.0%} of {peak:g} TFLOP/s)" for card, peak, share in CARDS)
    print(f"| learner | TFLOP an outer step | GB kept for its gradient | {hours} |")
    print("| --- " * (3 + len(CARDS)) + "|")
    compared = {**learners(30), "MetaOptNet, ridge": MetaOptNet(Ridge())}
    for name, learner in compared.items():
        small, support, query = (count(learner, problem(options.backbone, s, q)) for s, q in ((1, 1), (2, 1), (1, 2)))

        def whole(i: int, small=small, support=support, query=query) -> float:
            more = (options.shots - 1) * (support[i] - small[i]) + (options.queries - 1) * (query[i] - small[i])
            return options.tasks * (small[i] + more)

        tera = whole(0) / 1e12
        spent = " | ".join(f"{options.steps * tera / (peak * share) / 3600:.1f}" for _, peak, share in CARDS)
        # MAML keeps the graph of one task at a time.
        kept = whole(1) / 1e9 / (options.tasks if name == "MAML" else 1)
        print(f"| {name} | {tera:.1f} | {kept:.0f} | {spent} |", flush=True)
    print(f"\npzobo {pzobo.__version__}, torch {torch.__version__}, {options}")


if __name__ == "__main__":
    main()
