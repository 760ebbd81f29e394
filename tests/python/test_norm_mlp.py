"""LayerNormMLP: two products with their functions, under TransformerEngine's names."""

import copy
import io
import pickle
from typing import Any

import norm_jobs
import octet
import pytest
from laws import BOUNDS, RECIPES, assert_same, captured, compiled, within
from laws import step_of as step
from octet._prologue import ACTIVATIONS, activated
from ranks import Ranks

import torch

F = torch.nn.functional
ACTIVE = [name for name in RECIPES if name != "none"]
NAMES = ["layer_norm_weight", "layer_norm_bias", "fc1_weight", "fc1_bias"]
NAMES += ["fc2_weight", "fc2_bias"]
GATED = ("glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu")


def mlp(activation: str = "swiglu", **options: Any) -> octet.LayerNormMLP:  # noqa: ANN401
    """A small one whose sizes are no multiple of any block, with a norm that is not 1."""
    torch.manual_seed(1)
    options = {"params_dtype": torch.bfloat16, "device": "cpu", **options}
    made = octet.LayerNormMLP(70, 44, activation=activation, **options)
    with torch.no_grad():
        made.layer_norm_weight.add_(0.5 * torch.randn(70))
    return made


def inputs(*leading: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    leading = leading or (3, 13)
    return tuple(torch.randn(*leading, 70, dtype=torch.bfloat16) for _ in range(2))


def reference(held: dict[str, torch.Tensor], x: torch.Tensor, activation: str) -> torch.Tensor:
    gamma, beta = held["layer_norm_weight"], held["layer_norm_bias"]
    hidden = F.linear(
        F.layer_norm(x, (70,), gamma, beta, 1e-5), held["fc1_weight"], held["fc1_bias"]
    )
    return F.linear(activated(hidden, activation), held["fc2_weight"], held["fc2_bias"])


@pytest.mark.parametrize(
    ("activation", "name"),
    [*((a, "mxfp8") for a in ACTIVATIONS), *(("swiglu", n) for n in RECIPES)],
)
def test_norm_mlp__is_near_float64(activation: str, name: str) -> None:
    made = mlp(activation)
    x, grad = inputs()
    found = step(made, within(RECIPES[name], made), x, grad)
    leaves = [t.detach().double().requires_grad_() for t in (x, *made.parameters())]
    held = dict(zip(NAMES, leaves[1:], strict=True))
    assert held["fc1_weight"].shape == (88 if activation in GATED else 44, 70)
    y = reference(held, leaves[0], activation)
    wanted = [y, *torch.autograd.grad(y, leaves, grad.double())]
    for mine, want in zip(found, wanted, strict=False):
        # Two layers and a function between them, whose slope carries the first one's error.
        assert (mine.double() - want).norm() < 4 * BOUNDS[name] * want.norm()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_norm_mlp__compiled_equals_eager_over_steps(name: str, activation: str) -> None:
    eager = mlp(activation)
    other = copy.deepcopy(eager)
    fast, counter = compiled(within(RECIPES[name], other))
    for number in range(2):
        x, grad = inputs()
        assert_same(
            step(eager, within(RECIPES[name], eager), x * 2**number, grad),
            step(other, fast, x * 2**number, grad),
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["delayed", "mxfp8"])
def test_norm_mlp__inductor_and_symbolic_sizes(name: str) -> None:
    eager = mlp()
    other = copy.deepcopy(eager)
    fast, counter = compiled(within(RECIPES[name], other), "inductor", dynamic=True)
    for rows in (32, 5):
        x, grad = inputs(rows)
        assert_same(
            step(eager, within(RECIPES[name], eager), x, grad), step(other, fast, x, grad)
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ACTIVE)
def test_norm_mlp__is_two_nodes_each_way(name: str) -> None:
    x, grad = inputs()
    forward, backward = captured(within(RECIPES[name], mlp()), x, grad)
    nodes = [node for node in forward if "delayed_update" not in node]
    assert len(nodes) == 2
    assert all(node.startswith("octet.linear") for node in nodes)
    assert len(backward) == 2
    assert all(node.startswith("octet.linear_backward") for node in backward)


def test_norm_mlp__the_activation_is_the_second_products_prologue() -> None:
    """Bit for bit what the two layers give one after the other."""
    made = mlp("gelu")
    first = octet.LayerNormLinear(70, 44, params_dtype=torch.bfloat16, device="cpu")
    held = dict(made.named_parameters())
    names = {"layer_norm_weight": "layer_norm_weight", "layer_norm_bias": "layer_norm_bias"}
    names |= {"weight": "fc1_weight", "bias": "fc1_bias"}
    first.load_state_dict({mine: held[theirs] for mine, theirs in names.items()})
    x, _ = inputs()
    with octet.autocast():
        assert torch.equal(made.fc2(first(x)), made(x))


# ---- names, state, copies --------------------------------------------------------------------


def test_norm_mlp__parameters_have_one_name_each() -> None:
    made = mlp()
    assert [name for name, _ in made.named_parameters()] == NAMES
    assert list(made.state_dict()) == NAMES
    assert made.fc1_weight is made.fc1.weight
    made.fc1_weight = torch.nn.Parameter(made.fc1_weight.detach() * 2)
    assert made.fc1.weight is made.fc1_weight
    assert len(list(made.parameters())) == 6


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("name", ["mxfp8", "delayed"])
def test_norm_mlp__state_dict_round_trip(name: str, assign: bool) -> None:
    made, active = mlp(), RECIPES[name]
    x, grad = inputs()
    step(made, within(active, made), x, grad)
    kept = io.BytesIO()
    torch.save(made.state_dict(), kept)
    kept.seek(0)
    other = octet.LayerNormMLP(
        70, 44, activation="swiglu", params_dtype=torch.bfloat16, device="meta"
    )
    if not assign:
        other.to_empty(device="cpu")
        other.reset_parameters()
    found = {**torch.load(kept), "_extra_state": io.BytesIO()}
    other.load_state_dict(found, assign=assign)
    assert other.fc2.weight is other.fc2_weight
    wanted = step(made, within(active, made), x, grad)
    assert_same(wanted, step(other, within(active, other), x, grad))
    with pytest.raises(RuntimeError, match=r"Unexpected key.*fc1\.weight"):
        other.load_state_dict({**found, "fc1.weight": made.fc1_weight})
    with pytest.raises(RuntimeError, match=r"Missing key.*fc2_weight"):
        other.load_state_dict({k: v for k, v in found.items() if k != "fc2_weight"})


def test_norm_mlp__moves_and_copies_keep_the_parameters_one() -> None:
    made, active = mlp(), RECIPES["delayed"]
    x, grad = inputs()
    step(made, within(active, made), x, grad)
    for other in (
        copy.deepcopy(made),
        pickle.loads(pickle.dumps(made)),
        made.float().bfloat16(),
    ):
        assert other.fc1.weight is other.fc1_weight
        assert other.fc1.layer_norm_weight is other.layer_norm_weight
        assert other.fc2.fp8_scale.dtype is torch.float32
        twin = copy.deepcopy(other)
        assert_same(
            step(other, within(active, other), x, grad),
            step(twin, within(active, twin), x, grad),
        )


@pytest.mark.parametrize("name", ["current", "mxfp8"])
def test_norm_mlp__quantized_weights(name: str) -> None:
    active = RECIPES[name]
    with octet.quantized_model_init(recipe=active):
        made = mlp()
    assert isinstance(made.fc1_weight, octet.QuantizedTensor)
    assert isinstance(made.fc2.weight, octet.QuantizedTensor)
    x, grad = inputs()
    other = copy.deepcopy(made)
    found = step(made, within(active, made), x, grad)
    assert_same(found, step(other, compiled(within(active, other))[0], x, grad))
    torch.optim.SGD(made.parameters(), 0.1).step()
    assert not torch.equal(within(active, made)(x), found[0])
    with octet.quantized_model_init(recipe=active):
        again = mlp()
    again.load_state_dict(made.state_dict())
    assert torch.equal(within(active, again)(x), within(active, made)(x))
    quantized = octet.convert(torch.nn.Sequential(mlp()), weights=active)[0]
    assert isinstance(quantized.fc1.weight, octet.QuantizedTensor)
    assert quantized.fc1.weight is quantized.fc1_weight


# ---- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delayed", "mxfp8", "nvfp4", "none"])
def test_norm_mlp__checkpoint_computes_the_same(name: str) -> None:
    one, two = mlp(), mlp(checkpoint=True)
    x, grad = inputs()
    for _ in range(2):
        assert_same(
            step(one, within(RECIPES[name], one), x, grad),
            step(two, within(RECIPES[name], two), x, grad),
        )
    if name == "mxfp8":
        fast = compiled(within(RECIPES[name], two))[0]
        assert_same(step(one, within(RECIPES[name], one), x, grad), step(two, fast, x, grad))


def test_norm_mlp__main_grad_and_later_gradients() -> None:
    usual, fused = mlp(), mlp(fuse_wgrad_accumulation=True)
    later = mlp(delay_wgrad_compute=True)
    x, grad = inputs()
    active = RECIPES["mxfp8"]
    wanted = step(usual, within(active, usual), x, grad)
    for parameter in (fused.fc1_weight, fused.fc2_weight):
        parameter.main_grad = torch.full(parameter.shape, 7.0)
    with octet.autocast(recipe=active):
        fused(x, is_first_microbatch=True).backward(grad)
    for name in ("fc1_weight", "fc2_weight"):
        assert getattr(fused, name).grad is None
        assert torch.equal(getattr(fused, name).main_grad.bfloat16(), getattr(usual, name).grad)
    found = step(later, within(active, later), x, grad)
    assert found[4] is None
    later.backward_dw()
    found[4], found[6] = later.fc1_weight.grad, later.fc2_weight.grad
    assert_same(found, wanted)


def test_norm_mlp__trains_as_torchs_does() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 70)
    target = torch.tanh(x @ torch.randn(70, 70) / 8)
    losses = {}
    for name in ("none", "delayed", "mxfp8"):
        made = mlp(params_dtype=torch.float32)
        optimizer = torch.optim.AdamW(made.parameters(), 1e-2)
        for _ in range(40):
            with octet.autocast(enabled=name != "none", recipe=RECIPES[name]):
                loss = (made(x) - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[name] = loss.item()
    first = target.square().mean().item()
    assert losses["none"] < 0.3 * first
    for name in ("delayed", "mxfp8"):
        assert abs(losses[name] - losses["none"]) < 0.1 * first


# ---- one cast a step -------------------------------------------------------------------------


class Casts(torch.utils._python_dispatch.TorchDispatchMode):
    """What becomes of weights, as the words of each forward op tell."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: Any,  # noqa: ANN401
        args: Any = (),  # noqa: ANN401
        kwargs: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        if str(func).split(".")[1] in ("linear", "linear_into", "linear_drawn"):
            self.words += [text for text in args if isinstance(text, str)]
        return func(*args, **(kwargs or {}))

    def counts(self) -> tuple[int, int]:
        """Casts that are kept, and readings of one."""
        write = sum("cache=write" in words for words in self.words)
        return write, sum("cache=read" in words for words in self.words)


def kept(graph: torch.fx.GraphModule) -> tuple[int, int]:
    """The same of a graph's nodes."""
    texts = [str(node.args) + str(node.kwargs) for node in graph.graph.nodes]
    texts = [text for text in texts if "prologue=" in text]
    return sum("cache=write" in t for t in texts), sum("cache=read" in t for t in texts)


@pytest.mark.parametrize("way", ["constant_weights", "is_first_microbatch"])
@pytest.mark.parametrize("name", ["current", "mxfp8", "delayed", "nvfp4"])
def test_norm_mlp__four_microbatches_cast_weights_once(name: str, way: str) -> None:
    made = mlp()
    optimizer = torch.optim.SGD(made.parameters(), 0.01)
    x, grad = inputs()
    for _ in range(2):  # steps: a weight that has changed is cast again
        seen, outputs = Casts(), []
        constant = (
            octet.constant_weights() if way == "constant_weights" else torch.enable_grad()
        )
        with octet.autocast(recipe=RECIPES[name]), constant:
            for number in range(4):
                first = None if way == "constant_weights" else number == 0
                with seen:
                    y = made(x, first)
                y.backward(grad)
                outputs.append(y.detach())
        assert seen.counts() == (2, 6)
        assert all(torch.equal(y, outputs[0]) for y in outputs)
        optimizer.step()
        optimizer.zero_grad()


def test_norm_mlp__four_microbatches_of_one_graph_cast_weights_once() -> None:
    found: list[tuple[int, int]] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:  # noqa: ANN401
        from torch._functorch.aot_autograd import make_boxed_func

        found.append(kept(graph))
        return make_boxed_func(graph.forward)

    from torch._dynamo.backends.common import aot_autograd

    made, other = mlp(), mlp()
    x, grad = inputs()

    def microbatches(inp: torch.Tensor) -> torch.Tensor:
        with octet.autocast(), octet.constant_weights():
            return sum(other(inp * (1 + number)) for number in range(4))

    fast = torch.compile(
        microbatches, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep)
    )
    wanted = step(made, within(None, lambda inp: _plain(made, inp)), x, grad)
    assert_same(wanted, step(other, fast, x, grad))
    assert found[0] == (2, 6)


