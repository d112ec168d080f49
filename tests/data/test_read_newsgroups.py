"""Is 20 Newsgroups scikit-learn's, sparse, read only after its checksum, and counted only once?"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import fetch_20newsgroups_vectorized
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.utils import Bunch

import pzobo
from pzobo.data import DataError, newsgroups
from pzobo.data.lookup import Source, read
from pzobo.data.read_newsgroups import PICKLE, unpickle
from pzobo.problems import logistic_ho

MODULE = sys.modules["pzobo.data.read_newsgroups"]  # the package has a function of this name
TEXTS = {"train": ["red apple red", "green apple", "blue sky", "grey sky sky"], "test": ["red sky", "unseen"]}
LABELS = {"train": [0, 0, 1, 1], "test": [1, 0]}


def pickled() -> bytes:
    bunches = {
        part: Bunch(
            data=TEXTS[part],
            target=np.array(LABELS[part]),
            filenames=np.array([str(i) for i in range(len(TEXTS[part]))]),
            target_names=["fruit", "weather"],
        )
        for part in TEXTS
    }
    return zlib.compress(pickle.dumps(bunches))


def archived() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for part, texts in TEXTS.items():
            for i, (text, label) in enumerate(zip(texts, LABELS[part], strict=True)):
                member = tarfile.TarInfo(f"20news-bydate-{part}/{['fruit', 'weather'][label]}/{i}")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode("latin1")))
    return buffer.getvalue()


PKZ, TAR = pickled(), archived()
PKZ_SOURCE = Source("scikit_learn_data/20news-bydate_py3.pkz", hashlib.sha256(PKZ).hexdigest())
TAR_SOURCE = Source("scikit_learn_data/20news-bydate.tar.gz", hashlib.sha256(TAR).hexdigest(), "http://127.0.0.1:9/x")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder, still empty, for six posts."""
    monkeypatch.setattr(MODULE, "PICKLE", PKZ_SOURCE)
    monkeypatch.setattr(MODULE, "ARCHIVE", TAR_SOURCE)
    (tmp_path / "root" / "scikit_learn_data").mkdir(parents=True)
    return tmp_path / "root"


def rows(root: Path | None, **options: bool) -> tuple[list, list]:
    """The training rows of both halves, sorted, each with its label; and those of the test part in order."""
    found = newsgroups(root, **options)
    halves = [
        [*row, label]
        for half in (found.train, found.val)
        for row, label in zip(half.csr.toarray().tolist(), half.labels.tolist(), strict=True)
    ]
    return sorted(halves), found.test.csr.toarray().tolist()


def test_tiny_values_are_scikit_learns(tiny: Path, tmp_path: Path) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    home = tmp_path / "home"
    home.mkdir()
    (home / "20news-bydate_py3.pkz").write_bytes(PKZ)
    theirs = {p: fetch_20newsgroups_vectorized(subset=p, data_home=home, download_if_missing=False) for p in TEXTS}
    train, test = rows(tiny)
    expected = zip(theirs["train"].data.toarray().tolist(), theirs["train"].target.tolist(), strict=True)
    assert train == sorted([*row, label] for row, label in expected)
    assert test == theirs["test"].data.toarray().tolist()
    assert newsgroups(tiny).names == ("fruit", "weather")
    assert newsgroups(tiny).test.labels.tolist() == theirs["test"].target.tolist()


def test_archive_gives_the_same_as_the_pickle(tiny: Path, cache: Path) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    by_pickle = rows(tiny)
    (tiny / PKZ_SOURCE.path).unlink()
    next(cache.iterdir()).unlink()
    (tiny / TAR_SOURCE.path).write_bytes(TAR)
    train, test = rows(tiny)
    assert train == by_pickle[0]
    assert sorted(test) == sorted(by_pickle[1])


def test_counts_are_kept_and_the_data_folder_is_not_written_to(
    tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    first = rows(tiny)
    assert [path.name for path in tiny.rglob("*") if path.is_file()] == ["20news-bydate_py3.pkz"]
    (kept,) = cache.iterdir()
    with np.load(kept, allow_pickle=False) as file:
        assert file["train_shape"].tolist() == [4, 6]
    monkeypatch.setattr(MODULE, "count", None)
    assert rows(tiny) == first
    assert rows(None) == first, "what is kept does without the source"


def test_damaged_counts_are_made_again(tiny: Path, cache: Path) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    first = rows(tiny)
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-50], b"", whole[:400] + b"\0" * 40 + whole[440:]):
        kept.write_bytes(damaged)
        with pytest.warns(UserWarning, match="is made again"):
            assert rows(tiny) == first
        assert kept.read_bytes() != damaged


