"""A length-scale for each of 20 features and a penalty: 21 hyperparameters, beside the ordinary model and a grid.

Friedman's function uses 5 of the 20 features. A grid over 21 hyperparameters is out of reach, so it has two.
"""

import warnings

from sklearn.datasets import make_friedman1
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import mean_squared_error
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pzobo.errors import SearchWarning
from pzobo.sklearn import Linear, Log, ResponseSearchCV, Scale

warnings.simplefilter("ignore", SearchWarning)  # 300 rows are few for 21 hyperparameters; the report tells
X, y = make_friedman1(1300, 20, noise=1.0, random_state=0)
y = (y - y.mean()) / y.std()
X, y, X_test, y_test = X[:300], y[:300], X[300:], y[300:]

model = make_pipeline(StandardScaler(), Scale(), KernelRidge(kernel="rbf", gamma=0.05, alpha=0.1))
plain = model.fit(X, y)

grid = GridSearchCV(
    model,
    {"kernelridge__alpha": [1e-3, 1e-2, 0.1, 1.0, 10.0], "kernelridge__gamma": [0.002, 0.005, 0.01, 0.02, 0.05, 0.1]},
    scoring="neg_mean_squared_error",
    cv=5,
).fit(X, y)

search = ResponseSearchCV(
    model,
    {"scale__log_scale": Linear(-5, 5, size=20), "kernelridge__alpha": Log(1e-4, 1e2)},
    cv=5,
    max_fits=400,
    random_state=0,
).fit(X, y, test=(X_test, y_test))

found = {
    "The model as it is": plain,
    "GridSearchCV, 2 hyperparameters": grid,
    "ResponseSearchCV, 21": search,
}
errors = {name: mean_squared_error(y_test, fitted.predict(X_test)) for name, fitted in found.items()}
for name, error in errors.items():
    print(f"{name:34s} test error {error:.3f}")
print(f"\n{search.report_}")
scales = search.best_params_["scale__log_scale"]
print(
    f"\nmean log-scale of the 5 features that matter {scales[:5].mean():.2f}, of the 15 others {scales[5:].mean():.2f}"
)
