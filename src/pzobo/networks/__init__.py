"""Which networks come with the library? Those of the paper's experiments, as plain modules."""

from pzobo.networks.cnn4 import CNN4
from pzobo.networks.episodes import Backbone, TaskNorm
from pzobo.networks.lenet import LeNet
from pzobo.networks.resnet12 import ResNet12

__all__ = ["CNN4", "Backbone", "LeNet", "ResNet12", "TaskNorm"]
