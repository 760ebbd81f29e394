"""Linear: eager and compiled agree bit for bit, one node each way, and numbers are right."""

from typing import Any

import octet
import pytest
from laws import (
    DRAWING,
    RECIPES,
    assert_product,
    assert_same,
    captured,
    compiled,
    inputs,
    layer,
    step,
    twins,
    within,
)
from octet import _texts, recipe

import torch

every_recipe = pytest.mark.parametrize("name", RECIPES)
QUANTIZED = [name for name in RECIPES if name not in ("none", "delayed")]


# ---- eager and compiled ----------------------------------------------------------------------


@every_recipe
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_linear__compiled_is_eager(name: str, backend: str) -> None:
    eager, other = twins()
    x, grad = inputs()
    fast, counter = compiled(within(RECIPES[name], other), backend)
    for scale in (1, 3, 0.5):
        a = step(eager, within(RECIPES[name], eager), x * scale, grad)
        assert_same(a, step(other, fast, x * scale, grad))
    assert counter.frame_count == 1


@every_recipe
def test_linear__one_graph_serves_every_batch(name: str) -> None:
    eager, other = twins()
    fast, counter = compiled(within(RECIPES[name], other), dynamic=True)
    for rows in (5, 16, 33):
        x, grad = inputs(rows, 3)
        a = step(eager, within(RECIPES[name], eager), x, grad)
        assert_same(a, step(other, fast, x, grad))
    assert counter.frame_count == 1


@every_recipe
def test_linear__autocast_around_compiled_code(name: str) -> None:
    eager, other = twins()
    x, grad = inputs()
    fast, counter = compiled(other)
    for _ in range(3):
        a = step(eager, within(RECIPES[name], eager), x, grad)
        assert_same(a, step(other, within(RECIPES[name], fast), x, grad))
    assert counter.frame_count == 1


OPTIONS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "no bias": ({"bias": False}, ()),
    "save_original_input": ({"save_original_input": True}, ()),
    "float32": ({"params_dtype": torch.float32}, ()),
    "first microbatch": ({}, (True,)),
    "fp8_output": ({}, (None, True)),
    "fp8_grad": ({}, (None, False, True)),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", QUANTIZED)
def test_linear__options_compile(name: str, option: str) -> None:
    settings, words = OPTIONS[option]
    eager, other = twins(**settings)
    x, grad = inputs(dtype=settings.get("params_dtype", torch.bfloat16))
    active = RECIPES[name]

    def run(linear: octet.Linear) -> Any:  # noqa: ANN401
        def call(x: torch.Tensor) -> torch.Tensor:
            y = linear(x * 1, *words)
            return y.dequantize() if isinstance(y, octet.QuantizedTensor) else y

        return within(active, call)

    fast, _ = compiled(run(other))
    assert_same(step(eager, run(eager), x, grad), step(other, fast, x, grad))


# ---- graphs ----------------------------------------------------------------------------------


@every_recipe
def test_linear__is_one_node_each_way(name: str) -> None:
    x, grad = inputs()
    forward, backward = captured(within(RECIPES[name], layer()), x, grad)
    nodes = {
        # Amaxes go into the layer's own; all scales are updated at the autocast's end.
        "delayed": (
            ["delayed_update.default", "linear_into.two"],
            ["linear_backward_into.three"],
        ),
        **dict.fromkeys(
            DRAWING,
            (["linear_drawn.default"], ["linear_backward.default"]),
        ),
        "none": ([], []),  # it is torch's
    }
    usual = ["linear.default"], ["linear_backward.default"]
    more_forward, more_backward = nodes.get(name, usual)
    assert sorted(forward) == [f"octet.{op}" for op in more_forward]
    assert sorted(backward) == [f"octet.{op}" for op in more_backward]


