"""What is 20 Newsgroups? 18,846 posts as sparse counts of 130,107 words, the same as scikit-learn's."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import tempfile
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pzobo.data.archives import arrays as arrays_of
from pzobo.data.lookup import DataError, Source, cache_folder, download, read_local
from pzobo.data.splits import Dataset, Split
from pzobo.extras import need
from pzobo.files import remove_leftovers, write_atomically
from pzobo.tensors.sparse import SparseMatrix

# scikit-learn's cache, a pickle; and the archive that it is made from, which is the public file.
PICKLE = Source(
    "scikit_learn_data/20news-bydate_py3.pkz", "c00c2c081b7bb4196de51140544de005641e72ab7afa046d6516db285142843f"
)
ARCHIVE = Source(
    "scikit_learn_data/20news-bydate.tar.gz",
    "8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    "https://ndownloader.figshare.com/files/5975967",
)


SHAPES = {"names": 1} | {
    f"{part}_{name}": 1 for part in ("train", "test") for name in ("data", "indices", "indptr", "shape", "labels")
}
"""The arrays of the file in the cache, with their numbers of dimensions."""


@dataclass(frozen=True)
class Texts:
    """Posts as rows of a sparse matrix, and their groups.

    Attributes:
        csr: (n, 130107), a SciPy matrix of float64: a row for each post, a column for each word.
        labels: (n,) of int64: the group of each of the n posts, counted from 0.

    Examples:
        >>> pzobo.data.newsgroups().train.labels.shape        # doctest: +SKIP
        torch.Size([5657])
    """

    csr: Any
    labels: Tensor

    def matrix(self, dtype: torch.dtype = torch.float32) -> SparseMatrix:
        """The same matrix for losses in torch."""
        return SparseMatrix.from_scipy(self.csr, dtype)

    def rows(self, index: Tensor) -> Texts:
        return Texts(self.csr[index.numpy()], self.labels[index])


@dataclass(frozen=True)
class Newsgroups:
    """20 Newsgroups in three parts, as `newsgroups` reads it.

    Attributes:
        train: one half of the training posts, for the inner loss.
        val: the other half, for the outer loss.
        test: the test posts.
        names: of the 20 groups, in the order of the labels.

    Examples:
        >>> len(pzobo.data.newsgroups().names)        # doctest: +SKIP
        20
    """

    train: Texts
    val: Texts
    test: Texts
    names: tuple[str, ...]

    def dataset(self, dtype: torch.dtype = torch.float32) -> Dataset:
        """The same with `SparseMatrix` inputs."""
        return Dataset(*(Split(part.matrix(dtype), part.labels) for part in (self.train, self.val, self.test)))


def unpickle(content: bytes) -> dict[str, Any]:
    """scikit-learn's bunches of the train and test part; only for bytes whose checksum was verified."""
    need("sklearn.utils")
    bunches: dict[str, Any] = pickle.loads(zlib.decompress(content))
    return bunches


def unpack(content: bytes) -> dict[str, Any]:
    """The same from the public archive, a folder for each part and group and a file for each post.

    Its checksum was verified; Python before 3.11.4 has no filter to look at its names once more.
    """
    load_files = need("sklearn.datasets").load_files
    careful: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(folder, **careful)
        return {p: load_files(Path(folder) / f"20news-bydate-{p}", encoding="latin1") for p in ("train", "test")}


def count(bunches: dict[str, Any]) -> dict[str, Any]:
    """Word counts, labels and names as arrays, in the order of `fetch_20newsgroups_vectorized`."""
    np = need("numpy")
    vectorizer = need("sklearn.feature_extraction.text").CountVectorizer(dtype=np.int16)
    arrays = {"names": np.array(bunches["train"].target_names)}
    for part, learn in (("train", vectorizer.fit_transform), ("test", vectorizer.transform)):
        order = np.arange(len(bunches[part].target))
        np.random.RandomState(12).shuffle(order)
        counts = learn([bunches[part].data[i] for i in order]).tocsr()
        arrays |= {f"{part}_{name}": getattr(counts, name) for name in ("data", "indices", "indptr", "shape")}
        arrays[f"{part}_labels"] = bunches[part].target[order].astype(np.int64)
    return arrays


def fetch() -> bytes:
    """The public archive by download."""
    try:
        return download(ARCHIVE)
    except DataError as error:
        instead = f"{PICKLE.path} (sha256 {PICKLE.sha256}) in the same folder does as well."
        raise DataError(f"{str(error).removesuffix('.')}; {instead}") from error


def counts(root: str | os.PathLike[str] | None) -> dict[str, Any]:
    """`count` of the first source that is found, kept in the cache folder as a file without pickles."""
    np = need("numpy")
    cached = cache_folder() / f"newsgroups-counts-{PICKLE.sha256[:8]}.npz"
    pickled = read_local(PICKLE, root)
    archive = read_local(ARCHIVE, root) if pickled is None else None
    try:
        return arrays_of(cached.read_bytes(), str(cached), SHAPES)
    except OSError as error:
        if isinstance(error, DataError) or not isinstance(error, FileNotFoundError):
            warnings.warn(f"{cached} could not be read and is made again.", stacklevel=3)
    arrays = count(unpickle(pickled) if pickled is not None else unpack(archive or fetch()))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    try:
        remove_leftovers(cached.parent)
        write_atomically(cached, buffer.getbuffer())
    except OSError as error:
        warnings.warn(f"{cached} could not be written ({error.strerror}): words are counted each time.", stacklevel=3)
    return arrays


def newsgroups(root: str | os.PathLike[str] | None = None, *, tfidf: bool = False, seed: int = 0) -> Newsgroups:
    """20 Newsgroups "bydate": 11,314 training posts, half of them for validation, and 7,532 test posts.

    The features are those of scikit-learn's `fetch_20newsgroups_vectorized`: word counts, each row scaled to length 1.

    Args:
        root: the folder that has `scikit_learn_data/`; see `docs/data.md` for where else the file is looked for.
        tfidf: weigh the counts by scikit-learn's tf-idf of all training posts before the scaling.
        seed: decides which half of the training posts is the validation part.

    Returns:
        A `Newsgroups` of three parts.

    Raises:
        DataError: the files are not there, or are not the known ones.
        MissingExtraError: scikit-learn is not installed.

    Examples:
        >>> pzobo.data.newsgroups().train.csr.shape        # doctest: +SKIP
        (5657, 130107)
    """
    arrays = counts(root)
    csr_matrix = need("scipy.sparse").csr_matrix
    weigh = need("sklearn.feature_extraction.text").TfidfTransformer(use_idf=tfidf)

    def part(name: str) -> Texts:
        data, indices, indptr = (arrays[f"{name}_{key}"] for key in ("data", "indices", "indptr"))
        csr = csr_matrix((data.astype("float64"), indices, indptr), shape=tuple(arrays[f"{name}_shape"]))
        weighed = weigh.fit_transform(csr) if name == "train" else weigh.transform(csr)
        return Texts(weighed, torch.from_numpy(arrays[f"{name}_labels"]))

    whole, test = part("train"), part("test")
    order = torch.randperm(len(whole.labels), generator=torch.Generator().manual_seed(seed))
    train, val = (whole.rows(half) for half in order.tensor_split(2))
    return Newsgroups(train, val, test, tuple(str(name) for name in arrays["names"]))