def _plain(made: octet.LayerNormMLP, inp: torch.Tensor) -> torch.Tensor:
    with octet.autocast():
        return sum(made(inp * (1 + number)) for number in range(4))


# ---- what is returned, what is refused -------------------------------------------------------


def test_norm_mlp__bias_and_norm_are_returned() -> None:
    whole, made = mlp(), mlp(return_bias=True, return_layernorm_output=True)
    x, _ = inputs()
    with octet.autocast():
        y, bias, normed = made(x)
        torch.testing.assert_close(y + bias, whole(x), rtol=0.05, atol=0.05)
    assert bias is made.fc2_bias
    assert normed.shape == x.shape


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"activation": "tanh"}, "is 'tanh'; it is one of gelu, qgelu, relu, srelu, silu, glu"),
        ({"activation": "clamped_swiglu"}, "is 'clamped_swiglu'; it is one of gelu"),
        ({"activation_params": {"limit": 7.0}}, "gelu has no parameters; leave it out"),
        ({"tp_size": 2}, "tp_size is 2 without set_parallel_mode=True"),
        ({"normalization": "none"}, "it is one of LayerNorm, RMSNorm"),
        ({"eps": -1e-5}, "eps is -1e-05; it is a number above 0"),
    ],
)
def test_norm_mlp__bad_arguments_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        octet.LayerNormMLP(70, 44, device="cpu", **options)


