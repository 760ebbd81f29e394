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
    with pytest.warns(UserWarning, match=r"attention\.out_proj: it is never called"):
        assert octet.convert(model) is model
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(()))
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(before) == list(after)
    assert all(before[key] is after[key] for key in before)
    assert list(model.state_dict()) == list(state)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | Linear)]
    assert [m for m in layers if not isinstance(m, Linear)] == [model.attention.out_proj]
    assert model.again is model.blocks[0]
    assert model.head.weight is model.embed.weight
    assert model.blocks[1].name == "blocks.1"
    tokens = torch.randint(11, (2, 5))
    assert torch.allclose(model(tokens), other(tokens), atol=1e-5)
    other.load_state_dict(model.state_dict())
    y = within(RECIPES["mxfp8"], torch.compile(model, fullgraph=True, backend="aot_eager"))
    y(tokens).sum().backward()
    assert model.embed.weight.grad is not None


PARTS = ["up", "blocks.*", "down", "head"]  # but the attention


def test_convert__again_changes_nothing() -> None:
    model = octet.convert(Model(), PARTS)
    layers = dict(model.named_modules())
    assert dict(octet.convert(model, PARTS).named_modules()) == layers


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


def patched() -> nn.Linear:
    linear = nn.Linear(4, 4)
    linear.forward = lambda x: x
    return linear


def compiled_in_place() -> nn.Linear:
    linear = nn.Linear(4, 4)
    linear.compile(backend="eager")
    return linear


def attention() -> nn.Module:
    return nn.MultiheadAttention(4, 2)


LEFT: dict[str, tuple[Any, str]] = {
    "subclass": (lambda: Scaled(4, 4), "it is a Scaled with a forward of its own"),
    "patched": (patched, "it is a Linear with a forward of its own"),
    "compiled": (compiled_in_place, r"it is compiled by its compile\(\): convert it before"),
    "dtype": (lambda: nn.Linear(4, 4).double(), "it is torch.float64, not float32, bfloat16"),
    "lazy": (
        lambda: nn.LazyLinear(4),
        "its weight is not there yet.*lazy.*call the model once",
    ),
    "parametrized": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        "its weight or bias is not a parameter of it.*parametrized",
    ),
}


@pytest.mark.parametrize(("make", "why"), LEFT.values(), ids=LEFT)
def test_convert__leaves_what_cannot_be_and_says_so(make: Any, why: str) -> None:  # noqa: ANN401
    model = nn.Sequential(make(), nn.Linear(4, 4), make())
    before = dict(model.named_modules())
    for where in ("0", ["0", "1"], "*", lambda name, layer: name in ("0", "1")):
        with pytest.raises(ValueError, match=f"0 cannot become an octet.Linear: {why}.*where="):
            octet.convert(model, where)
        assert dict(model.named_modules()) == before
    with pytest.warns(UserWarning, match=rf"(?s)left.*\n  0: .*{why}.*\n  2: ") as caught:
        octet.convert(model)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert isinstance(model[1], Linear)
    assert (model[0], model[2]) == (before["0"], before["2"])


@pytest.mark.filterwarnings("error")
def test_convert__is_silent_where_nothing_is_left() -> None:
    model = octet.convert(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    octet.convert(model)
    octet.unconvert(model)


def test_convert__attention_never_calls_its_projection() -> None:
    model = nn.Sequential(attention(), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"0\.out_proj.*nn\.MultiheadAttention reads"):
        octet.convert(model, "0.*")
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.warns(UserWarning, match=r"self_attn\.out_proj"):
        octet.convert(layer)
    assert isinstance(layer.linear1, Linear)
    assert isinstance(layer.linear2, Linear)


@pytest.mark.parametrize("change", [octet.convert, octet.unconvert])
def test_convert__of_nothing_is_an_error(change: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match="in Sequential"):
        change(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="in Sequential that where='nothing' chooses"):
        change(nn.Sequential(nn.Linear(4, 4)), "nothing")


@pytest.mark.parametrize("change", [octet.convert, octet.unconvert])
def test_convert__names_that_are_no_layers_are_errors_and_nothing_is_done(
    change: Any,  # noqa: ANN401
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    if change is octet.unconvert:
        octet.convert(model)
    before = [type(module) for module in model]
    with pytest.raises(ValueError, match=r"where has '7', .* its linear layers are '0', '2'$"):
        change(model, ["0", "7"])
    with pytest.raises(ValueError, match=r"where has '1', "):  # a ReLU
        change(model, ("1", "2"))
    for where in (3, [0, 2]):
        with pytest.raises(TypeError, match=r"where is .*; it is a pattern of names"):
            change(model, where)
    assert [type(module) for module in model] == before
    for wrong, kind in (("model", "a str"), (nn.Linear, "a class")):
        with pytest.raises(TypeError, match=f"model is {kind}; it is a torch.nn.Module"):
            change(wrong)
    change(model, ["0", "2"])
    assert [type(module) for module in model] != before


def test_convert__near_names_are_proposed() -> None:
    model = nn.ModuleDict({f"layer{i}": nn.Linear(4, 4) for i in range(6)})
    with pytest.raises(
        ValueError, match=r"layers are 'layer5', 'layer\d', 'layer\d' and 3 more$"
    ):
        octet.convert(model, ["layer0", "layr5"])


class Special(nn.Linear):
    """A layer with more than nn.Linear has, and nn.Linear's forward."""

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.register_buffer("mask", torch.ones(4))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.norm = nn.LayerNorm(4)
        self.name = "a name that octet.Linear has, too"
        self.register_load_state_dict_pre_hook(self.note)
        self.loaded: list[nn.Module] = []

    @staticmethod
    def note(module: nn.Module, *args: Any) -> None:  # noqa: ANN401
        module.loaded.append(module)


@pytest.mark.parametrize("back", [False, True])
def test_convert__keeps_all_that_a_layer_has(back: bool) -> None:
    linear = Special().eval()
    ran: list[str] = []
    linear.register_forward_pre_hook(lambda m, args: ran.append("pre"))
    linear.register_forward_hook(
        lambda m, args, kwargs, y: ran.append("post"), with_kwargs=True
    )
    linear.register_full_backward_hook(lambda m, a, b: ran.append("backward"))
    state, members = linear.state_dict(), dict(linear.named_parameters())
    made = octet.convert(nn.Sequential(linear))[0]
    made = octet.unconvert(nn.Sequential(made))[0] if back else made
    assert type(made) is (Special if back else Linear)
    assert not made.training
    assert list(made.state_dict()) == list(state)
    assert all(found is members[key] for key, found in made.named_parameters())
    assert made.scratch is linear.scratch
    assert made.norm is linear.norm
    assert made.name == (linear.name if back else "0")
    made(torch.randn(2, 8, requires_grad=True)).sum().backward()
    assert ran == ["pre", "post", "backward"]
    made.load_state_dict(state)
    assert made.loaded == [made]


def test_convert__inside_quantized_model_init_shares_as_well() -> None:
    linear = nn.Linear(32, 32)
    with octet.quantized_model_init(recipe=RECIPES["mxfp8"]):
        assert octet.convert(linear).weight is linear.weight
