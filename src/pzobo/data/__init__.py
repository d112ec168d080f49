"""Which datasets can be read? MNIST, 20 Newsgroups, Omniglot, miniImageNet and scikit-learn's digits."""

from pzobo.data.digits import digits
from pzobo.data.few_shot import FewShotData, ImageClasses, digits_few_shot
from pzobo.data.lookup import DataError
from pzobo.data.miniimagenet import miniimagenet
from pzobo.data.mnist import mnist
from pzobo.data.newsgroups import Newsgroups, Texts, newsgroups
from pzobo.data.omniglot import omniglot
from pzobo.data.optional import MissingExtraError
from pzobo.data.records import Dataset, Split, TrainTest
from pzobo.data.tabular import tabular

__all__ = [
    "DataError",
    "Dataset",
    "FewShotData",
    "ImageClasses",
    "MissingExtraError",
    "Newsgroups",
    "Split",
    "Texts",
    "TrainTest",
    "digits",
    "digits_few_shot",
    "miniimagenet",
    "mnist",
    "newsgroups",
    "omniglot",
    "tabular",
]