def test_norm_mlp__parameters_that_it_would_not_use_are_refused() -> None:
    made, x = mlp(), inputs()[0]
    torch.nn.utils.parametrize.register_parametrization(made, "fc1_weight", torch.nn.Tanh())
    with pytest.raises(NotImplementedError, match="fc1_weight is not a parameter of it"):
        made(x)
    made = mlp()
    torch.nn.utils.parametrize.register_parametrization(made.fc2, "weight", torch.nn.Tanh())
    with pytest.raises(ValueError, match=r"fc2\.weight is another parameter than fc2_weight"):
        made(x)


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize("way", ["mlp", "half", "dictionary"])
def test_norm_mlp__another_parameter_is_multiplied_by(way: str, compile_it: bool) -> None:
    made, x = mlp(), inputs()[0]
    run = torch.compile(made, backend="aot_eager") if compile_it else made
    with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
        run(x)
        other = torch.nn.Parameter(made.fc1_weight.detach() * 3)
        if way == "mlp":
            made.fc1_weight = other
        elif way == "half":
            made.fc1.weight = other
        else:  # as accelerate and other loaders do
            made._parameters["fc1_weight"] = other
        wanted = mlp()
        wanted.load_state_dict(made.state_dict())
        y = run(x)
        assert torch.equal(y, wanted(x))
    y.sum().backward()
    assert other.grad is not None
    assert made.fc1_weight is other is made.fc1.weight


