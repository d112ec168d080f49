"""How are hyperparameters of scikit-learn's estimators found? By the response that PZOBO measures."""

from pzobo.extras import need

need("sklearn", "sklearn", least=(1, 9))  # one sentence that says how to get it, instead of a traceback

from pzobo.sklearn.scale import Scale  # noqa: E402
from pzobo.sklearn.search_cv import ResponseSearchCV  # noqa: E402
from pzobo.sklearn.space import Linear, Log  # noqa: E402

__all__ = ["Linear", "Log", "ResponseSearchCV", "Scale"]
