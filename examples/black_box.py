"""A support vector machine of scikit-learn, tuned by gradients that it does not have: three hyperparameters.

`BlackBox` takes any code. Its answer y is here the predictions on the validation set. With p = 3 outer variables,
`Orthogonal` and Q = p directions the estimate has no noise: four fits make one hypergradient.
"""

import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

import pzobo

X, t = load_diabetes(return_X_y=True)
X, t = StandardScaler().fit_transform(X), (t - t.mean()) / t.std()
X_train, X_val, t_train, t_val = train_test_split(X, t, test_size=0.4, random_state=0)
target = torch.tensor(t_val)


def fit(x, y0, batch):
    """Any code: it gets the trees x and y0 and the batch, and returns something of y0's shape."""
    C, gamma, epsilon = x.exp().tolist()
    machine = SVR(C=C, gamma=gamma, epsilon=epsilon, tol=1e-6).fit(*batch)
    return machine.predict(X_val)


argmin = pzobo.Argmin(
    None,
    solver=pzobo.BlackBox(fit),
    jacobian=pzobo.PZOBO(mu=0.02, directions=3, sampler=pzobo.Orthogonal(seed=0)),
)
# scikit-learn's defaults of C, gamma (one over the number of features) and epsilon
x = torch.tensor([1.0, 0.1, 0.1], dtype=torch.float64).log().requires_grad_()
optimizer = torch.optim.Adam([x], lr=0.2)
losses = []
for _ in range(30):
    y = argmin(x, torch.zeros_like(target), (X_train, t_train))
    loss = (y - target).square().mean()
    losses.append(loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

before, after = losses[0], losses[-1]
C, gamma, epsilon = x.exp().tolist()
print(f"validation error {before:.4f} -> {after:.4f} of the variance")
print(f"C = {C:.3g}, gamma = {gamma:.3g}, epsilon = {epsilon:.3g}")
