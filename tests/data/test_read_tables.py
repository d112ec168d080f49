"""Are scikit-learn's tables read as they are, split without overlap and standardised by the training part alone?"""

import pytest
import torch
from sklearn import datasets

import pzobo
from pzobo.data import tabular
from pzobo.problems import logistic_ho


@pytest.mark.parametrize(("name", "shape"), [("breast_cancer", (569, 30)), ("iris", (150, 4)), ("wine", (178, 13))])
def test_every_row_is_in_one_part(name, shape):
    parts = tabular(name, seed=3)
    assert (sum(len(part.labels) for part in parts), parts.train.inputs.shape[1]) == shape
    assert torch.allclose(parts.train.inputs.mean(0), torch.zeros(shape[1]), atol=1e-5)
    assert torch.allclose(parts.train.inputs.std(0), torch.ones(shape[1]), atol=1e-5)
    counts = torch.cat([part.labels for part in parts]).bincount()
    assert torch.equal(counts, torch.tensor(getattr(datasets, f"load_{name}")().target).bincount())
    # Undo the standardisation: the rows are scikit-learn's.
    raw = torch.tensor(getattr(datasets, f"load_{name}")().data, dtype=torch.float32)
    ranks = torch.cat([part.inputs for part in parts])[:, 0].sort().values
    assert torch.allclose((ranks - ranks[0]) / (ranks[-1] - ranks[0]), _unit(raw[:, 0].sort().values), atol=1e-5)


def _unit(values):
    return (values - values[0]) / (values[-1] - values[0])


def test_another_seed_is_another_split():
    assert not torch.equal(tabular("iris", seed=0).train.labels, tabular("iris", seed=1).train.labels)
    assert torch.equal(tabular("iris", seed=1).train.labels, tabular("iris", seed=1).train.labels)


def test_a_problem_takes_it():
    problem = logistic_ho(tabular("wine"), start=0.0)
    method = pzobo.Method(pzobo.GD(1.0, 50), pzobo.Unrolled(products="difference"))
    found = pzobo.fit(problem, method, 20, lr=0.1)
    assert found.history[-1]["test_accuracy"] > 0.9
    assert found.history[-1]["outer_loss"] < found.history[0]["outer_loss"]


@pytest.mark.parametrize("options", [{"name": "boston"}, {"name": "iris", "train": 0.8}, {"name": "iris", "val": 0}])
def test_what_makes_no_sense_is_a_sentence(options):
    with pytest.raises(pzobo.errors.OptionError, match="tabular"):
        tabular(**options)
