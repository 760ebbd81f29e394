"""LayerNormLinear: the unfused calls' bits, torch's gradients, and all that Linear does."""

import copy
import io
from typing import Any

import octet
import pytest
from laws import BOUNDS, DRAWING, RECIPES, assert_same, captured, compiled, inputs, within
from laws import step_of as step
from octet import _C, _ops
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import torch

F = torch.nn.functional
KINDS = ("RMSNorm", "LayerNorm")
ACTIVE = [name for name in RECIPES if name != "none"]
every_recipe = pytest.mark.parametrize("name", RECIPES)
every_kind = pytest.mark.parametrize("kind", KINDS)


def layer(kind: str = "LayerNorm", **options: Any) -> octet.LayerNormLinear:  # noqa: ANN401
    """A small layer whose sizes are no multiple of any block, with a norm that is not 1."""
    torch.manual_seed(1)
    options = {"params_dtype": torch.bfloat16, "device": "cpu", **options}
    made = octet.LayerNormLinear(70, 44, normalization=kind, **options)
    with torch.no_grad():
        made.layer_norm_weight.add_(0.5 * torch.randn(70))
        if made.layer_norm_bias is not None:
            made.layer_norm_bias.copy_(torch.randn(70))
    return made


def norm_of(made: octet.LayerNormLinear, x: torch.Tensor) -> torch.Tensor:
    """f(x) by the op itself: a product with the identity, without a recipe."""
    word = made.normalization.lower()
    options: tuple[tuple[str, Any], ...] = (("prologue", word), ("eps", made.eps))
    options += (("zero_centered", True),) if made.zero_centered_gamma else ()
    names = ("bf16", "bf16", None, "bf16", "bf16" if word == "layernorm" else None)
    words = _C.linear_words(names, (None, None), "none", (False,) * 3, options)
    eye = torch.eye(70, dtype=torch.bfloat16)
    held = [p.detach() for p in (made.layer_norm_weight, made.layer_norm_bias) if p is not None]
    return _ops.linear([x, eye, *held], (*x.shape, 70), words)[0]


# ---- against the unfused calls and float64 ---------------------------------------------------


@every_kind
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("name", ACTIVE)
def test_norm_linear__gives_the_bits_of_norm_and_linear(
    kind: str, name: str, zero_centered: bool
) -> None:
    """Output, the gradients of weight and bias, and delayed scaling's state."""
    fused = layer(kind, zero_centered_gamma=zero_centered)
    plain = octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")
    plain.load_state_dict({"weight": fused.weight, "bias": fused.bias})
    x, grad = inputs()
    mine = step(fused, within(RECIPES[name], fused), x, grad)
    theirs = step(plain, within(RECIPES[name], plain), norm_of(fused, x), grad)
    vectors = 1 if kind == "RMSNorm" else 2
    del mine[2 : 2 + vectors]
    del mine[1], theirs[1]
    assert_same(mine, theirs)


@every_kind
@every_recipe
def test_norm_linear__gradients_are_the_norms_own(kind: str, name: str) -> None:
    """Of input, gamma and beta: float64's of the gradient that the linear layer gives f(x)."""
    fused = layer(kind)
    plain = octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")
    plain.load_state_dict({"weight": fused.weight, "bias": fused.bias})
    x, grad = inputs()
    mine = step(fused, within(RECIPES[name], fused), x, grad)
    inner = step(plain, within(RECIPES[name], plain), norm_of(fused, x), grad)[1]
    held = [p for p in (fused.layer_norm_weight, fused.layer_norm_bias) if p is not None]
    leaves = [t.detach().double().requires_grad_() for t in (x, *held)]
    if kind == "RMSNorm":
        wide = F.rms_norm(leaves[0], (70,), leaves[1], fused.eps)
    else:
        wide = F.layer_norm(leaves[0], (70,), leaves[1], leaves[2], fused.eps)
    wanted = torch.autograd.grad(wide, leaves, inner.double())
    for found, want in zip(mine[1 : 2 + len(held)], wanted, strict=True):
        # A rounding of f(x)'s gradient and one of the result, 2^-9 of each; sums of 39 rows or
        # 70 columns of such errors stay below 2^-6 of the largest.
        bound = 2.0**-6 * want.abs().max()
        assert bool(((found.double() - want).abs() <= bound).all())


