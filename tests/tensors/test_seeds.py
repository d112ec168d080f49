"""Are seeds mixed by splitmix64, in the same way for ints and for tensors?"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pzobo.tensors.seeds import mix

LOW = 2**63 - 1
"""All bits of splitmix64's numbers but the highest."""

INT64 = st.integers(-(2**63), 2**63 - 1)


def splitmix64(seed, count):
    """The generator as it is published: a state that grows, and a function of it."""
    state, mask = seed, 2**64 - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]),
    ],
)
def test_published_numbers(seed, numbers):
    assert list(splitmix64(seed, len(numbers))) == numbers
    assert [mix(seed, i) for i in range(len(numbers))] == [n & LOW for n in numbers]


@given(st.integers(0, 2**64 - 1))
def test_it_is_the_published_generator(seed):
    assert [mix(seed, i) for i in range(4)] == [n & LOW for n in splitmix64(seed, 4)]


@given(INT64, INT64)
def test_ints_and_tensors_agree(seed, number):
    found = mix(seed, number)
    assert 0 <= found <= LOW
    a, b = torch.tensor([seed, 0]), torch.tensor([number, 0])
    assert mix(a, b).tolist() == [found, mix(0, 0)]
    assert mix(seed, b)[0] == mix(a, number)[0] == found
    assert mix(a)[0] == mix(seed)
    assert mix(a, b).dtype == torch.int64


def test_shapes_broadcast():
    found = mix(torch.arange(3)[:, None], torch.arange(4))
    assert found.tolist() == [[mix(i, j) for j in range(4)] for i in range(3)]


def test_numbers_of_directions_are_as_they_were():
    """`directions._seeded(key, stream)` of version 0.1.0: recorded runs depend on them."""
    for key, stream, number in [
        (0, 0, 7070836379803831727),
        (0, 1, 7960286522194355700),
        (1, 0, 1227844342346046657),
        (12345, 7, 7959005890829367068),
        (9223372036854775806, 3, 1287333928817418565),
        (987654321987654321, 1000, 1162700365525280565),
    ]:
        assert mix(key, stream) == number


def test_numbers_of_tasks_are_as_they_were():
    """`tasks._mix(keys)` of version 0.1.0."""
    numbers = {
        0: 7070836379803831727,
        1: 7960286522194355700,
        2: 487617019471545679,
        -1: 0,
        41: 1391454601869358542,
        2**40: 1816945705467351922,
        -(2**63): 5196802822362493915,
        2**63 - 1: 2720858781877447050,
    }
    assert mix(0, torch.tensor(list(numbers))).tolist() == list(numbers.values())
