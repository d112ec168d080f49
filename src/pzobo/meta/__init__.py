"""How does one learn from few images? Tasks, and learners that `pzobo.fit` trains on them."""

from pzobo.meta.anil import ANIL
from pzobo.meta.es_maml import ESMAML
from pzobo.meta.heads import HeadLearner
from pzobo.meta.learner import Learner, Learning
from pzobo.meta.maml import FOMAML, MAML
from pzobo.meta.metaoptnet import SVM, MetaOptNet, Ridge
from pzobo.meta.problem import FewShot, Model
from pzobo.meta.protonet import ProtoNet
from pzobo.meta.tasks import Episodes, Tasks

__all__ = [
    "ANIL",
    "ESMAML",
    "FOMAML",
    "MAML",
    "SVM",
    "Episodes",
    "FewShot",
    "HeadLearner",
    "Learner",
    "Learning",
    "MetaOptNet",
    "Model",
    "ProtoNet",
    "Ridge",
    "Tasks",
]
