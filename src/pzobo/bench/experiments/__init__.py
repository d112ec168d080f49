"""Which experiments are there? Those of section 4 of the paper, reweighting, and those of the field's benchmark."""

from pzobo.bench.experiments.base import Experiment
from pzobo.bench.experiments.few_shot import FewShotLearning
from pzobo.bench.experiments.hyperparameters import Logistic, Reweight
from pzobo.bench.experiments.lenet import LeNet
from pzobo.bench.experiments.memory import DataCleaning, Quadratics
from pzobo.bench.experiments.shallow import Linear, Partial, TwoLayer
from pzobo.bench.experiments.source_mix import Sources

EXPERIMENTS: dict[str, type[Experiment]] = {
    kind.about.name: kind
    for kind in (
        Partial,
        Linear,
        TwoLayer,
        LeNet,
        FewShotLearning,
        Logistic,
        Reweight,
        DataCleaning,
        Quadratics,
        Sources,
    )
}

__all__ = ["EXPERIMENTS", "Experiment"]
