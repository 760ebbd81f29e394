"""Recipes are values, print as one line, and every field reaches the core."""

from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import RECIPES
from octet import _C, recipe
from octet.recipe import Format, MMParams, QParams

ALL = [active for active in RECIPES.values() if active is not None]


@pytest.mark.parametrize("active", ALL, ids=str)
def test_recipe__is_a_value(active: recipe.Recipe) -> None:
    again = type(active)(**{k: v for k, v in vars(active).items() if k != "text"})
    assert again == active
    assert hash(again) == hash(active)
    assert len({again, active}) == 1
    assert repr(active) == f"{type(active).__name__}({active.text!r})"
    assert _C.canonical("recipe", active.text) == active.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("DelayedScaling", "delayed"),
        ("Float8CurrentScaling", "current"),
        ("Float8BlockScaling", "block"),
        ("MXFP8BlockScaling", "mxfp8"),
        ("NVFP4BlockScaling", "nvfp4"),
    ],
)
def test_recipe__defaults_are_the_cores(name: str, text: str) -> None:
    assert getattr(recipe, name)().text == text


FIELDS: list[tuple[recipe.Recipe, str]] = [
    (recipe.DelayedScaling(margin=2), "delayed:margin=2"),
    (recipe.DelayedScaling(fp8_format=Format.E4M3), "delayed:format=e4m3"),
    (recipe.DelayedScaling(amax_history_len=8), "delayed:history=8"),
    (recipe.DelayedScaling(amax_compute_algo="most_recent"), "delayed:algo=most_recent"),
    (recipe.DelayedScaling(reduce_amax=False), "delayed+noreduce"),
    (recipe.Float8CurrentScaling(use_power_2_scales=True), "current+pow2"),
    (recipe.Float8CurrentScaling(fp8_format=Format.E4M3), "current:format=e4m3"),
    (
        recipe.Float8CurrentScaling(fp8_quant_fwd_inp=QParams(power_2_scale=True)),
        "current+x.pow2",
    ),
    (
        recipe.Float8CurrentScaling(fp8_quant_fwd_weight=QParams(amax_epsilon=0.5)),
        "current:w.eps=0.5",
    ),
    (
        recipe.Float8CurrentScaling(fp8_quant_bwd_grad=QParams(power_2_scale=True)),
        "current+g.pow2",
    ),
    (recipe.Float8CurrentScaling(fp8_gemm_fprop=MMParams()), "current:fprop=split"),
    (recipe.Float8CurrentScaling(fp8_gemm_dgrad=MMParams(False)), "current:dgrad=fast"),
    (recipe.Float8CurrentScaling(fp8_gemm_wgrad=MMParams(False)), "current:wgrad=fast"),
    (
        recipe.Float8CurrentScaling(backward_override="dequantized"),
        "current:override=dequantized",
    ),
    (recipe.MXFP8BlockScaling(enable_2d_quantization=True), "mxfp8+2d"),
    (recipe.MXFP8BlockScaling(fp8_format=Format.HYBRID), "mxfp8:format=hybrid"),
    (
        recipe.MXFP8BlockScaling(backward_override="high_precision"),
        "mxfp8:override=high_precision",
    ),
    (recipe.Float8BlockScaling(use_f32_scales=True), "block+nopow2"),
    (recipe.Float8BlockScaling(x_block_scaling_dim=2), "block+x.2d"),
    (recipe.Float8BlockScaling(w_block_scaling_dim=1), "block+w.no2d"),
    (recipe.Float8BlockScaling(grad_block_scaling_dim=2), "block+g.2d"),
    (
        recipe.Float8BlockScaling(fp8_quant_fwd_inp=QParams(True, amax_epsilon=0.5)),
        "block:x.eps=0.5",
    ),
    (recipe.NVFP4BlockScaling(disable_rht=True), "nvfp4+norht"),
    (recipe.NVFP4BlockScaling(disable_stochastic_rounding=True), "nvfp4+nosr"),
    (recipe.NVFP4BlockScaling(disable_2d_quantization=True), "nvfp4+no2d"),
    (
        recipe.NVFP4BlockScaling(disable_rht=True, row_scaled_activation=True),
        "nvfp4+norht+rowscaled",
    ),
    (recipe.NVFP4BlockScaling(nvfp4_4over6="weights"), "nvfp4:4over6=weights"),
    (recipe.NVFP4BlockScaling(nvfp4_4over6_e4m3_use_256="none"), "nvfp4:max256=none"),
    (recipe.NVFP4BlockScaling(nvfp4_4over6_err_mode="MSE"), "nvfp4:err=mse"),
    (
        recipe.NVFP4BlockScaling(fp4_quant_bwd_grad=QParams(random_hadamard_transform=True)),
        "nvfp4+nosr",
    ),
]