@every_kind
@pytest.mark.parametrize(("name", "bound"), BOUNDS.items())
def test_norm_linear__is_near_float64(kind: str, name: str, bound: float) -> None:
    made = layer(kind)
    x, grad = inputs()
    found = step(made, within(RECIPES[name], made), x, grad)[: 2 + len(list(made.parameters()))]
    leaves = [t.detach().double().requires_grad_() for t in (x, *made.parameters())]
    held = dict(zip([n for n, _ in made.named_parameters()], leaves[1:], strict=True))
    gamma, beta = held["layer_norm_weight"], held.get("layer_norm_bias")
    if kind == "RMSNorm":
        wide = F.rms_norm(leaves[0], (70,), gamma, made.eps)
    else:
        wide = F.layer_norm(leaves[0], (70,), gamma, beta, made.eps)
    y = F.linear(wide, held["weight"], held["bias"])
    wanted = [y, *torch.autograd.grad(y, leaves, grad.double())]
    for mine, want in zip(found, wanted, strict=True):
        error = (mine.double() - want).norm() / want.norm()
        assert error < bound


def test_norm_linear__without_a_recipe_all_derivatives_are_there() -> None:
    made = octet.LayerNormLinear(6, 4, params_dtype=torch.float32, device="cpu")
    x = torch.randn(3, 6, requires_grad=True)
    (first,) = torch.autograd.grad(made(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), made.layer_norm_weight)
    wide = x.detach().double().requires_grad_()
    held = [p.detach().double().requires_grad_() for p in made.parameters()]
    y = F.linear(F.layer_norm(wide, (6,), held[0], held[1], 1e-5), held[2], held[3])
    (want,) = torch.autograd.grad(y.square().sum(), wide, create_graph=True)
    (again,) = torch.autograd.grad(want.square().sum(), held[0])
    torch.testing.assert_close(second.double(), again, rtol=1e-3, atol=1e-3)
    per_row = torch.func.vmap(torch.func.grad(lambda row: made(row).sum()))(x.detach())
    assert per_row.shape == x.shape


@pytest.mark.parametrize("of", ["x", "layer_norm_weight", "layer_norm_bias", "weight", "bias"])
@pytest.mark.parametrize("by", ["x", "layer_norm_weight", "weight"])
def test_norm_linear__a_second_derivative_under_a_recipe_is_refused(of: str, by: str) -> None:
    """By each way: every gradient depends on the input, which the norm is not linear in."""
    made = layer()
    x = inputs()[0].requires_grad_()
    held = {"x": x, **dict(made.named_parameters())}
    with octet.autocast():
        y = made(x)
    (first,) = torch.autograd.grad(y.sum(), held[of], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.sum(), held[by])


# ---- compiled --------------------------------------------------------------------------------


