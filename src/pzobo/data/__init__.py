"""Which datasets can be read? MNIST, 20 Newsgroups and scikit-learn's digits, from public files with checksums."""

from pzobo.data.digits import digits
from pzobo.data.lookup import DataError
from pzobo.data.mnist import mnist
from pzobo.data.newsgroups import Newsgroups, Texts, newsgroups
from pzobo.data.optional import MissingExtraError
from pzobo.data.records import Dataset, Split, TrainTest

__all__ = [
    "DataError",
    "Dataset",
    "MissingExtraError",
    "Newsgroups",
    "Split",
    "Texts",
    "TrainTest",
    "digits",
    "mnist",
    "newsgroups",
]
