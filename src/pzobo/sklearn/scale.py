"""How does any estimator get a hyperparameter for each feature? A transformer that multiplies features by factors."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from pzobo.errors import StructureError


class Scale(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """X times exp(log_scale), one factor for each feature.

    In front of a kernel machine it makes a length-scale for each feature; in front of a linear model with a penalty a
    penalty for each. Sparse X stays sparse.

    Args:
        log_scale: logarithms of the factors: one number for all features, or one for each.

    Examples:
        >>> from pzobo.sklearn import Scale
        >>> X = torch.ones(2, 3).numpy()
        >>> Scale(log_scale=[0.0, 1.0, -1.0]).fit_transform(X).round(2)
        array([[1.  , 2.72, 0.37],
               [1.  , 2.72, 0.37]], dtype=float32)
    """

    def __init__(self, log_scale: Any = 0.0) -> None:
        self.log_scale = log_scale

    def fit(self, X: Any, y: Any = None) -> Self:
        """Look at how many features there are."""
        X = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=(np.float64, np.float32))
        found = np.shape(self.log_scale)
        if found not in ((), (1,), (X.shape[1],)):
            raise StructureError(
                f"Scale: log_scale has the shape {found}, and X has {X.shape[1]} features: give one number, or one for "
                "each feature."
            )
        self.factors_ = np.exp(np.broadcast_to(np.asarray(self.log_scale, dtype=float), X.shape[1]))
        return self

    def transform(self, X: Any) -> Any:
        """The features times their factors."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=(np.float64, np.float32), reset=False)
        factors = self.factors_.astype(X.dtype)
        return X @ sparse.diags_array(factors, format="csr") if sparse.issparse(X) else X * factors

    def inverse_transform(self, X: Any) -> Any:
        """The features divided by their factors."""
        check_is_fitted(self)
        return X @ sparse.diags_array(1 / self.factors_, format="csr") if sparse.issparse(X) else X / self.factors_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
