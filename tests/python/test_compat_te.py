"""Octet under TransformerEngine's names: found, refused, given back."""

import copy
import importlib
import importlib.metadata
import importlib.util
import pickle
import sys
import types
from collections.abc import Iterator

import octet
import octet.compat.transformer_engine as compat
import pytest
from laws import RECIPES
from packaging.version import Version

import torch

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformer_engine") is not None,
    reason="TransformerEngine itself is installed",
)


@pytest.fixture
def te() -> Iterator[types.ModuleType]:
    with compat.install():
        yield importlib.import_module("transformer_engine.pytorch")


def test_te__importers_find_it(te: types.ModuleType) -> None:
    spec = importlib.util.find_spec("transformer_engine")
    assert spec is not None
    assert spec.name == "transformer_engine"
    assert importlib.util.find_spec("transformer_engine.pytorch.fp8") is not None
    assert importlib.util.find_spec("transformer_engine.pytorch.attention") is None
    import transformer_engine
    from transformer_engine.common import recipe
    from transformer_engine.pytorch.fp8 import check_mxfp8_support

    assert transformer_engine.pytorch is te
    assert recipe.DelayedScaling is octet.recipe.DelayedScaling
    assert recipe.Format.HYBRID is octet.recipe.Format.HYBRID
    assert check_mxfp8_support() == (True, "")
    assert importlib.reload(te) is te


@pytest.mark.parametrize("name", ["transformer-engine", "transformer_engine"])
def test_te__metadata_tells_its_version(te: types.ModuleType, name: str) -> None:
    import transformer_engine

    assert importlib.metadata.version(name) == transformer_engine.__version__
    assert Version(te.__version__) >= Version("2.20")
    assert importlib.metadata.metadata(name)["Name"] == "transformer-engine"
    assert (
        "transformer-engine"
        in importlib.metadata.packages_distributions()["transformer_engine"]
    )
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("transformer-engine-other")


def test_te__leaving_gives_everything_back() -> None:
    path, modules = list(sys.meta_path), set(sys.modules)
    with compat.install():
        assert compat.installed()
        with compat.install():  # the inner one changes nothing
            pass
        assert compat.installed()
        import transformer_engine.pytorch  # noqa: F401
    assert not compat.installed()
    assert sys.meta_path == path
    assert not {name for name in set(sys.modules) - modules if "transformer_engine" in name}
    assert importlib.util.find_spec("transformer_engine") is None
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("transformer-engine")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("transformer_engine")


def test_te__without_a_context_it_stays_until_it_is_taken_away() -> None:
    compat.install()
    try:
        assert importlib.import_module("transformer_engine.pytorch").Linear
    finally:
        compat.uninstall()
    compat.uninstall()  # there is nothing to take away
    assert not compat.installed()


@pytest.mark.parametrize("name", ["transformer_engine", "transformer_engine_torch"])
def test_te__the_real_one_is_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = types.ModuleType(name)
    real.__file__ = "/site/transformer_engine/__init__.py"
    monkeypatch.setitem(sys.modules, name, real)
    path = list(sys.meta_path)
    with pytest.raises(RuntimeError, match=f"{name} is imported already, from /site/"):
        compat.install()
    assert sys.modules[name] is real
    assert sys.meta_path == path


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("DotProductAttention", "use torch.nn.functional.scaled_dot_product_attention"),
        ("Float8Tensor", "use octet.QuantizedTensor"),
        ("make_graphed_callables", "use torch.compile"),
        ("moe_permute", "docs/from-transformer-engine.md"),
    ],
)
def test_te__a_missing_name_says_what_to_use(te: types.ModuleType, name: str, fix: str) -> None:
    assert not hasattr(te, name)
    with pytest.raises(AttributeError, match=f"{name}: Octet stands in for .*{fix}"):
        getattr(te, name)
    with pytest.raises(ImportError, match="compat/transformer_engine"):
        exec(f"from transformer_engine.pytorch import {name}")


def test_te__what_is_said_to_be_missing_is_missing(te: types.ModuleType) -> None:
    from octet.compat.transformer_engine import _names

    assert [name for name in _names.INSTEAD if hasattr(te, name)] == []


def test_te__there_is_no_transformer_layer_to_make(te: types.ModuleType) -> None:
    assert not isinstance(torch.nn.Linear(2, 2), te.TransformerLayer)
    with pytest.raises(NotImplementedError, match="LayerNormLinear, torch's scaled_dot"):
        te.TransformerLayer(64, 128, 4)


@pytest.mark.parametrize("name", RECIPES)
def test_te__layers_compute_as_octets_do(te: types.ModuleType, name: str) -> None:
    """The same numbers in the same steps, and the names of their parameters."""

    def trained(kinds: types.ModuleType, region: type) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            kinds.LayerNormLinear(64, 96, device="cpu"),
            kinds.RMSNorm(96, device="cpu"),
            kinds.Linear(96, 64, bias=False, device="cpu"),
            kinds.LayerNormMLP(64, 96, device="cpu"),
            kinds.LayerNorm(64, device="cpu"),
        )
        for _ in range(2):
            with region(enabled=name != "none", recipe=RECIPES[name]):
                loss = model(torch.randn(8, 64)).square().mean()
            loss.backward()
        assert "2.weight" in dict(model.named_parameters())
        return [parameter.grad for parameter in model.parameters()]

    wanted, found = trained(octet, octet.autocast), trained(te, te.autocast)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def test_te__a_layer_is_told_by_its_module_and_is_no_nn_linear(te: types.ModuleType) -> None:
    """As libraries tell TransformerEngine's layers from torch's, so that none is made twice."""
    layer = te.Linear(64, 32, device="cpu")
    assert "transformer_engine.pytorch" in layer.__module__
    assert not isinstance(layer, torch.nn.Linear)
    assert not isinstance(torch.nn.Linear(64, 32), te.Linear)


def test_te__layers_outlive_the_names() -> None:
    """They compile, copy and pickle by names of Octet's own."""
    with compat.install():
        import transformer_engine.pytorch as te

        layer = te.Linear(64, 32, device="cpu")
    x = torch.randn(8, 64)
    with octet.autocast(recipe=RECIPES["mxfp8"]):
        y = layer(x)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), y)
        assert torch.equal(pickle.loads(pickle.dumps(layer))(x), y)
        assert torch.equal(copy.deepcopy(layer)(x), y)
    plain = octet.unconvert(torch.nn.Sequential(layer))
    assert type(plain[0]) is torch.nn.Linear
    assert plain[0].weight is layer.weight


def test_te__the_state_manager_tells_of_the_autocast_here(te: types.ModuleType) -> None:
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as State

    assert not State.is_fp8_enabled()
    assert State.get_fp8_recipe() is octet.default_recipe()
    with te.fp8_autocast(enabled=True, fp8_recipe=RECIPES["current"]):
        assert State.is_fp8_enabled()
        assert State.get_fp8_recipe() is RECIPES["current"]
    with te.autocast(enabled=False, calibrating=True, recipe=RECIPES["delayed"]):
        assert State.is_fp8_calibration()
        assert not State.is_fp8_enabled()
    assert not State.with_fp8_parameters()
    with te.fp8_model_init(enabled=True, recipe=RECIPES["mxfp8"]):
        assert State.with_fp8_parameters()
        assert isinstance(te.Linear(64, 32, device="cpu").weight, octet.QuantizedTensor)
    with te.quantized_model_init(enabled=False):
        assert not State.with_fp8_parameters()