@every_kind
@every_recipe
def test_norm_linear__compiled_equals_eager_over_steps(kind: str, name: str) -> None:
    eager = layer(kind)
    other = copy.deepcopy(eager)
    fast, counter = compiled(within(RECIPES[name], other))
    for number in range(3):
        x, grad = inputs()
        scaled = x * 2**number
        assert_same(
            step(eager, within(RECIPES[name], eager), scaled, grad),
            step(other, fast, scaled, grad),
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["delayed", "mxfp8", "nvfp4"])
def test_norm_linear__inductor_and_symbolic_sizes(name: str) -> None:
    eager = layer("RMSNorm")
    other = copy.deepcopy(eager)
    fast, counter = compiled(within(RECIPES[name], other), "inductor", dynamic=True)
    for rows in (32, 5):
        x, grad = inputs(rows)
        assert_same(
            step(eager, within(RECIPES[name], eager), x, grad), step(other, fast, x, grad)
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("options", [{"parameters_split": ("a", "b")}, {"eps": 0.3}], ids=str)
def test_norm_linear__symbolic_sizes_keep_eps_a_number(options: dict[str, Any]) -> None:
    """With dynamic=True a compiler makes symbols of floats, and a plan needs this one."""
    eager = layer(return_bias="eps" in options, **options)
    other, active = copy.deepcopy(eager), RECIPES["mxfp8"]
    fast, counter = compiled(within(active, other), dynamic=True)
    for rows in (32, 5):
        x, _ = inputs(rows)
        found, wanted = fast(x), within(active, eager)(x)
        for one, want in zip(found, wanted, strict=True):
            assert torch.equal(one, want)
    assert counter.frame_count == 1
    eager.eps = other.eps = 0.5
    assert torch.equal(fast(x)[0], within(active, eager)(x)[0])


@every_kind
@pytest.mark.parametrize("name", ACTIVE)
def test_norm_linear__is_one_node_each_way(kind: str, name: str) -> None:
    x, grad = inputs()
    forward, backward = captured(within(RECIPES[name], layer(kind)), x, grad)
    nodes = [node for node in forward if "delayed_update" not in node]
    assert len(nodes) == 1
    assert nodes[0].startswith("octet.linear")
    assert len(backward) == 1
    assert backward[0].startswith("octet.linear_backward")


@pytest.mark.parametrize("compile_it", [False, True])
def test_norm_linear__an_option_that_changes_later_is_noticed(compile_it: bool) -> None:
    made = layer("RMSNorm")
    call: Any = within(RECIPES["mxfp8"], made)
    call = compiled(call)[0] if compile_it else call
    x = inputs()[0]
    before = call(x)
    made.eps = 10.0
    after = call(x)
    assert (after.abs().sum() < 0.8 * before.abs().sum()).item()
    made.return_layernorm_output = True
    y, normed = call(x)
    assert normed.shape == x.shape
    torch.testing.assert_close(y, after, rtol=0.05, atol=0.1)
    made.return_layernorm_output = False
    made.eps = 1e-5
    assert torch.equal(call(x), before)


# ---- what Linear does ------------------------------------------------------------------------


def test_norm_linear__delayed_scaling_reads_in_eval_and_starts_afresh() -> None:
    made, active = layer(), RECIPES["delayed"]
    x, grad = inputs()
    step(made, within(active, made), x, grad)
    scale = made.fp8_scale.clone()
    assert not torch.equal(scale, torch.ones(3))
    made.eval()
    with octet.autocast(recipe=active):
        made(100 * x)
    assert torch.equal(made.fp8_scale, scale)
    octet.reset_state(made)
    assert torch.equal(made.fp8_scale, torch.ones(3))


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["delayed", "mxfp8", "nvfp4", "none"])
def test_norm_linear__a_checkpoint_computes_the_same(name: str, reentrant: bool) -> None:
    one, two = layer(), layer()
    x, grad = inputs()

    def again(inp: torch.Tensor) -> Any:  # noqa: ANN401
        return checkpoint(two, inp, use_reentrant=reentrant)

    for _ in range(2):
        wanted = step(one, within(RECIPES[name], one), x, grad)
        assert_same(wanted, step(two, within(RECIPES[name], again), x, grad))


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_norm_linear__a_checkpoint_in_compiled_code_computes_the_same(name: str) -> None:
    one, two = layer(), layer()
    x, grad = inputs()

    def again(inp: torch.Tensor) -> Any:  # noqa: ANN401
        return checkpoint(two, inp, use_reentrant=False)

    wanted = step(one, within(RECIPES[name], one), x, grad)
    fast = compiled(within(RECIPES[name], again))[0]
    assert_same(wanted, step(two, fast, x, grad))


def test_norm_linear__main_grad_and_later_gradients_are_the_same_bits() -> None:
    usual, fused, later = layer(), layer(fuse_wgrad_accumulation=True), layer()
    later = layer(delay_wgrad_compute=True)
    x, grad = inputs()
    active = RECIPES["mxfp8"]
    wanted = step(usual, within(active, usual), x, grad)
    fused.weight.main_grad = torch.full((44, 70), 7.0)
    with octet.autocast(recipe=active):
        fused(x, is_first_microbatch=True).backward(grad)
        fused(x, is_first_microbatch=False).backward(grad)
    assert fused.weight.grad is None
    torch.testing.assert_close(
        fused.weight.main_grad / 2, wanted[4].float(), rtol=0.01, atol=0.01
    )
    found = step(later, within(active, later), x, grad)
    assert found[4] is None
    later.backward_dw()
    found[4] = later.weight.grad
    assert_same(found, wanted)