@pytest.mark.parametrize("name", ["none", "mxfp8"])
@pytest.mark.parametrize("compile_it", [False, True])
def test_linear__an_option_that_changes_later_is_noticed(name: str, compile_it: bool) -> None:
    linear = layer()
    x, _ = inputs()
    call: Any = within(RECIPES[name], linear)
    call = compiled(call)[0] if compile_it else call
    whole = call(x)
    linear.return_bias = True
    product, bias = call(x)
    assert bias is linear.bias
    torch.testing.assert_close(product + bias, whole, rtol=0.02, atol=0.02)
    linear.return_bias = False
    assert torch.equal(call(x), whole)
    linear.in_features = 71
    with pytest.raises(Exception, match=r"weight is .*; it must be \(44, 71\)"):
        call(x)


def test_linear__delayed_scaling_updates_all_layers_in_one_node() -> None:
    one, other = twins()
    x, _ = inputs()

    def call(x: torch.Tensor) -> torch.Tensor:
        return one(x) + other(x) + one(x / 2)

    forward, backward = captured(within(RECIPES["delayed"], call), x, torch.ones(3, 13, 44))
    assert sorted(forward) == ["octet.delayed_update.default", *["octet.linear_into.two"] * 3]
    assert backward == ["octet.linear_backward_into.three"] * 3


