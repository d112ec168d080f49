"""Which networks come with the library? Those of the paper's experiments, as plain modules."""

from pzobo.networks.lenet import LeNet

__all__ = ["LeNet"]