@pytest.mark.parametrize("name", ["current", "mxfp8", "nvfp4"])
def test_norm_linear__quantized_weights_compute_the_same(name: str) -> None:
    active = RECIPES[name]
    with octet.quantized_model_init(recipe=active):
        made = layer()
    assert isinstance(made.weight, octet.QuantizedTensor)
    assert type(made.layer_norm_weight) is torch.nn.Parameter
    plain = layer()
    with torch.no_grad():
        plain.weight.copy_(made.weight.dequantize())
    x, grad = inputs()
    found = step(made, within(active, made), x, grad)
    other = copy.deepcopy(made)
    assert_same(found, step(other, compiled(within(active, other))[0], x, grad))
    wanted = step(plain, within(active, plain), x, grad)
    for mine, want in zip(found[:6], wanted[:6], strict=True):
        assert (mine.float() - want.float()).norm() <= 0.2 * want.float().norm()
    again = layer()
    with octet.quantized_model_init(recipe=active):
        again = layer()
    again.load_state_dict(made.state_dict())
    assert_same([found[0]], [within(active, again)(x)])


def test_norm_linear__state_dict_meta_and_copies() -> None:
    made, active = layer(), RECIPES["delayed"]
    x, grad = inputs()
    step(made, within(active, made), x, grad)
    names = ["layer_norm_weight", "layer_norm_bias", "weight", "bias"]
    assert list(made.state_dict())[:4] == names
    kept = io.BytesIO()
    torch.save(made.state_dict(), kept)
    kept.seek(0)
    other = octet.LayerNormLinear(70, 44, params_dtype=torch.bfloat16, device="meta")
    other.to_empty(device="cpu")
    other.reset_parameters()
    assert torch.equal(other.layer_norm_weight, torch.ones_like(other.layer_norm_weight))
    loaded = torch.load(kept)
    other.load_state_dict({**loaded, "_extra_state": io.BytesIO()})
    twin = copy.deepcopy(made)
    wanted = step(made, within(active, made), x, grad)
    assert_same(wanted, step(other, within(active, other), x, grad))
    assert_same(wanted, step(twin, within(active, twin), x, grad))


@every_kind
@pytest.mark.parametrize("name", ["none", "mxfp8"])
def test_norm_linear__the_norm_and_the_bias_are_returned(kind: str, name: str) -> None:
    whole = layer(kind)
    made = layer(kind, return_bias=True, return_layernorm_output=True)
    x, grad = inputs()
    leaf = x.clone().requires_grad_()
    with octet.autocast(enabled=name != "none"):
        y, bias, normed = made(leaf)
        wanted = whole(x)
    assert bias is made.bias
    torch.testing.assert_close(y + bias, wanted, rtol=0.05, atol=0.1)
    assert normed.dtype == x.dtype
    torch.testing.assert_close(normed, norm_of(made, x), rtol=0.02, atol=0.02)
    (normed.sum() + (y * grad).sum()).backward()
    assert all(p.grad is not None for p in (leaf, made.layer_norm_weight, made.weight))


@pytest.mark.parametrize("name", ["none", "current", "delayed"])
def test_norm_linear__parameters_in_parts_are_one_product(name: str) -> None:
    whole = layer("RMSNorm")
    parts = layer("RMSNorm", parameters_split={"q": 20, "k": 12, "v": 12})
    with torch.no_grad():
        for kind in ("weight", "bias"):
            for prefix, part in zip("qkv", whole._whole(kind).split([20, 12, 12]), strict=True):
                getattr(parts, f"{prefix}_{kind}").copy_(part)
    x, grad = inputs()
    wanted = step(whole, within(RECIPES[name], whole), x, grad)
    found = step(parts, within(RECIPES[name], parts), x, grad)
    assert_same(found[:3], wanted[:3])
    weights = [getattr(parts, f"{p}_weight").grad for p in "qkv"]
    assert torch.equal(torch.cat(weights), whole.weight.grad)
    other = copy.deepcopy(parts)
    parts = copy.deepcopy(other)
    fast = compiled(within(RECIPES[name], other))[0]
    assert_same(step(parts, within(RECIPES[name], parts), x, grad), step(other, fast, x, grad))


