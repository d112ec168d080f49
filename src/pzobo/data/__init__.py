"""Which datasets can be read? MNIST, FashionMNIST, 20 Newsgroups, Omniglot, miniImageNet and scikit-learn's digits."""

from pzobo.data.few_shot import FewShotData, ImageClasses, digits_few_shot
from pzobo.data.lookup import DataError
from pzobo.data.read_digits import digits
from pzobo.data.read_miniimagenet import miniimagenet
from pzobo.data.read_mnist import fashion_mnist, mnist
from pzobo.data.read_newsgroups import Newsgroups, Texts, newsgroups
from pzobo.data.read_omniglot import omniglot
from pzobo.data.read_tables import tabular
from pzobo.data.splits import Dataset, Split, TrainTest
from pzobo.errors import MissingExtraError

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
    "fashion_mnist",
    "miniimagenet",
    "mnist",
    "newsgroups",
    "omniglot",
    "tabular",
]
