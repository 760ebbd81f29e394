"""octet.compat.torchtitan: a converter of torchtitan's Linear configs, by its interface."""

import importlib
import pickle
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import octet
import octet.compat.torchtitan as compat
import pytest
import titan_protocol
from laws import RECIPES

import torch

MADE = (compat._titan, compat._linear, compat._converter)
LINEAR, MODULE = "torchtitan.models.common.linear", "torchtitan.protocols.module"


def forget() -> None:
    for function in MADE:
        function.cache_clear()


@pytest.fixture(params=["interface", "torchtitan"])
def titan(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[types.SimpleNamespace]:
    """Models of torchtitan's kind: by the interface above, and by the package if it is here."""
    if request.param == "interface":
        for name, module in titan_protocol.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    elif not titan_protocol.is_installed():
        pytest.skip("torchtitan is not installed")
    forget()
    yield models()
    forget()


def models() -> types.SimpleNamespace:
    """Configs of a small model."""
    linear, base = importlib.import_module(LINEAR), importlib.import_module(MODULE).Module

    class Block(base):
        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):
            w1: Any
            w2: Any

        def __init__(self, config: Config) -> None:
            torch.nn.Module.__init__(self)
            self.w1, self.w2 = config.w1.build(), config.w2.build()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w2(torch.relu(self.w1(x)))

    class Model(base):
        @dataclass(kw_only=True, slots=True)
        class Config(base.Config):
            lm_head: Any
            layers: list[Any] = field(default_factory=list)

        def __init__(self, config: Config) -> None:
            torch.nn.Module.__init__(self)
            self.layers = torch.nn.ModuleDict(
                {str(n): block.build() for n, block in enumerate(config.layers)}
            )
            self.lm_head = config.lm_head.build()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.layers.values():
                x = block(x)
            return self.lm_head(x)

        def init_states(self) -> None:
            for block in self.layers.values():
                block.init_states()
            self.lm_head.init_states()

    def of(rows: int, columns: int, kind: str = "Linear") -> Any:  # noqa: ANN401
        start = {"weight": lambda w: torch.nn.init.normal_(w, std=0.125)}
        return getattr(linear, kind).Config(
            in_features=columns, out_features=rows, param_init=start
        )

    def config(kind: str = "Linear") -> Any:  # noqa: ANN401
        blocks = [Block.Config(w1=of(96, 64), w2=of(64, 96, kind)) for _ in range(2)]
        return Model.Config(lm_head=of(32, 64), layers=blocks)

    return types.SimpleNamespace(config=config, linear=of, Linear=linear.Linear)


def built(config: Any) -> torch.nn.Module:  # noqa: ANN401
    """A model as torchtitan makes it: on meta, then memory, then first values."""
    with torch.device("meta"):
        model = config.build()
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    model.init_states()
    return model


def converted(titan: types.SimpleNamespace, **asked: Any) -> Any:  # noqa: ANN401
    converter = compat.OctetLinearConverter.Config(**asked).build()
    return converter.convert(titan.config())


def layers(model: torch.nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, octet.Linear)]