@pytest.mark.parametrize("name", ["none", "mxfp8"])
def test_norm_linear__torchs_autocast_casts_the_input(name: str) -> None:
    made = layer(params_dtype=torch.float32)
    x = inputs(dtype=torch.float32)[0].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), octet.autocast(enabled=name != "none"):
        y = made(x)
    assert y.dtype is torch.bfloat16
    y.sum().backward()
    assert {p.grad.dtype for p in (x, *made.parameters())} == {torch.float32}
    with octet.autocast(enabled=name != "none"):
        torch.testing.assert_close(made(x), y.float(), rtol=0.1, atol=0.2)


@pytest.mark.parametrize("returns_norm", [False, True])
def test_norm_linear__torchs_autocast_does_not_round_what_the_norm_reads(
    returns_norm: bool,
) -> None:
    """Far from zero bfloat16 has no digits left for what a LayerNorm keeps."""
    made = layer(params_dtype=torch.float32, return_layernorm_output=returns_norm)
    x = inputs(dtype=torch.float32)[0] + 300
    gamma, beta = made.layer_norm_weight, made.layer_norm_bias
    with torch.autocast("cpu", torch.bfloat16):
        y = made(x)
        normed = functional.layer_norm(x, (x.shape[-1],), gamma, beta, made.eps)
        wanted = functional.linear(normed, made.weight, made.bias)
    assert torch.equal(y[0] if returns_norm else y, wanted)
    if returns_norm:
        assert torch.equal(y[1], normed.bfloat16())


@pytest.mark.parametrize("name", ["none", "mxfp8"])
def test_norm_linear__jagged_rows_are_normed_once_and_so_returned(name: str) -> None:
    made = layer(return_layernorm_output=True, return_bias=True)
    x = inputs()[0].flatten(0, 1)
    parts = list(x.split([5, len(x) - 5]))
    with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
        y, bias, normed = made(torch.nested.nested_tensor(parts, layout=torch.jagged))
        wanted, _, norm = made(x)
    assert bias is made.bias
    assert torch.equal(y.values(), wanted)
    assert torch.equal(normed.values(), norm)
    assert torch.equal(normed.offsets(), y.offsets())


def test_norm_linear__gamma_may_be_frozen_or_of_another_dtype() -> None:
    made = layer("RMSNorm")
    made.layer_norm_weight = torch.nn.Parameter(made.layer_norm_weight.detach().float())
    x, grad = inputs()
    call = within(RECIPES["mxfp8"], made)
    found = step(made, call, x, grad)
    assert found[2].dtype is torch.float32
    made.layer_norm_weight.requires_grad_(False)
    frozen = step(made, call, x, grad)
    assert frozen[2] is None
    assert_same(found[:2] + found[3:], frozen[:2] + frozen[3:])
    for parameter in (made.weight, made.bias):
        parameter.requires_grad_(False)
    made.layer_norm_weight.requires_grad_(True)
    made.zero_grad()
    call(x).backward(grad)
    assert torch.equal(made.layer_norm_weight.grad, found[2])


def test_norm_linear__a_users_quantizer_is_given_the_norm() -> None:
    class Own(octet.Quantizer):
        def quantize(self, tensor: torch.Tensor, **_: Any) -> torch.Tensor:  # noqa: ANN401
            return (tensor.float() * 4).round().div(4).to(tensor.dtype)

    active = octet.recipe.CustomRecipe(
        lambda role: Own() if role.tensor_type == "input" else None
    )
    made = layer()
    x, grad = inputs()
    found = step(made, within(active, made), x, grad)
    used = (norm_of(made, x).float() * 4).round().div(4)
    wanted = F.linear(used, made.weight.float(), made.bias.float())
    torch.testing.assert_close(found[0].float(), wanted, rtol=0.02, atol=0.05)
    assert all(each is not None for each in found)


# ---- protos ----------------------------------------------------------------------------------


def test_norm_linear__protos_tell_the_call() -> None:
    made = layer()
    x = octet.TensorProto((8, 70), torch.bfloat16, requires_grad=True, device="cpu")
    found = made.protos(x, recipe=RECIPES["mxfp8"])
    assert found.forward.arguments["gamma"].shape == (70,)
    assert found.backward.outputs["grad_beta"].shape == (70,)
    assert found.forward.outputs["output"].shape == (8, 44)


