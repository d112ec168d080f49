"""Which experiments are there? Those of section 4 of the paper, and reweighting."""

from pzobo.bench.experiments.base import Experiment
from pzobo.bench.experiments.few_shot import FewShotLearning
from pzobo.bench.experiments.hyperparameters import Logistic, Reweight
from pzobo.bench.experiments.lenet import LeNet
from pzobo.bench.experiments.shallow import Linear, Partial, TwoLayer

EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.about.name: kind for kind in (Partial, Linear, TwoLayer, LeNet, FewShotLearning, Logistic, Reweight)
}

__all__ = ["EXPERIMENTS", "Experiment"]