def test_locked_cache_is_only_slower(tiny: Path, cache: Path) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    first = rows(tiny)
    next(cache.iterdir()).unlink()
    cache.rmdir()
    cache.write_bytes(b"a file where a folder should be")
    with pytest.warns(UserWarning, match="could not be"):
        assert rows(tiny) == first


def test_pickle_with_another_checksum_is_not_loaded(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny / PKZ_SOURCE.path
    path.write_bytes(PKZ + b"!")
    monkeypatch.setattr(pickle, "loads", lambda _: pytest.fail("a pickle was loaded before its checksum was verified"))
    with pytest.raises(DataError, match="is damaged or another file"):
        newsgroups(tiny)
    assert path.read_bytes() == PKZ + b"!"


def test_offline_message_names_both_files(tiny: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        newsgroups(tiny)
    tar = (TAR_SOURCE.path, TAR_SOURCE.sha256, TAR_SOURCE.url)
    for part in (*tar, PKZ_SOURCE.path, PKZ_SOURCE.sha256, str(cache / TAR_SOURCE.path)):
        assert part in str(caught.value)


def test_halves_depend_on_the_seed_and_sparse_is_dense(tiny: Path) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    found = [newsgroups(tiny, seed=seed).train.csr.toarray().tolist() for seed in range(6)]
    assert found[0] == newsgroups(tiny).train.csr.toarray().tolist()
    assert any(half != found[0] for half in found)
    texts = newsgroups(tiny).test
    assert texts.matrix(torch.float64).to_dense().tolist() == texts.csr.toarray().tolist()
    data = newsgroups(tiny).dataset()
    assert data.test.inputs.dtype == torch.float32
    assert torch.equal(data.test.labels, texts.labels)


def test_tfidf_gives_rare_words_more_weight(tiny: Path) -> None:
    (tiny / PKZ_SOURCE.path).write_bytes(PKZ)
    # "red apple red": ln(5 / 2) + 1 for red, in one of four posts, and ln(5 / 3) + 1 for apple, in two.
    red, apple = 2 * (np.log(5 / 2) + 1), np.log(5 / 3) + 1
    expected = np.array([apple, 0, 0, 0, red, 0]) / np.hypot(red, apple)
    assert any(np.allclose(row[:-1], expected) for row in rows(tiny, tfidf=True)[0])


def test_real_newsgroups(real_newsgroups: Path) -> None:
    found = newsgroups(real_newsgroups)
    parts = (found.train, found.val, found.test)
    assert [part.csr.shape for part in parts] == [(5657, 130107), (5657, 130107), (7532, 130107)]
    assert len(found.names) == 20
    assert list(found.names) == sorted(found.names)
    train = torch.cat([found.train.labels, found.val.labels]).bincount().tolist()
    sizes = "480 584 591 590 578 593 585 594 598 597 600 595 591 594 593 599 546 564 465 377"
    assert train == [int(size) for size in sizes.split()]
    sizes = "319 389 394 392 385 395 390 396 398 397 399 396 393 396 394 398 364 376 310 251"
    assert found.test.labels.bincount().tolist() == [int(size) for size in sizes.split()]
    # What fetch_20newsgroups_vectorized of scikit-learn 1.9 gives, whose values were compared with these once.
    assert found.train.csr.nnz + found.val.csr.nnz == 1787565
    lengths = found.val.csr.multiply(found.val.csr).sum(1)
    assert np.allclose(lengths, 1)
    assert found.train.matrix().parts[2].numel() == found.train.csr.nnz
    # The paper's step size and momentum suit the paper's problem.
    problem = logistic_ho("newsgroups", root=real_newsgroups)
    assert problem.x0.shape == problem.y0.shape == (130107, 20)
    argmin = problem.argmin(pzobo.HeavyBall(lr=100, momentum=0.9, steps=10), pzobo.Direct())
    assert problem.outer_loss(problem.x0, problem.y0, problem.val).item() == pytest.approx(np.log(20), rel=1e-5)
    y = argmin(problem.x0, problem.y0, problem.train)
    assert problem.outer_loss(problem.x0, y, problem.val).item() < 2.5
    assert problem.accuracy(problem.x0, y) > 0.4, "chance is 0.05"


def test_real_posts_give_the_published_figures(real_newsgroups: Path) -> None:
    """scikit-learn's user guide: tf-idf of four groups has shape (2034, 34118) and 159.01 words a post."""
    train = unpickle(read(PICKLE, real_newsgroups))["train"]
    groups = ("alt.atheism", "comp.graphics", "sci.space", "talk.religion.misc")
    wanted = {train.target_names.index(group) for group in groups}
    vectors = TfidfVectorizer().fit_transform([t for t, c in zip(train.data, train.target, strict=True) if c in wanted])
    assert vectors.shape == (2034, 34118)
    assert vectors.nnz / 2034 == pytest.approx(159.01327, abs=1e-5)