@pytest.mark.parametrize("frozen", ["input", "weight"])
def test_linear__saves_only_what_is_needed(frozen: str) -> None:
    linear = layer()
    x, _ = inputs()
    x.requires_grad_(frozen != "input")
    linear.weight.requires_grad_(frozen != "weight")
    saved = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t),
        octet.autocast(recipe=RECIPES["mxfp8"]),
    ):
        linear(x)
    (block,) = saved
    rows = 39 if frozen == "input" else 44
    data, scales = rows * 70, 4 * 128  # columnwise bytes, and 2 rows of scales padded to 4
    assert block.numel() == -(-data // 256) * 256 + scales


# ---- numbers ---------------------------------------------------------------------------------


def decoded(active: recipe.Recipe, role: str, x: torch.Tensor, usage: str) -> torch.Tensor:
    """What a role's quantizer makes of a tensor, read from the bytes of one direction."""
    text = _texts.role_quantizer(active.text, role)
    text = _texts.with_usage(text, usage == "rowwise", usage == "columnwise")
    q = octet.quantizers.from_text(text)
    rows = x.reshape(-1, x.shape[-1])
    return q(rows).dequantize(torch.float32).double()


EXACT = {
    "current": recipe.Float8CurrentScaling(),
    "block": recipe.Float8BlockScaling(),
    "block, f32 scales": recipe.Float8BlockScaling(use_f32_scales=True),
    "mxfp8": recipe.MXFP8BlockScaling(),
    "mxfp8, hybrid": recipe.MXFP8BlockScaling(fp8_format=recipe.Format.HYBRID),
    "nvfp4": recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
    "mxfp4": recipe.MXFP4BlockScaling(disable_stochastic_rounding=True),
}


@pytest.mark.parametrize("name", EXACT)
def test_linear__products_are_those_of_the_decoded_bytes(name: str) -> None:
    active, linear = EXACT[name], layer()
    x, grad = inputs()
    y, dx, dw, db, *_ = step(linear, within(active, linear), x, grad)
    w, b = linear.weight.detach(), linear.bias.detach()
    x_rows, w_rows = (
        decoded(active, "input", x, "rowwise"),
        decoded(active, "weight", w, "rowwise"),
    )
    assert_product(y, x_rows, w_rows.T, b.double())
    dy = grad.reshape(-1, grad.shape[-1])
    dy_rows = decoded(active, "grad_output", dy, "rowwise")
    dy_columns = decoded(active, "grad_output", dy, "columnwise")
    assert_product(dx, dy_rows, decoded(active, "weight", w, "columnwise"))
    assert_product(dw, dy_columns.T, decoded(active, "input", x, "columnwise"))
    assert_product(db, torch.ones(1, dy.shape[0]).double(), dy.double())


def test_linear__without_a_recipe_is_linear() -> None:
    linear = layer()
    x, grad = inputs()
    y, dx, dw, *_ = step(linear, linear, x, grad)
    x, dy = x.reshape(-1, 70).double(), grad.reshape(-1, 44).double()
    w, b = linear.weight.detach().double(), linear.bias.detach().double()
    assert_product(y, x, w.T, b)
    assert_product(dx, dy, w)
    assert_product(dw, dy.T, x)


# ---- shapes ----------------------------------------------------------------------------------


@every_recipe
@pytest.mark.parametrize("leading", [(), (0,), (1,), (2, 0, 3), (2, 1, 2, 1, 2)], ids=str)
def test_linear__takes_any_rank_and_any_rows(name: str, leading: tuple[int, ...]) -> None:
    x = torch.randn(*leading, 70, dtype=torch.bfloat16, requires_grad=True)
    y = within(RECIPES[name], layer())(x)
    assert y.shape == (*leading, 44)
    y.sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@every_recipe
def test_linear__strided_inputs_are_their_copies(name: str, dtype: torch.dtype) -> None:
    linear = layer(params_dtype=dtype)
    call = within(RECIPES[name], linear)
    views = [
        torch.randn(70, 9).to(dtype).t(),
        torch.randn(9, 140).to(dtype)[:, :70],
        torch.randn(5, 9, 70).to(dtype).transpose(0, 1),
        torch.randn(1, 70).to(dtype).expand(6, 70),
    ]
    for x in views:
        linear.reset_state()
        y = call(x)
        linear.reset_state()
        if name == "none":  # torch's own product, which chooses by strides
            same = torch.nn.functional.linear(x, linear.weight, linear.bias)
        else:
            same = call(x.contiguous())
        assert torch.equal(y, same)
        assert y.dtype == dtype


def test_linear__compiled_code_writes_the_cached_weight_in_place() -> None:
    linear = layer()
    x, _ = inputs()
    fast, counter = compiled(within(RECIPES["mxfp8"], linear))
    fast(x, True)
    first = [buffer.data_ptr() for buffer in linear._weight_cache.memory]
    wanted = within(RECIPES["mxfp8"], linear)(x)
    with torch.no_grad():
        linear.weight.mul_(2)
    fast(x, True)
    assert [buffer.data_ptr() for buffer in linear._weight_cache.memory] == first
    assert counter.frame_count == 1
    assert torch.equal(fast(x, False), within(RECIPES["mxfp8"], linear)(x))
    assert not torch.equal(fast(x, False), wanted)


def test_linear__a_default_device_wins_over_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with torch.device("cpu"):
        assert octet.Linear(4, 4).weight.device.type == "cpu"
    with torch.device("meta"):
        assert octet.Linear(4, 4).weight.device.type == "meta"
    try:
        device = octet.Linear(4, 4).weight.device.type
    except (AssertionError, RuntimeError) as error:  # where there is none to choose
        device = "cuda" if "CUDA" in str(error) or "NVIDIA" in str(error) else ""
    assert device == "cuda"


@pytest.mark.parametrize("name", RECIPES)
def test_linear__works_under_a_default_device_that_is_another(name: str) -> None:
    """A model that is made under it and moved then; one that runs under it, too."""
    x, grad = inputs()
    usual = layer(delay_wgrad_compute=True)
    with torch.device("meta"):
        other = layer(delay_wgrad_compute=True)
        moved = layer(device=None, delay_wgrad_compute=True).to_empty(device="cpu")
    moved.reset_parameters()
    found = []
    for linear in (usual, other, moved):
        linear.load_state_dict(usual.state_dict())
    for linear, device in ((usual, "cpu"), (other, "meta"), (moved, "meta")):
        with torch.device(device):
            state = step(linear, within(RECIPES[name], linear), x, grad)
            linear.backward_dw()
        found.append([*state, linear.weight.grad])
    assert_same(found[0], found[1])
    assert_same(found[0], found[2])


@pytest.mark.parametrize("name", ["current", "delayed"])
def test_linear__memory_that_is_not_there_is_torchs_error(name: str) -> None:
    linear = layer()
    call = within(RECIPES[name], linear)
    x, _ = inputs()
    row = x.detach()[:1]
    for many in (
        row.expand(2**40, -1, -1),
        row.expand(2**40, -1, -1).detach().requires_grad_(),
    ):
        with pytest.raises(torch.OutOfMemoryError, match=r"octet.Linear.*cannot allocate"):
            call(many)
    assert torch.isfinite(call(x)).all()
