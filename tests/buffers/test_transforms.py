"""Transforms: forwards on sampling, backwards on writing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replaybank.buffers.transforms import TransformChain


class Scale(torch.nn.Module):
    """As torchrl's transforms are: forward on sampling, inv on writing."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, x: Any) -> Any:
        return x * self.factor

    def inv(self, x: Any) -> Any:
        return x / self.factor


def add_one(x: Any) -> Any:
    return x + 1


def test_samples_pass_forwards_and_writes_backwards() -> None:
    chain = TransformChain([Scale(2.0), add_one, Scale(5.0)])
    assert float(chain(torch.tensor(3.0))) == 35.0
    assert float(chain.inv(torch.tensor(30.0))) == 3.0


def test_an_inverted_transform_has_its_directions_exchanged() -> None:
    chain = TransformChain()
    chain.insert(0, Scale(2.0), invert=True)
    assert float(chain(torch.tensor(3.0))) == 1.5
    assert float(chain.inv(torch.tensor(3.0))) == 6.0


def test_a_chain_put_into_a_chain_keeps_its_order() -> None:
    chain = TransformChain([add_one])
    chain.insert(0, TransformChain([Scale(2.0), Scale(3.0)]))
    assert len(chain) == 3
    assert [float(link.factor) for link in list(chain)[:2]] == [2.0, 3.0]
    assert chain[2] is add_one


def test_an_inv_that_gives_none_stops_the_writing() -> None:
    class Never:
        def __call__(self, x: Any) -> Any:
            return x

        def inv(self, x: Any) -> None:
            return None

    assert TransformChain([Scale(2.0), Never()]).inv(torch.tensor(1.0)) is None


@pytest.mark.parametrize(
    ("change", "found"), [("reshape", r"\[2, 3\]"), ("number", "a float"), ("drop", r"\[5\]")]
)
def test_the_transform_that_breaks_the_batch_is_named(change: str, found: str) -> None:
    def breaks(td: Any) -> Any:
        return {"reshape": td.reshape(2, 3), "number": 1.0, "drop": td[1:]}[change]

    chain = TransformChain([lambda td: td, breaks])
    td = TensorDict({"x": torch.ones(6)}, batch_size=6)
    with pytest.raises(
        RuntimeError, match=rf"transform 1, .*breaks.* was given the batch size \[6\] and gave .*{found}"
    ):
        chain(td, keep_batch=True)
    chain(td)


def test_states_of_transforms_are_saved_by_position() -> None:
    chain, other = TransformChain([add_one, Scale(2.0)]), TransformChain([add_one, Scale(7.0)])
    other.load_state_dict(chain.state_dict())
    assert float(other[1].factor) == 2.0
    with pytest.raises(ValueError, match="whose transform 1 has a state"):
        TransformChain([Scale(2.0)]).load_state_dict(chain.state_dict())


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(TypeError, match="must be callable, got a int"):
        TransformChain([3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="has no method inv"):
        TransformChain().insert(0, add_one, invert=True)
