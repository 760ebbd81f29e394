"""Recipes are values, print as one line, and every field reaches the core."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import octet
import pytest
from laws import RECIPES, assert_same, compiled, inputs, layer, step, within
from octet import _C, recipe
from octet.recipe import Format, MMParams, QParams

import torch

ALL = [active for active in RECIPES.values() if active is not None]


@pytest.mark.parametrize("active", ALL, ids=str)
def test_recipe__is_a_value(active: recipe.Recipe) -> None:
    again = dataclasses.replace(active)
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
        ("MXFP4BlockScaling", "mxfp4"),
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
    (recipe.MXFP8BlockScaling(product="folded"), "mxfp8"),
    (recipe.MXFP8BlockScaling(product="exact"), "mxfp8:product=exact"),
    (recipe.MXFP8BlockScaling(batch_invariant=True), "mxfp8+batch_invariant"),
    (recipe.Float8BlockScaling(batch_invariant=True), "block+batch_invariant"),
    (recipe.DelayedScaling(batch_invariant=True), "delayed+batch_invariant"),
    (
        recipe.MXFP4BlockScaling(disable_stochastic_rounding=True, batch_invariant=True),
        "mxfp4+batch_invariant+nosr",
    ),
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
    (recipe.MXFP4BlockScaling(disable_rht=False), "mxfp4+rht"),
    (recipe.MXFP4BlockScaling(disable_stochastic_rounding=True), "mxfp4+nosr"),
    (recipe.MXFP4BlockScaling(disable_2d_quantization=True), "mxfp4+no2d"),
    (recipe.MXFP4BlockScaling(fp4_quant_bwd_grad=QParams()), "mxfp4+nosr"),
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
        lambda: recipe.MXFP8BlockScaling(product="quick"),
        lambda: recipe.Float8CurrentScaling(batch_invariant=True),
        lambda: recipe.NVFP4BlockScaling(batch_invariant=True),
        lambda: recipe.MXFP4BlockScaling(batch_invariant=True),
        lambda: recipe.Float8BlockScaling(x_block_scaling_dim=2, batch_invariant=True),
        lambda: recipe.CustomRecipe(lambda role: None, product="quick"),
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
        lambda: recipe.MXFP4BlockScaling(fp4_format=Format.E4M3),
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
        (lambda: recipe.MXFP4BlockScaling(fp4_quant_bwd_grad=1), "fp4_quant_bwd_grad is 1"),
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


@pytest.mark.parametrize("asks", [False, True])
def test_recipe__custom_asks_for_grad_weight_only_where_told(asks: bool) -> None:
    asked = []

    def factory(role: recipe.QuantizerRole) -> octet.Quantizer | None:
        asked.append(role)
        return octet.MXFP8Quantizer("e4m3") if role.tensor_type == "input" else None

    text = recipe.CustomRecipe(factory, quantize_grad_weight=asks).text_for("linear", "fc1")
    assert text == "custom:input=mxfp8:e4m3/1x32+row+col"
    roles = ["input", "weight", "output", "grad_output", "grad_input"]
    assert [role.tensor_type for role in asked] == roles + ["grad_weight"] * asks
    assert {(role.module_type, role.name) for role in asked} == {("linear", "fc1")}


def test_recipe__custom_has_no_text_of_its_own() -> None:
    with pytest.raises(AttributeError, match="a text for each layer: text_for"):
        print(recipe.CustomRecipe(lambda role: None).text)


# ---- assignment ------------------------------------------------------------------------------


def nothing(role: recipe.QuantizerRole) -> None:
    del role


CUSTOM = recipe.CustomRecipe(nothing)


def fresh(active: recipe.Recipe) -> recipe.Recipe:
    """The same recipe, not used yet."""
    return dataclasses.replace(active)


def test_recipe__fields_may_be_assigned_before_the_first_use() -> None:
    active = recipe.NVFP4BlockScaling()
    active.backward_override = "dequantized"
    active.disable_rht = True
    assert repr(active) == "NVFP4BlockScaling('nvfp4+norht:override=dequantized')"
    assert active == recipe.NVFP4BlockScaling(disable_rht=True, backward_override="dequantized")


def with_text(active: recipe.Recipe) -> None:
    if active.custom():
        active.text_for("linear", "")
    else:
        assert active.text


def with_a_layer(active: recipe.Recipe) -> None:
    with octet.autocast(recipe=active):
        layer()(inputs()[0])


def with_stored_weights(active: recipe.Recipe) -> None:
    with octet.quantized_model_init(recipe=active):
        layer()


USES: dict[str, Callable[[Any], object]] = {
    "text": with_text,
    "hash": hash,
    "equality": lambda active: active == fresh(active),
    "equality from the right": lambda active: fresh(active) == active,
    "a layer": with_a_layer,
    "stored weights": with_stored_weights,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("active", [*ALL, CUSTOM], ids=str)
def test_recipe__is_frozen_by_its_first_use(active: recipe.Recipe, use: str) -> None:
    active = fresh(active)
    repr(active), active.backward_override, active.mxfp8()  # no uses
    active.fp8_dpa = True
    USES[use](active)
    before = dict(vars(active))
    with pytest.raises(AttributeError, match=r"has been used.*dataclasses\.replace"):
        active.fp8_dpa = False
    assert vars(active) == before
    other = dataclasses.replace(active, fp8_dpa=False)
    other.fp8_mha = True
    assert other != active


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("backward_override", "some", ValueError),
        ("fp8_format", "e4m3", TypeError),
        ("row_scaled_activation", True, ValueError),  # not with disable_rht=False
        ("fp4_quant_bwd_grad", 1, TypeError),
        ("margin", 0, AttributeError),  # no field of this one
    ],
)
def test_recipe__an_invalid_assignment_changes_nothing(
    name: str,
    value: Any,  # noqa: ANN401
    error: type[Exception],
) -> None:
    active = recipe.NVFP4BlockScaling(disable_2d_quantization=True)
    before = dict(vars(active))
    with pytest.raises(error, match=name.split("_")[-1] if error is AttributeError else "."):
        setattr(active, name, value)
    assert vars(active) == before
    active.disable_stochastic_rounding = True
    assert active.text == "nvfp4+nosr+no2d"


def test_recipe__replace_takes_steps_that_assignment_cannot() -> None:
    active = recipe.NVFP4BlockScaling()
    with pytest.raises(ValueError, match="row"):
        active.row_scaled_activation = True
    other = dataclasses.replace(active, row_scaled_activation=True, disable_rht=True)
    assert _C.equal("recipe", other.text, "nvfp4+norht+rowscaled")


def test_recipe__a_field_cannot_be_deleted() -> None:
    with pytest.raises(AttributeError, match="margin"):
        del recipe.MXFP8BlockScaling().margin


@pytest.mark.parametrize("active", [*ALL, CUSTOM], ids=str)
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_recipe__a_copy_is_equal_and_not_frozen(
    active: recipe.Recipe,
    again: Any,  # noqa: ANN401
) -> None:
    hash(active)
    other = again(active)
    other.fp8_dpa = False
    assert repr(other) == repr(active)
    assert other == active
    assert hash(other) == hash(active)


def test_recipe__the_default_one_cannot_be_changed_for_all() -> None:
    with pytest.raises(AttributeError, match="has been used"):
        octet.default_recipe().margin = 0
    mine = octet.get_default_recipe()
    mine.backward_override = "high_precision"
    assert octet.get_default_recipe() == octet.default_recipe() != mine


def test_recipe__an_assigned_field_decides_what_layers_compute() -> None:
    linear, (x, grad) = layer(), inputs()
    active = recipe.MXFP8BlockScaling()
    active.backward_override = "high_precision"
    want = recipe.MXFP8BlockScaling(backward_override="high_precision")
    found = [step(linear, within(each, linear), x, grad) for each in (active, want)]
    assert_same(*found)
    usual = step(linear, within(recipe.MXFP8BlockScaling(), linear), x, grad)
    assert not torch.equal(found[0][1], usual[1])


def test_recipe__compiled_code_follows_an_assignment() -> None:
    linear, (x, _) = layer(), inputs()
    active = recipe.MXFP8BlockScaling()
    fast, counter = compiled(within(active, linear))
    for _ in range(2):
        assert torch.equal(fast(x), within(recipe.MXFP8BlockScaling(), linear)(x))
    assert counter.frame_count == 1
    active.enable_2d_quantization = True
    want = within(recipe.MXFP8BlockScaling(enable_2d_quantization=True), linear)(x)
    assert torch.equal(fast(x), want)
    assert counter.frame_count == 2
    # Eager code freezes it, which is no reason to compile again.
    assert torch.equal(within(active, linear)(x), want)
    assert torch.equal(fast(x), want)
    assert counter.frame_count == 2


def test_recipe__may_be_assigned_and_replaced_in_compiled_code() -> None:
    linear, (x, _) = layer(), inputs()

    def call(x: torch.Tensor) -> torch.Tensor:
        active = recipe.MXFP8BlockScaling()
        active.enable_2d_quantization = True
        with octet.autocast(recipe=dataclasses.replace(active, fp8_format=Format.HYBRID)):
            return linear(x) if active.mxfp8() else x

    fast, counter = compiled(call)
    assert torch.equal(fast(x), call(x))
    assert torch.equal(fast(x), call(x))
    assert counter.frame_count == 1


# ---- TransformerEngine's names ---------------------------------------------------------------

# The positional arguments of TransformerEngine's dataclasses, in their order.
POSITIONAL = {
    "DelayedScaling": (
        "margin fp8_format amax_history_len amax_compute_algo scaling_factor_compute_algo "
        "reduce_amax fp8_dpa fp8_mha backward_override"
    ),
    "Float8CurrentScaling": (
        "use_power_2_scales fp8_format fp8_gemm_fprop fp8_gemm_dgrad fp8_gemm_wgrad fp8_dpa "
        "fp8_mha backward_override"
    ),
    "MXFP8BlockScaling": (
        "margin fp8_format fp8_dpa fp8_mha backward_override enable_2d_quantization"
    ),
    "Float8BlockScaling": (
        "use_f32_scales fp8_format x_block_scaling_dim w_block_scaling_dim "
        "grad_block_scaling_dim fp8_gemm_fprop fp8_gemm_dgrad fp8_gemm_wgrad fp8_dpa fp8_mha "
        "backward_override"
    ),
    "NVFP4BlockScaling": (
        "disable_rht disable_stochastic_rounding disable_2d_quantization "
        "row_scaled_activation nvfp4_4over6 nvfp4_4over6_e4m3_use_256 nvfp4_4over6_err_mode "
        "fp4_format fp8_format fp8_dpa fp8_mha backward_override"
    ),
    "CustomRecipe": (
        "qfactory fp8_format fp8_dpa fp8_mha backward_override quantization_alignment"
    ),
}


OWN = (
    "disable_rht disable_stochastic_rounding disable_2d_quantization fp4_format fp8_dpa "
    "fp8_mha backward_override"
)


def test_recipe__mxfp4_takes_the_arguments_of_nvfp4_that_it_has_in_their_order() -> None:
    parameters = inspect.signature(recipe.MXFP4BlockScaling).parameters.values()
    assert " ".join(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD) == OWN
    nvfp4 = list(inspect.signature(recipe.NVFP4BlockScaling).parameters)
    assert [name for name in nvfp4 if name in OWN.split()] == OWN.split()


@pytest.mark.parametrize("name", POSITIONAL)
def test_recipe__positional_arguments_are_transformer_engines(name: str) -> None:
    parameters = inspect.signature(getattr(recipe, name)).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert " ".join(positional) == POSITIONAL[name]


def test_recipe__attention_changes_nothing_here() -> None:
    for name in POSITIONAL:
        if name != "CustomRecipe":
            made = getattr(recipe, name)(fp8_dpa=True, fp8_mha=True)
            assert made.text == getattr(recipe, name)().text


IS = {
    "delayed": ("delayed", "float8_per_tensor_scaling"),
    "current": ("float8_current_scaling", "float8_per_tensor_scaling"),
    "block": ("float8_block_scaling",),
    "mxfp8": ("mxfp8",),
    "nvfp4": ("nvfp4",),
    "mxfp4": ("mxfp4",),
    "custom": ("custom",),
}


@pytest.mark.parametrize("name", IS)
def test_recipe__tells_which_one_it_is(name: str) -> None:
    active = CUSTOM if name == "custom" else RECIPES[name]
    questions = {question for names in IS.values() for question in names}
    for asked in (active, type(active)):
        assert {q for q in questions if getattr(asked, q)()} == set(IS[name])


def test_recipe__formats_know_their_largest_values() -> None:
    for name, dtypes in {
        "E4M3": (torch.float8_e4m3fn, torch.float8_e4m3fn),
        "E5M2": (torch.float8_e5m2, torch.float8_e5m2),
        "HYBRID": (torch.float8_e4m3fn, torch.float8_e5m2),
    }.items():
        value = Format[name].value
        assert (value.max_fwd, value.max_bwd) == tuple(torch.finfo(d).max for d in dtypes)
    assert Format.E2M1.value == (6, 6)
    assert all(pickle.loads(pickle.dumps(each)) is each for each in Format)


@pytest.mark.parametrize("name", [*recipe.__all__, "FormatMax"])
def test_recipe__pickles_name_the_public_module(name: str) -> None:
    """A pickle of any version finds its class: in octet.recipe, wherever that is written."""
    assert getattr(recipe, name).__module__ == "octet.recipe"
    assert pickle.loads(f"coctet.recipe\n{name}\n.".encode()) is getattr(recipe, name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: recipe.CustomRecipe(nothing, "e4m3"), "fp8_format is 'e4m3'"),
        (lambda: recipe.CustomRecipe(nothing, backward_override="x"), "CustomRecipe: .*'x'"),
        (lambda: recipe.CustomRecipe(nothing, quantization_alignment=0), "alignment is 0"),
    ],
)
def test_recipe__a_custom_one_is_checked_when_it_is_made(
    make: Callable[[], object], said: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        make()
