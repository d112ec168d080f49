"""Many fits of scikit-learn side by side, on a Dask cluster: a support vector machine with a scale for each feature.

`BlackBox(fn, jobs=-1)` hands its perturbed calls to joblib. Inside of `joblib.parallel_config` they run wherever that
says: here on a cluster of two local processes; on a real one, give `Client` the address of its scheduler. The bits are
those of one process.
"""

import joblib
import torch
from dask.distributed import Client, LocalCluster
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import pzobo

X, t = load_breast_cancer(return_X_y=True)
X = StandardScaler().fit_transform(X)
train, val = slice(0, 300), slice(300, 569)


def fit(x, y0, batch):
    """Decision values on the validation set."""
    X, t = batch
    scaled = X * x.exp().numpy(force=True)
    return SVC(gamma=0.02).fit(scaled[train], t[train]).decision_function(scaled[val])


def tune(jobs, steps=3):
    """A few steps along the hypergradient of the logistic loss, from Q = p = 30 fits each."""
    torch.manual_seed(0)
    box, jacobian = pzobo.BlackBox(fit, jobs=jobs), pzobo.PZOBO(mu=0.05, directions=30, sampler=pzobo.Orthogonal())
    argmin = pzobo.Argmin(None, solver=box, jacobian=jacobian, audit=False)
    x = torch.zeros(30, dtype=torch.float64, requires_grad=True)
    sign, losses = torch.tensor(2.0 * t[val] - 1), []
    for _ in range(steps):
        y = argmin(x, torch.zeros_like(sign), (X, t))
        loss = torch.nn.functional.softplus(-2 * sign * y).mean()
        losses.append(loss.item())
        (slope,) = torch.autograd.grad(loss, x)
        x = (x.detach() - 10.0 * slope).requires_grad_()
    return x, losses


if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster), joblib.parallel_config(backend="dask"):
        x, losses = tune(jobs=-1)
    same = torch.equal(x, tune(jobs=1)[0])
    print(f"validation loss {losses[0]:.4f} -> {losses[-1]:.4f}; the same bits as one by one: {same}")