def trained(model: torch.nn.Module, recipe: octet.recipe.Recipe | None) -> list[torch.Tensor]:
    """Two steps; what the weights became. None: each layer has a recipe of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(2)
    for _ in range(2):
        with octet.autocast(enabled=recipe is not None, recipe=recipe):
            loss = model(torch.randn(8, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", compat.RECIPES)
def test_titan__a_converted_model_trains_as_an_autocast_does(
    titan: types.SimpleNamespace, name: str
) -> None:
    """A recipe in each layer is the recipe around the model, bit for bit."""
    given = RECIPES[name] if name == "delayed" else name
    model = built(converted(titan, recipe=given))
    assert len(layers(model)) == 5
    plain = octet.convert(built(titan.config()))
    wanted, found = trained(plain, RECIPES[name]), trained(model, None)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))
    exact = trained(built(titan.config()), None)
    assert not all(torch.equal(one, two) for one, two in zip(exact, found, strict=True))


def test_titan__parts_of_names_choose(titan: types.SimpleNamespace) -> None:
    inside = layers(built(converted(titan, fqns=["layers"])))
    assert inside == [f"layers.{n}.w{m}" for n in range(2) for m in (1, 2)]
    assert layers(built(converted(titan, fqns=["layers"], filter_fqns=["w2", "0."]))) == [
        "layers.1.w1"
    ]
    left = layers(built(converted(titan, filter_fqns=["lm_head"])))
    assert left == inside


def test_titan__a_layer_has_all_that_its_config_says(titan: types.SimpleNamespace) -> None:
    config = titan.linear(32, 64)
    config.bias = True
    config.param_init["bias"] = torch.nn.init.ones_
    converter = compat.OctetLinearConverter.Config(recipe="nvfp4").build()
    layer = built(converter.convert(config))  # the root itself
    assert type(layer) is compat.OctetLinear
    assert layer.recipe == octet.recipe.NVFP4BlockScaling()
    assert torch.equal(layer.bias, torch.ones(32))
    assert 0.1 < layer.weight.std() < 0.15
    assert layer.state_dict().keys() == titan.linear(32, 64).build().state_dict().keys() | {
        "bias"
    }


def test_titan__messages_name_the_layer(titan: types.SimpleNamespace) -> None:
    model = built(converted(titan))
    with pytest.raises(ValueError, match=r"octet\.Linear 'layers\.0\.w1' \(64 -> 96\)"):
        model(torch.randn(8, 63))


def test_titan__converting_twice_changes_nothing(titan: types.SimpleNamespace) -> None:
    config = converted(titan, recipe="current")
    again = compat.OctetLinearConverter.Config(recipe="nvfp4").build().convert(config)
    assert again is config
    found = {c.recipe for _, c, _, _ in config.traverse(compat.OctetLinear.Config)}
    assert found == {"current"}


def test_titan__a_linear_of_another_kind_is_left_and_named(
    titan: types.SimpleNamespace,
) -> None:
    config = titan.config("ScaledBiasRowwiseLinear")
    convert = compat.OctetLinearConverter.Config(fqns=["layers"]).build().convert
    with pytest.raises(ValueError, match=r"(?s)filter_fqns:.*layers\.0\.w2: ScaledBias"):
        convert(config)
    assert not list(config.traverse(compat.OctetLinear.Config))  # nothing is half done
    with pytest.warns(UserWarning, match=r"(?s)left these.*layers\.1\.w2: ScaledBias"):
        config = compat.OctetLinearConverter.Config().build().convert(config)
    assert len(list(config.traverse(compat.OctetLinear.Config))) == 3


def test_titan__wrong_words_are_refused(titan: types.SimpleNamespace) -> None:
    with pytest.raises(ValueError, match=r"recipe is 'fp8'; .* one of delayed, current"):
        compat.OctetLinearConverter.Config(recipe="fp8").build()
    with pytest.raises(ValueError, match=r"no Linear\.Config is chosen by fqns=\['blocks'\]"):
        converted(titan, fqns=["blocks"])


def test_titan__a_converted_model_compiles_whole(titan: types.SimpleNamespace) -> None:
    model, x = built(converted(titan)), torch.randn(8, 64)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))


def test_titan__classes_pickle_by_their_names(titan: types.SimpleNamespace) -> None:
    assert pickle.loads(pickle.dumps(compat.OctetLinear)) is compat.OctetLinear
    config = compat.OctetLinearConverter.Config(recipe="nvfp4")
    assert pickle.loads(pickle.dumps(config)).recipe == "nvfp4"


def test_titan__without_the_package_the_names_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("torchtitan", "torchtitan.components.quantization"):
        monkeypatch.setitem(sys.modules, name, None)
    forget()
    with pytest.raises(ImportError, match="pip install torchtitan"):
        compat.OctetLinearConverter  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        compat.Other  # noqa: B018
