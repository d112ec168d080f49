"""Does Scale multiply features, dense or sparse, as an estimator of scikit-learn?"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.utils.estimator_checks import check_estimator

from pzobo.errors import StructureError
from pzobo.sklearn import Scale

X = np.random.default_rng(0).normal(size=(7, 3))


def test_is_an_estimator() -> None:
    assert {r["status"] for r in check_estimator(Scale(), on_fail="raise")} <= {"passed", "skipped"}


def test_factors() -> None:
    logs = [0.0, 1.0, -2.0]
    found = Scale(logs).fit(X)
    assert np.allclose(found.transform(X), X * np.exp(logs))
    assert np.allclose(found.inverse_transform(found.transform(X)), X)
    thin = found.transform(sparse.csr_array(X))
    assert sparse.issparse(thin)
    assert np.allclose(thin.toarray(), X * np.exp(logs))
    assert np.allclose(found.inverse_transform(thin).toarray(), X)
    assert np.allclose(Scale(0.5).fit_transform(X), X * np.exp(0.5))
    with pytest.raises(StructureError, match=r"shape \(2,\).*3 features"):
        Scale([0.0, 1.0]).fit(X)