def test_norm_mlp__bad_input_is_refused_by_layer() -> None:
    made = mlp(name="mlp7")
    with octet.autocast(), pytest.raises(ValueError, match=r"LayerNormMLP\.fc1 'mlp7'.*be 70"):
        made(torch.randn(3, 64))


# ---- ranks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize(
    ("name", "compile_it"),
    [
        ("none", False),
        ("current", False),
        ("mxfp8", False),
        ("mxfp8", True),
        ("delayed", False),
    ],
)
def test_norm_mlp__ranks_share_it(
    two: Ranks, name: str, compile_it: bool, sequence: bool
) -> None:
    """One seed makes one layer, and ranks compute what the unsplit one does."""
    for made in two.run(norm_jobs.mlp, name, sequence, compile_it):
        found, wanted = made["found"], made["wanted"]
        for key, want in wanted.items():
            error = (found[key].float() - want.float()).norm() / want.float().norm()
            assert error < max(0.02, BOUNDS[name]), key


@pytest.mark.parametrize("compile_it", [False, True])
def test_norm_mlp__what_ranks_gather_arrives_in_chunks(two: Ranks, compile_it: bool) -> None:
    """Bit for bit what it is without chunks, norm included."""
    whole = two.run(norm_jobs.mlp, "mxfp8", True, compile_it)
    for made, wanted in zip(
        two.run(norm_jobs.mlp, "mxfp8", True, compile_it, 2), whole, strict=True
    ):
        assert made["found"].keys() == wanted["found"].keys()
        for key, want in wanted["found"].items():
            assert torch.equal(made["found"][key], want), key


