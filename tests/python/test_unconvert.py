"""unconvert and convert(weights=...): there and back, and weights that become quantized."""

import copy
import pickle
from typing import Any

import octet
import pytest
from laws import RECIPES, within
from octet.linear import Linear

import torch
from torch import nn

QUANTIZED = [name for name in RECIPES if name != "none"]


class Model(nn.Module):
    """Two layers, one of them frozen, and a head that is tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(48, 32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=False).requires_grad_(False)
        self.head = nn.Linear(32, 48)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(torch.relu(self.up(self.embed(tokens)))))


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    return dict(model.named_parameters(remove_duplicate=False))


# ---- there and back --------------------------------------------------------------------------


def test_unconvert__is_the_inverse_of_convert() -> None:
    model, tokens = Model(), torch.randint(48, (2, 5))
    before, want = named(model), model(tokens)
    types = {name: type(m) for name, m in model.named_modules()}
    octet.convert(model)
    with octet.autocast(recipe=RECIPES["delayed"]):
        model(tokens).sum().backward()
    assert octet.unconvert(model) is model
    assert {name: type(m) for name, m in model.named_modules()} == types
    after = named(model)
    assert list(before) == list(after)
    assert all(before[key] is after[key] for key in before)
    assert list(model.state_dict()) == list(before)
    assert torch.equal(model(tokens), want)
    assert octet.unconvert(model) is model


def test_unconvert__chooses() -> None:
    model = octet.unconvert(octet.convert(Model()), "up")
    found = {name for name, m in model.named_modules() if isinstance(m, Linear)}
    assert found == {"down", "head"}


def test_unconvert__of_a_layer_is_a_layer() -> None:
    layer = octet.Linear(8, 4, device="cpu", bias=False).eval()
    layer.marked = "yes"
    made = octet.unconvert(layer)
    assert type(made) is nn.Linear
    assert (made.in_features, made.out_features, made.bias) == (8, 4, None)
    assert made.weight is layer.weight
    assert made.marked == "yes"
    assert not made.training
    assert vars(made).keys() - {"marked"} == vars(nn.Linear(8, 4)).keys()
    made(torch.randn(2, 8))


def test_unconvert__works_on_copies_of_a_converted_model() -> None:
    model = octet.convert(Model())
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        octet.unconvert(copied)
        assert type(copied.up) is nn.Linear
        assert torch.equal(copied.up.weight, model.up.weight)
        assert copied.head.weight is copied.embed.weight


class Own(octet.Linear):
    """A layer with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (octet.Linear(8, 4, device="cpu", parameters_split=("q", "k")), "q_weight, k_weight"),
        (octet.Linear(8, 4, device="cpu", return_bias=True), "return_bias=True"),
        (octet.Linear(8, 4, device="cpu", delay_wgrad_compute=True), "delay_wgrad_compute"),
        (octet.Linear(8, 4, device="cpu", fuse_wgrad_accumulation=True), "fuse_wgrad"),
        (Own(8, 4, device="cpu"), "forward of its own"),
    ],
)
def test_unconvert__refuses_what_nn_linear_cannot_do(layer: nn.Module, why: str) -> None:
    model = nn.Sequential(octet.Linear(8, 8, device="cpu"), layer)
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match=f"1 cannot become an nn.Linear: .*{why}.*where="):
        octet.unconvert(model)
    assert dict(model.named_modules()) == before
    octet.unconvert(model, "0")
    assert type(model[0]) is nn.Linear


# ---- weights ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights__are_those_of_quantized_model_init(name: str) -> None:
    model = Model()
    plain = copy.deepcopy(model)
    octet.convert(model, weights=RECIPES[name])
    for key in ("up", "down", "head"):
        weight, source = getattr(model, key).weight, getattr(plain, key).weight
        assert isinstance(weight, octet.QuantizedTensor)
        assert weight.requires_grad == source.requires_grad
        with octet.quantized_model_init(recipe=RECIPES[name]):
            other = octet.Linear(source.shape[1], source.shape[0], device="cpu").weight
        assert weight._text == other._text
        other = other.detach().quantize_(source.detach())
        assert all(map(torch.equal, weight.buffers(), other.buffers()))
    assert list(named(model)) == list(named(plain))
    assert model.head.weight is model.embed.weight
    tokens = torch.randint(48, (2, 5))
    within(RECIPES[name], model)(tokens).sum().backward()
    for key in ("embed", "up"):
        assert type(getattr(model, key).weight.grad) is torch.Tensor
    assert model.down.weight.grad is None
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    optimizer.step()
    assert isinstance(model.up.weight, octet.QuantizedTensor)


def test_weights__that_are_tied_load_from_flat_state_dicts() -> None:
    first, second = (octet.convert(Model(), weights=RECIPES["mxfp8"]) for _ in range(2))
    for model in (second, copy.deepcopy(second)):
        model.load_state_dict(octet.flatten_state_dict(first.state_dict()))
        for key, found in named(model).items():
            if "weight" in key:
                assert all(map(torch.equal, found.buffers(), named(first)[key].buffers()))


