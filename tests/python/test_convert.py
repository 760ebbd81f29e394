"""convert: the same parameters, names and hooks in octet's layers, and nothing else changed."""

import copy
from typing import Any

import octet
import pytest
from laws import RECIPES, within
from octet.linear import Linear

import torch
from torch import nn


class Model(nn.Module):
    """A block with a tied head, a layer in two places, and attention's own kind of Linear."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 32)
        self.up = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(2)])
        self.again = self.blocks[0]
        self.down = nn.Linear(64, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.up(self.embed(tokens))
        for block in (*self.blocks, self.again):
            x = torch.relu(block(x))
        x = self.down(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0])


def test_convert__keeps_parameters_names_and_sharing() -> None:
    model = Model()
    before = dict(model.named_parameters(remove_duplicate=False))
    state = {key: value.clone() for key, value in model.state_dict().items()}
    other = copy.deepcopy(model)
    torch.manual_seed(3)
    assert octet.convert(model) is model
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(()))
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(before) == list(after)
    assert all(before[key] is after[key] for key in before)
    assert list(model.state_dict()) == list(state)
    assert all(isinstance(m, Linear) for m in model.modules() if isinstance(m, nn.Linear))
    assert model.again is model.blocks[0]
    assert model.head.weight is model.embed.weight
    assert model.blocks[1].name == "blocks.1"
    tokens = torch.randint(11, (2, 5))
    assert torch.allclose(model(tokens), other(tokens), atol=1e-5)
    other.load_state_dict(model.state_dict())
    y = within(RECIPES["mxfp8"], torch.compile(model, fullgraph=True, backend="aot_eager"))
    y(tokens).sum().backward()
    assert model.embed.weight.grad is not None


def test_convert__again_changes_nothing() -> None:
    model = octet.convert(Model())
    layers = dict(model.named_modules())
    for where in (None, "up", lambda name, layer: True):
        assert dict(octet.convert(model, where).named_modules()) == layers


@pytest.mark.parametrize(
    ("where", "replaced"),
    [
        ("blocks.*", {"blocks.0", "blocks.1"}),
        (["up", "down"], {"up", "down"}),
        (lambda name, layer: layer.out_features == 11, {"head"}),
    ],
)
def test_convert__replaces_what_is_chosen(where: Any, replaced: set[str]) -> None:  # noqa: ANN401
    model = octet.convert(Model(), where)
    assert {name for name, m in model.named_modules() if isinstance(m, Linear)} == replaced


def test_convert__of_a_layer_is_a_layer_with_its_hooks_and_mode() -> None:
    linear = nn.Linear(4, 3).eval()
    linear.marked = "yes"
    seen: list[Any] = []
    handle = linear.register_forward_hook(lambda m, args, out: seen.append(out))
    made = octet.convert(linear)
    assert isinstance(made, Linear)
    assert not made.training
    assert made.marked == "yes"
    y = made(torch.randn(2, 4))
    assert seen[0] is y
    handle.remove()
    made(torch.randn(2, 4))
    assert len(seen) == 1


class Scaled(nn.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_convert__leaves_subclasses_their_forward() -> None:
    model = octet.convert(nn.Sequential(Scaled(4, 4), nn.Linear(4, 4)))
    assert type(model[0]) is Scaled
    assert isinstance(model[1], Linear)
    with pytest.raises(ValueError, match=r"0 cannot.*Scaled.*where="):
        octet.convert(nn.Sequential(Scaled(4, 4)), "0")


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        (nn.Sequential(nn.ReLU()), "no nn.Linear in Sequential"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double()),
            r"1 cannot.*float64.*where=",
        ),
        (nn.Sequential(nn.LazyLinear(4)), "call the model once"),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))), "parametrized"),
    ],
)
def test_convert__says_what_cannot_be(model: nn.Module, pattern: str) -> None:
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match=pattern):
        octet.convert(model)
    assert dict(model.named_modules()) == before
    if isinstance(model[0], nn.Linear) and len(model) == 1:
        return
    with pytest.raises(ValueError, match="nothing"):
        octet.convert(model, "nothing")


def test_convert__inside_quantized_model_init_shares_as_well() -> None:
    linear = nn.Linear(32, 32)
    with octet.quantized_model_init(recipe=RECIPES["mxfp8"]):
        assert octet.convert(linear).weight is linear.weight