@pytest.mark.parametrize("kind", ["stack", "llama"])
@pytest.mark.parametrize("name", ["none", "mxfp8", "delayed"])
def test_norm_mlp__fully_shard_computes_the_same(two: Ranks, name: str, kind: str) -> None:
    """Also of models that convert has fused: decoder layers are sharded as a whole."""
    if kind == "llama":
        pytest.importorskip("transformers")
    for made in two.run(norm_jobs.sharded, name, kind):
        whole, parts = made["whole"], made["sharded"]
        assert whole["names"] == parts["names"]
        torch.testing.assert_close(parts["losses"], whole["losses"], rtol=1e-3, atol=1e-3)
        for mine, want in zip(parts["grads"], whole["grads"], strict=True):
            assert (mine.float() - want.float()).norm() <= 0.02 * want.float().norm() + 1e-6


@pytest.mark.parametrize("kind", ["mlp", "llama"])
def test_norm_mlp__a_cached_weight_is_the_shards(two: Ranks, kind: str) -> None:
    """Another gather changes nothing, a write does, whichever module fully_shard holds a weight
    by."""
    if kind == "llama":
        pytest.importorskip("transformers")
    for made in two.run(norm_jobs.cached_weights, kind):
        assert len(made["taken again"]) > 1
        assert all(made["taken again"])
        assert torch.equal(made["found"], made["wanted"])


def test_norm_mlp__quantized_shards_are_recomputed(two: Ranks) -> None:
    for made in two.run(norm_jobs.recomputed_steps):
        assert torch.equal(made["sharded"], made["whole"])
