"""Are tensors found that a value depends on without being given them?"""

from __future__ import annotations

import warnings

import pytest
import torch

import pzobo
from pzobo.errors import AuditError, AuditWarning
from pzobo.tensors.strangers import strangers


def test_the_graph_ends_at_what_is_known() -> None:
    leaf, other, source = (torch.ones(n, requires_grad=True) for n in (1, 2, 3))
    made = (source * 2).sum()
    value = leaf.sum() * made + other.exp().sum()
    assert [t is other for t in strangers([value], [leaf, made])] == [True]
    assert {id(t) for t in strangers([value], [leaf])} == {id(other), id(source)}
    assert strangers([value.detach()], []) == []


def argmin(fn: object, audit: object = True, **options: object) -> pzobo.Argmin:
    return pzobo.Argmin(fn, **{"solver": pzobo.GD(0.1, 3), "jacobian": pzobo.Unrolled(), **options}, audit=audit)  # type: ignore[arg-type]


def test_a_parameter_in_a_closure_is_said_once_to_get_nothing() -> None:
    net = torch.nn.Linear(3, 3)
    forgetful = argmin(lambda x, y, batch: (net(y) - x).square().sum() + y.square().sum())
    x = torch.ones(3, requires_grad=True)
    with pytest.warns(AuditWarning, match=r"depends on tensors .* \(2, of shape"):
        forgetful(x, torch.zeros(3)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forgetful(x, torch.zeros(3)).sum().backward()
    assert net.weight.grad is None
    with pytest.raises(AuditError, match="Put them into x"):
        argmin(forgetful.inner_loss, "error")(x, torch.zeros(3))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("audit", [True, False, "error"])
def test_nothing_is_said_where_nothing_is_missing(audit: object) -> None:
    """x made by a network, frozen parameters, parameters that a functional call replaces; and no audit."""
    maker, net = torch.nn.Linear(2, 3), torch.nn.Linear(3, 3)
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    y0 = {name: t.detach() for name, t in net.named_parameters()}

    def loss(x: torch.Tensor, y: dict[str, torch.Tensor], batch: object) -> torch.Tensor:
        stranger = maker.bias.sum() if audit is False else 0.0
        return (torch.func.functional_call(net, y, (frozen(x),)) - 1).square().sum() + stranger

    x = maker(torch.ones(2))
    argmin(loss, audit)(x, y0)["weight"].sum().backward()
    assert maker.weight.grad is not None


def test_a_closed_form_and_prepare_have_closures_too() -> None:
    w, x = (torch.ones(3, requires_grad=True) for _ in range(2))
    with pytest.warns(AuditWarning, match=r"\(1, of shape \(3,\)\)"):
        argmin(None, solver=pzobo.ClosedForm(lambda z, batch: z * w))(x, torch.zeros(3))
    with pytest.warns(AuditWarning, match=r"\(1, of shape \(3,\)\)"):
        argmin(lambda z, y, batch: (y - z).square().sum(), prepare=lambda x, batch: x * w)(x, torch.zeros(3))
