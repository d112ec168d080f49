"""Which experiments are there? Those of section 4 of the paper but few-shot learning, and reweighting."""

from pzobo.bench.experiments.base import Experiment
from pzobo.bench.experiments.hyperparameters import Logistic, Reweight
from pzobo.bench.experiments.lenet import LeNet
from pzobo.bench.experiments.shallow import Linear, Partial, TwoLayer

EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.about.name: kind for kind in (Partial, Linear, TwoLayer, LeNet, Logistic, Reweight)
}

__all__ = ["EXPERIMENTS", "Experiment"]
