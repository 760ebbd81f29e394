"""octet.advise: the planted layer is found, ranks agree with the loss, the model stays."""

import copy
import statistics
from typing import Any

import octet
import pytest
from laws import RECIPES
from test_explain import Model, same, snapshot
from torch.nn.functional import cross_entropy, layer_norm

import torch

QUANTIZING = {name: recipe for name, recipe in RECIPES.items() if recipe is not None}


class Residual(torch.nn.Module):
    """Layers whose weights grow from the first to the last."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(8))
        self.head = torch.nn.Linear(64, 10)
        with torch.no_grad():
            for layer, size in zip(
                self.layers, (0.05, 0.1, 0.2, 0.4, 0.8, 1, 1.5, 2), strict=True
            ):
                layer.weight.mul_(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(layer_norm(x, x.shape[-1:]))


class Planted(torch.nn.Module):
    """One layer's input has a column that is huge and counts for nothing: with one scale for
    the whole tensor, all the others become zero."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        names = ("first", "second", "hurt", "third", "last")
        for name in names:
            setattr(self, name, torch.nn.Linear(64, 64))
        with torch.no_grad():
            self.hurt.weight[:, 0] = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        x = torch.cat([1e7 + 0 * x[:, :1], x[:, 1:]], 1)
        return self.last(torch.tanh(self.third(torch.tanh(self.hurt(x)))))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        x = torch.randn(64, 64, generator=made)
        found.append((x, torch.randint(0, 10, (64,), generator=made)))
    return found


def ranks(values: list[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(order.index(i)) for i in range(len(values))]


def loss_with(model: torch.nn.Module, name: str, recipe: Any, batch: Any) -> float:  # noqa: ANN401
    """The loss where one layer is quantized, by means of users: convert and autocast."""
    made = octet.convert(copy.deepcopy(model), where=[name] if name else lambda *_: False)
    with torch.no_grad(), octet.autocast(recipe=recipe):
        return cross_entropy(made(batch[0]), batch[1]).item()


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_advise__ranks_agree_with_the_measured_change_in_loss(name: str) -> None:
    plain, recipe = Residual(), QUANTIZING[name]
    first, *others = batches(9)
    advice = octet.advise(
        octet.convert(copy.deepcopy(plain)),
        first[0],
        lambda y: cross_entropy(y, first[1]),
        recipe=recipe,
    )
    changes = {row.name: 0.0 for row in advice.rows}
    for x, wanted in others:
        with torch.no_grad():
            before = cross_entropy(plain(x), wanted).item()
        for layer in changes:
            changes[layer] += abs(loss_with(plain, layer, recipe, (x, wanted)) - before)
    measured = [changes[row.name] for row in advice.rows]
    found = [row.cost for row in advice.rows]
    assert statistics.correlation(ranks(found), ranks(measured)) > 0.8
    assert found == sorted(found, reverse=True)


def test_advise__loss_change_is_what_users_measure() -> None:
    plain, batch = Residual(), batches(1)[0]
    recipe = QUANTIZING["mxfp8"]
    model = octet.convert(copy.deepcopy(plain))
    advice = octet.advise(model, batch[0], lambda y: cross_entropy(y, batch[1]), recipe=recipe)
    with torch.no_grad():
        before = cross_entropy(plain(batch[0]), batch[1]).item()
    assert advice.loss == pytest.approx(before)
    for row in advice.rows:
        change = loss_with(plain, row.name, recipe, batch) - before
        assert row.loss_change == pytest.approx(change, abs=1e-6)


def test_advise__a_planted_sensitive_layer_is_kept() -> None:
    plain = Planted()
    model, x = octet.convert(copy.deepcopy(plain)), batches(1)[0][0]
    recipe = QUANTIZING["current"]
    advice = octet.advise(model, (x,), lambda y: (y - 1).square().mean(), recipe=recipe)
    assert advice.rows[0].name == "hurt"
    assert advice.keep == ["hurt"]
    assert advice.with_kept.gradient < 0.4 * advice.all_quantized.gradient
    assert "keep high" in str(advice)
    # What it proposes is what convert and unconvert take.
    converted = octet.convert(copy.deepcopy(plain), where=advice.where)
    assert type(converted.hurt) is torch.nn.Linear
    assert isinstance(converted.last, octet.Linear)
    octet.unconvert(model, where=advice.keep)
    assert not isinstance(model.hurt, octet.Linear)
    again = octet.advise(model, (x,), lambda y: (y - 1).square().mean(), recipe=recipe)
    assert again.keep == []
    assert "hurt" not in {row.name for row in again.rows}
    assert "quantize all" in str(again)


@pytest.mark.parametrize("fails", [False, True])
def test_advise__leaves_the_model_as_it_was(fails: bool) -> None:
    model, recipe = Model(), QUANTIZING["delayed"]
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    with octet.autocast(recipe=recipe):
        model(x).sum().backward()
    model.fails = fails
    before = snapshot(model)
    if fails:
        with pytest.raises(RuntimeError, match="in the middle"):
            octet.advise(model, x, lambda y: y.float().mean(), recipe=recipe)
    else:
        advice = octet.advise(model, x, lambda y: y.float().square().mean(), recipe=recipe)
        assert {row.name for row in advice.rows} == {"a", "b", "mlp.fc1", "mlp.fc2"}
    assert same(before, snapshot(model))


def test_advise__dropout_is_the_same_in_every_run() -> None:
    model = octet.convert(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)))
    x = torch.randn(16, 64)
    first, second = (
        octet.advise(model, x, lambda y: y.square().mean()).rows[0] for _ in range(2)
    )
    assert first.gradient_change < 0.1
    torch.rand(1)
    assert second.gradient_change < 0.1