def test_weights__of_layers_that_are_there_already() -> None:
    model = octet.convert(Model())
    octet.convert(model, "up", weights=RECIPES["mxfp8"])
    assert isinstance(model.up.weight, octet.QuantizedTensor)
    assert not isinstance(model.down.weight, octet.QuantizedTensor)
    kept = model.up.weight
    octet.convert(model, weights=RECIPES["nvfp4"])
    assert model.up.weight is kept
    assert model.down.weight._text.startswith("nvfp4")


def test_weights__quantized_anew_are_what_a_cached_weight_is_made_from() -> None:
    layer, x = octet.Linear(64, 32, device="cpu"), torch.randn(4, 64)
    run = within(RECIPES["mxfp8"], lambda: layer(x, is_first_microbatch=False))
    run()
    with torch.no_grad():
        layer.weight.neg_()
    octet.convert(layer, weights=RECIPES["mxfp8"])
    assert torch.equal(run(), within(RECIPES["mxfp8"], layer)(x))


def test_weights__keep_attributes_hooks_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    ran: list[str] = []
    weight = model[0].weight
    weight.main_grad = torch.zeros(32, 32)
    weight.grad = torch.ones(32, 32)
    handle = weight.register_hook(lambda grad: ran.append("grad"))
    weight.register_post_accumulate_grad_hook(lambda parameter: ran.append("accumulated"))
    for change in (lambda m: octet.convert(m, weights=RECIPES["mxfp8"]), octet.unconvert):
        change(model)
        ran.clear()
        assert model[0].weight is not weight
        assert model[0].weight.main_grad is weight.main_grad
        assert torch.equal(model[0].weight.grad, torch.ones(32, 32))
        model[0].weight.grad = None
        model(torch.randn(2, 32)).sum().backward()
        assert ran == ["grad", "accumulated"]
        model[0].weight.grad = torch.ones(32, 32)
    assert not isinstance(model[0].weight, octet.QuantizedTensor)
    assert vars(model[0].weight).keys() == {"main_grad"}
    handle.remove()
    model(torch.randn(2, 32)).sum().backward()
    assert ran == ["grad", "accumulated", "accumulated"]


def test_weights__come_back_plain() -> None:
    model = octet.convert(Model(), weights=RECIPES["mxfp8"])
    want = {key: p.dequantize() for key, p in named(model).items() if "weight" in key}
    octet.unconvert(model)
    assert type(model.up) is nn.Linear
    assert model.head.weight is model.embed.weight
    assert not model.down.weight.requires_grad
    for key, value in want.items():
        found = named(model)[key]
        assert type(found) is nn.Parameter
        assert torch.equal(found, value)
    model(torch.randint(48, (2, 5))).sum().backward()


@pytest.mark.parametrize("made_before", [False, True])
def test_weights__on_meta_are_refused(made_before: bool) -> None:
    with torch.device("meta"):
        model = Model()
    model = octet.convert(model) if made_before else model
    before = dict(model.named_modules())
    with pytest.raises(ValueError, match=r"up is on meta.*assign=True.*without weights="):
        octet.convert(model, weights=RECIPES["mxfp8"])
    assert dict(model.named_modules()) == before


def test_weights__in_parts_stay_plain() -> None:
    split = octet.Linear(8, 4, device="cpu", parameters_split=("q", "k"))
    model = nn.Sequential(split, nn.Linear(8, 4))
    with pytest.raises(ValueError, match=r"0 cannot be stored quantized.*q_weight, k_weight"):
        octet.convert(model, "0", RECIPES["mxfp8"])
    with pytest.warns(UserWarning, match=r"0: its weight stays plain: .*q_weight, k_weight"):
        octet.convert(model, weights=RECIPES["mxfp8"])
    assert isinstance(model[1].weight, octet.QuantizedTensor)


def test_weights__is_a_recipe() -> None:
    with pytest.raises(TypeError, match="weights is 'mxfp8'"):
        octet.convert(nn.Linear(4, 4), weights="mxfp8")  # type: ignore[arg-type]

    class Rounded(octet.Quantizer):
        def quantize(self, tensor: torch.Tensor, *, out: Any = None) -> torch.Tensor:  # noqa: ANN401
            return tensor

    linear = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match="Rounded has a quantize of its own"):
        octet.convert(linear, weights=octet.recipe.CustomRecipe(lambda role: Rounded()))
    assert type(linear[0]) is nn.Linear


def test_weights__that_a_recipe_leaves_plain_stay() -> None:
    linear = nn.Linear(32, 32)
    recipe = octet.recipe.CustomRecipe(lambda role: None)
    assert octet.convert(linear, weights=recipe).weight is linear.weight
