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


def test_names__those_that_octet_has_not_say_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"TransformerLayer.*; use octet.LayerNormLinear"):
        _ = octet.TransformerLayer
    with pytest.raises(AttributeError, match=r"'GroupedLinear'; use an octet.Linear for each"):
        _ = octet.GroupedLinear
    with pytest.raises(
        AttributeError, match=r"^module 'octet' has no attribute 'Linaer'$"
    ) as e:
        _ = octet.Linaer
    assert (e.value.name, e.value.obj) == ("Linaer", octet)  # Python proposes Linear by these


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


def test_names__arguments_of_modules_stand_in_their_order() -> None:
    linear = "in_features out_features eps sequence_parallel fuse_wgrad_accumulation tp_group "
    linear += "tp_size get_rng_state_tracker init_method bias normalization return_bias "
    linear += "params_dtype parallel_mode return_layernorm_output "
    linear += "return_layernorm_output_gathered parameters_split zero_centered_gamma device "
    linear += "ub_overlap_ag ub_overlap_rs ub_overlap_rs_dgrad ub_bulk_wgrad ub_bulk_dgrad "
    linear += "ub_name delay_wgrad_compute symmetric_ar_type name"
    mlp = "hidden_size ffn_hidden_size eps sequence_parallel return_bias get_rng_state_tracker "
    mlp += "tp_group tp_size init_method bias normalization activation activation_params "
    mlp += "output_layer_init_method fuse_wgrad_accumulation params_dtype "
    mlp += "return_layernorm_output return_layernorm_output_gathered seq_length "
    mlp += "micro_batch_size set_parallel_mode zero_centered_gamma device ub_overlap_ag name "
    mlp += "ub_overlap_rs ub_overlap_rs_dgrad ub_bulk_dgrad ub_bulk_wgrad delay_wgrad_compute "
    mlp += "symmetric_ar_type checkpoint"
    norm = "normalized_shape eps sequence_parallel params_dtype zero_centered_gamma hidden_size"
    wanted = {
        "LayerNormLinear": linear,
        "LayerNormMLP": mlp,
        "RMSNorm": norm,
        "LayerNorm": norm,
    }
    for name, words in wanted.items():
        found = list(inspect.signature(getattr(octet, name)).parameters)
        assert found[: len(words.split())] == words.split(), name
    held = inspect.signature(octet.LayerNormMLP).parameters
    assert (held["activation"].default, held["normalization"].default) == ("gelu", "LayerNorm")
    assert (held["eps"].default, held["bias"].default) == (1e-5, True)