def test_advise__without_gradients_ranks_by_the_loss() -> None:
    model, (x, wanted) = octet.convert(Residual()), batches(1)[0]
    with torch.no_grad():
        advice = octet.advise(model, x, lambda y: cross_entropy(y, wanted))
    assert advice.rows[0].gradient_change is None
    assert advice.rows[0].cost == abs(advice.rows[0].loss_change)
    assert advice.to_dict()["rows"][0]["gradient_change"] is None


def test_advise__models_of_transformers_by_their_dicts() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    torch.manual_seed(0)
    ids = torch.arange(32).reshape(2, 16)
    for fuse in (False, True):
        model = octet.convert(transformers.LlamaForCausalLM(config), fuse=fuse)
        batch = {"input_ids": ids, "labels": ids}
        advice = octet.advise(model, batch, lambda output: output.loss)
        assert len(advice.rows) == (5 if fuse else 8)
        assert all(0 < row.gradient_change < 0.3 for row in advice.rows)
    assert "<table" in advice.to_html()


def test_advise__bad_input_names_the_fix() -> None:
    model, x = octet.convert(torch.nn.Sequential(torch.nn.Linear(8, 8))), torch.randn(2, 8)
    with pytest.raises(TypeError, match="loss is a Tensor; it is a function of the model's"):
        octet.advise(model, x, x.mean())
    with pytest.raises(TypeError, match=r"loss gave \(2, 8\); it is a function of"):
        octet.advise(model, x, lambda y: y)
    with pytest.raises(TypeError, match="batch is a str; it is what the model is called"):
        octet.advise(model, "batch", lambda y: y.mean())
    with pytest.raises(TypeError, match=r"octet.advise: Sequential does not take .* \(tuple\)"):
        octet.advise(model, [(x,)], lambda y: y.mean())
    with pytest.raises(ValueError, match="the loss is nan; give a batch on which"):
        octet.advise(model, x, lambda y: y.mean() * torch.nan)
    with pytest.raises(ValueError, match="convert it first"):
        octet.advise(torch.nn.Linear(8, 8), x, lambda y: y.mean())
    with pytest.raises(ValueError, match="has no scales of delayed scaling yet"):
        octet.advise(model, x, lambda y: y.mean(), recipe=octet.recipe.DelayedScaling())