# ---- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"normalization": "BatchNorm"}, "is 'BatchNorm'; it is one of LayerNorm, RMSNorm"),
        ({"eps": 0.0}, "eps is 0.0; it is a number above 0"),
        ({"eps": None}, "eps is None; it is a number above 0"),
        ({"parallel_mode": "row", "tp_size": 2}, "a norm needs them all; take 'column'"),
        ({"parameters_split": {"layer_norm": 44}}, "take another name"),
        ({"ub_overlap_ag": 9}, "ub_overlap_ag=9.: it is True, False, or the number of chunks"),
        ({"params_dtype": torch.int8}, "params_dtype is torch.int8"),
    ],
)
def test_norm_linear__bad_arguments_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, NotImplementedError), match=why):
        octet.LayerNormLinear(70, 44, **{"device": "cpu", **options})


@pytest.mark.parametrize("name", ["none", "mxfp8"])
def test_norm_linear__parts_on_two_devices_are_refused(name: str) -> None:
    made = octet.LayerNormLinear(8, 8, device="cpu", parameters_split={"q_": 4, "k_": 4})
    made.k_weight = torch.nn.Parameter(made.k_weight.to("meta"))
    why = r"k_weight is on meta, q_weight on cpu; they make one product: move them"
    with pytest.raises(ValueError, match=rf"LayerNormLinear \(8 -> 8\): {why}"):
        within(RECIPES[name], made)(torch.randn(4, 8))


@pytest.mark.parametrize("name", ["none", "mxfp8"])
def test_norm_linear__a_norm_of_another_size_is_refused(name: str) -> None:
    made = layer()
    made.layer_norm_weight = torch.nn.Parameter(torch.ones(69, dtype=torch.bfloat16))
    why = r"LayerNormLinear \(70 -> 44\): layer_norm_weight is \(69,\); it must be \(70,\)"
    with octet.autocast(enabled=name != "none"), pytest.raises(ValueError, match=why):
        made(inputs()[0])
    with octet.autocast(enabled=name != "none"), pytest.raises(Exception, match=why):
        compiled(made)[0](inputs()[0])


def test_norm_linear__bad_inputs_are_refused_by_layer() -> None:
    made = layer(name="qkv")
    x = inputs()[0]
    with octet.autocast():
        with pytest.raises(ValueError, match=r"LayerNormLinear 'qkv' .* last axis must be 70"):
            made(x[..., :64])
        quantized = octet.MXFP8Quantizer("e4m3")(x)
        with pytest.raises(ValueError, match=r"'qkv' .*input is quantized, but layernorm"):
            made(quantized)


# ---- RMSNorm and LayerNorm -------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("zero_centered", [False, True])
def test_norms__are_torchs_in_float32(kind: str, zero_centered: bool) -> None:
    made = getattr(octet, kind)(70, 1e-6, zero_centered_gamma=zero_centered, device="cpu")
    with torch.no_grad():
        made.weight.add_(torch.randn(70))
    x = inputs()[0].requires_grad_()
    gamma = made.weight + zero_centered
    like = F.rms_norm if kind == "RMSNorm" else F.layer_norm
    more = () if kind == "RMSNorm" else (made.bias,)
    wanted = like(x.float(), (70,), gamma, *more, 1e-6).bfloat16()
    assert torch.equal(made(x), wanted)
    assert torch.equal(compiled(made)[0](x), wanted)
    assert [n for n, _ in made.named_parameters()] == ["weight", "bias"][: 1 + len(more)]
    with pytest.raises(ValueError, match=r"its last axes must be \(70,\)"):
        made(x[..., :64])
    with pytest.raises(ValueError, match=r"eps is -1\.0; it is a number above 0"):
        getattr(octet, kind)(70, -1.0, device="cpu")
    with pytest.raises(ValueError, match="give normalized_shape, or hidden_size"):
        getattr(octet, kind)(device="cpu")
    marked = getattr(octet, kind)(hidden_size=70, sequence_parallel=True, device="cpu")
    assert marked.weight.sequence_parallel is True


def test_norm_linear__nvfp4_draws_one_seed_a_call() -> None:
    """As Linear does: eager and compiled, and nothing is drawn for a norm."""
    made = layer()
    x, grad = inputs()
    for name in DRAWING:
        step(made, within(RECIPES[name], made), x, grad)
        after = torch.get_rng_state()
        plain = octet.Linear(70, 44, params_dtype=torch.bfloat16, device="cpu")
        step(plain, within(RECIPES[name], plain), x, grad)
        assert torch.equal(torch.get_rng_state(), after)