@pytest.mark.parametrize(("active", "text"), FIELDS, ids=str)
def test_recipe__field_reaches_the_core(active: recipe.Recipe, text: str) -> None:
    assert _C.equal("recipe", active.text, text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: recipe.DelayedScaling(amax_history_len=0),
        lambda: recipe.DelayedScaling(backward_override="dequantized"),
        lambda: recipe.DelayedScaling(fp8_format=Format.E5M2),
        lambda: recipe.MXFP8BlockScaling(margin=1),
        lambda: recipe.Float8BlockScaling(fp8_gemm_fprop=MMParams(False)),
        lambda: recipe.Float8BlockScaling(x_block_scaling_dim=3),
        lambda: recipe.Float8CurrentScaling(
            fp8_quant_fwd_inp=QParams(random_hadamard_transform=True)
        ),
        lambda: recipe.Float8BlockScaling(fp8_quant_bwd_grad=QParams(stochastic_rounding=True)),
        lambda: recipe.Float8BlockScaling(
            fp8_quant_fwd_inp=QParams(random_hadamard_transform=True)
        ),
        lambda: recipe.Float8BlockScaling(fp8_quant_fwd_inp=QParams(fp4_2d_quantization=True)),
        lambda: recipe.NVFP4BlockScaling(row_scaled_activation=True),
        lambda: recipe.NVFP4BlockScaling(fp4_format=Format.E4M3),
        lambda: recipe.NVFP4BlockScaling(nvfp4_4over6="some"),
    ],
)
def test_recipe__nonsense_is_a_value_error(make: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=r"."):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: recipe.DelayedScaling(amax_compute_algo="mean"),
            "DelayedScaling: algo is 'mean'; allowed: max, most_recent",
        ),
        (lambda: recipe.DelayedScaling(amax_compute_algo="callback"), "the function itself"),
        (lambda: recipe.DelayedScaling(margin=200), "margin is 200; it is from -64 to 64"),
        (lambda: recipe.DelayedScaling(amax_history_len=-1), "DelayedScaling: history"),
        (
            lambda: recipe.DelayedScaling(backward_override="dequantized"),
            "DelayedScaling: .*override_ is dequantized, which has no meaning",
        ),
        (
            lambda: recipe.NVFP4BlockScaling(nvfp4_4over6="both"),
            "NVFP4BlockScaling: .*'both'; allowed: none, weights, activations, all",
        ),
    ],
)
def test_recipe__a_refusal_names_class_value_and_choices(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: recipe.Float8CurrentScaling(fp8_gemm_fprop=True), "fp8_gemm_fprop is True"),
        (lambda: recipe.Float8BlockScaling(fp8_quant_fwd_inp={}), r"fp8_quant_fwd_inp is \{\}"),
        (lambda: recipe.NVFP4BlockScaling(fp4_quant_bwd_grad=1), "fp4_quant_bwd_grad is 1"),
        (lambda: recipe.CustomRecipe(None), "qfactory is None"),
    ],
)
def test_recipe__groups_and_functions_are_such(make: Any, pattern: str) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match=pattern):
        make()


def test_recipe__a_format_is_one() -> None:
    for make in (recipe.DelayedScaling, recipe.MXFP8BlockScaling, recipe.NVFP4BlockScaling):
        with pytest.raises(TypeError, match=r"fp8_format is 'e4m3'; it is a Format"):
            make(fp8_format="e4m3")


def test_recipe__custom_asks_for_every_role() -> None:
    asked = []

    def factory(role: recipe.QuantizerRole) -> octet.Quantizer | None:
        asked.append(role)
        return octet.MXFP8Quantizer("e4m3") if role.tensor_type == "input" else None

    text = recipe.CustomRecipe(factory).text_for("linear", "fc1")
    assert text == "custom:input=mxfp8:e4m3/1x32+row+col"
    assert {role.tensor_type for role in asked} >= {"input", "weight", "output", "grad_output"}
    assert {(role.module_type, role.name) for role in asked} == {("linear", "fc1")}
