"""The names that users of TransformerEngine type are here, and the page about them is right."""

import inspect
import re
from pathlib import Path

import octet
import pytest
from laws import RECIPES, layer

PAGE = Path(__file__).parents[2] / "docs" / "from-transformer-engine.md"


def test_names__those_of_the_page_exist() -> None:
    names = set(re.findall(r"\boctet\.([A-Za-z_]\w*)", PAGE.read_text()))
    assert len(names) > 10
    assert [name for name in sorted(names) if not hasattr(octet, name)] == []


def test_names__fp8_model_init_is_quantized_model_init() -> None:
    assert list(inspect.signature(octet.fp8_model_init).parameters) == [
        "enabled",
        "recipe",
        "preserve_high_precision_init_val",
    ]
    with octet.fp8_model_init(
        enabled=True, recipe=RECIPES["mxfp8"], preserve_high_precision_init_val=True
    ):
        made = layer()
    assert made.weight.quantizer.text == "mxfp8:e4m3/1x32+row+col"
    assert made.weight.get_high_precision_init_val().shape == (44, 70)
    with octet.fp8_model_init(False):
        assert not isinstance(layer().weight.data, octet.QuantizedTensor)


def test_names__quantizer_role_is_the_recipes() -> None:
    assert octet.QuantizerRole is octet.recipe.QuantizerRole
    assert octet.QuantizerRole("linear", "input", "fc1").tensor_type == "input"


@pytest.mark.parametrize("name", ["fp8_model_init", "get_default_recipe", "QuantizerRole"])
def test_names__are_exported(name: str) -> None:
    assert name in octet.__all__
