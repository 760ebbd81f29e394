"""save="memory": what a norm's or an activation's call saves, and the gradients it gives."""

import copy
import gc
import weakref
from typing import Any

import norm_jobs
import octet
import pytest
from laws import RECIPES, assert_same, captured, compiled, within
from laws import layer as plain_layer
from laws import step_of as step
from octet._prologue import ACTIVATIONS
from ranks import Ranks

import torch

ACTIVE = [name for name in RECIPES if name != "none"]
FP8 = ["delayed", "current", "block", "mxfp8"]
BF16 = {"params_dtype": torch.bfloat16, "device": "cpu"}


def norm(save: str = "memory", **options: Any) -> octet.LayerNormLinear:  # noqa: ANN401
    torch.manual_seed(1)
    made = octet.LayerNormLinear(70, 44, save=save, **BF16, **options)
    with torch.no_grad():
        made.layer_norm_weight.add_(0.5 * torch.randn(70))
    return made


def mlp(save: str = "memory", activation: str = "swiglu", **options: Any) -> Any:  # noqa: ANN401
    torch.manual_seed(1)
    return octet.LayerNormMLP(70, 44, activation=activation, save=save, **BF16, **options)


def inputs(columns: int, *leading: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(2)
    leading = leading or (3, 13)
    x = torch.randn(*leading, 70, dtype=torch.bfloat16)
    return x, torch.randn(*leading, columns, dtype=torch.bfloat16)


def trained(made: Any, name: str, call: Any = None, steps: int = 2) -> list[Any]:  # noqa: ANN401
    """The last step's results, of some whose inputs grow: delayed scaling's scales move."""
    found: list[Any] = []
    for number in range(steps):
        x, grad = inputs(70 if isinstance(made, octet.LayerNormMLP) else 44)
        found = step(made, call or within(RECIPES[name], made), x * 2**number, grad)
    return found


# ---- a norm: the same bits -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["RMSNorm", "LayerNorm"])
@pytest.mark.parametrize("name", RECIPES)
def test_save__a_norms_gradients_are_the_same_bits(name: str, kind: str) -> None:
    wanted = trained(norm("speed", normalization=kind), name)
    assert_same(trained(norm(normalization=kind), name), wanted)
    made = norm(normalization=kind)
    assert_same(trained(made, name, compiled(within(RECIPES[name], made))[0]), wanted)


def test_save__a_scale_that_moves_before_backward_is_forwards() -> None:
    """Delayed scaling: another forward updates the scales before the backward of the first."""
    found = []
    for save in ("speed", "memory"):
        made, active = norm(save), RECIPES["delayed"]
        (x, grad), results = inputs(44), []
        x.requires_grad_()
        for factor in (1.0, 16.0):
            with octet.autocast(recipe=active):
                results.append(made(x * factor))
        results[0].backward(grad)
        found.append([x.grad, *(p.grad for p in made.parameters())])
    assert_same(found[1], found[0])


def test_save__a_frozen_norm_before_nothing_keeps_its_cast() -> None:
    """x wants no gradient and neither does the norm: x would be more bytes than its cast."""
    made = norm(normalization="RMSNorm")
    made.layer_norm_weight.requires_grad_(False)
    x, _ = inputs(44)
    with octet.autocast(recipe=RECIPES["mxfp8"]):
        y = made(x)
    assert x.data_ptr() not in [t.data_ptr() for t in y.grad_fn.saved_tensors]


# ---- an activation: near the same ------------------------------------------------------------


@pytest.mark.parametrize(
    ("activation", "name"),
    [*((a, "mxfp8") for a in ACTIVATIONS), *(("swiglu", n) for n in FP8)],
)
def test_save__an_activations_gradients_are_near(activation: str, name: str) -> None:
    """Two factors that err by 2^-4 / sqrt(3) in the mean, and their product cast anew: 0.072.
    Gradients that are cast to E5M2 anew add 2^-3 / sqrt(3) twice: 0.114; relu's square errs
    twice as much as its root. ReLU's slope does not change, since 8 bits keep signs, and what
    E4M3 has rounded once MXFP8's cast of it does not round again."""
    bound = 0.115 if name in ("delayed", "current") else 0.1 if activation[0] == "s" else 0.075
    speed, memory = mlp("speed", activation), mlp("memory", activation)
    wanted, found = trained(speed, name), trained(memory, name)
    assert torch.equal(found[0], wanted[0])
    differs = []
    for mine, want in zip(found[1:8], wanted[1:8], strict=True):
        error = (mine.double() - want.double()).norm() / want.double().norm()
        assert error < bound
        differs.append(bool(error > 0))
    changes = activation != "relu"
    assert differs == [changes] * 6 + [False]  # of fc2's bias: nothing of x


@pytest.mark.parametrize("name", RECIPES)
def test_save__compiled_equals_eager(name: str) -> None:
    one, other = mlp(), mlp()
    fast, counter = compiled(within(RECIPES[name], other))
    assert_same(trained(one, name), trained(other, name, fast))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["delayed", "mxfp8"])
def test_save__inductor_and_symbolic_sizes(name: str) -> None:
    one, other = mlp(), mlp()
    fast, counter = compiled(within(RECIPES[name], other), "inductor", dynamic=True)
    for rows in (32, 5):
        x, grad = inputs(70, rows)
        assert_same(step(one, within(RECIPES[name], one), x, grad), step(other, fast, x, grad))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["delayed", "mxfp8", "nvfp4"])
def test_save__is_two_nodes_each_way(name: str) -> None:
    forward, backward = captured(within(RECIPES[name], mlp()), *inputs(70))
    assert len([node for node in forward if "delayed_update" not in node]) == 2
    assert len(backward) == 2


# ---- with all else ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delayed", "mxfp8", "nvfp4"])
def test_save__checkpoints_compute_the_same(name: str) -> None:
    assert_same(trained(mlp(checkpoint=True), name), trained(mlp(), name))


def test_save__later_gradients_main_grad_and_microbatches_are_the_same_bits() -> None:
    usual, later = mlp(), mlp(delay_wgrad_compute=True)
    fused = mlp(fuse_wgrad_accumulation=True)
    active, (x, grad) = RECIPES["mxfp8"], inputs(70)
    wanted = step(usual, within(active, usual), x, grad)
    found = step(later, within(active, later), x, grad)
    later.backward_dw()
    found[4], found[6] = later.fc1_weight.grad, later.fc2_weight.grad
    assert_same(found, wanted)
    weights = ("fc1_weight", "fc2_weight")
    for name in weights:
        getattr(fused, name).main_grad = torch.full(getattr(fused, name).shape, 7.0)
    with octet.autocast(recipe=active):
        fused(x, is_first_microbatch=True).backward(grad)
        cached = fused(x, is_first_microbatch=False)
    cached.backward(grad)
    for name in weights:
        twice = 2 * getattr(usual, name).grad.float()
        error = (getattr(fused, name).main_grad - twice).norm() / twice.norm()
        assert error < 2**-8  # bf16's rounding of the other one


@pytest.mark.parametrize("compile_it", [False, True])
def test_save__a_change_is_noticed(compile_it: bool) -> None:
    made, other = norm("speed"), norm("speed")
    call: Any = within(RECIPES["mxfp8"], made)
    call = compiled(call)[0] if compile_it else call
    wanted = trained(other, "mxfp8")
    for word in ("speed", "memory", "speed"):
        made.save = word
        assert_same(trained(made, "mxfp8", call), wanted)
    made.save = "all"
    with pytest.raises(ValueError, match=r"LayerNormLinear.*save is 'all'.*speed, memory"):
        within(RECIPES["mxfp8"], made)(inputs(44)[0].requires_grad_())
    assert "save='memory'" in repr(norm())


def test_save__copies_and_state_dicts_are_the_same() -> None:
    made = mlp()
    assert copy.deepcopy(made).fc2.save == "memory"
    mlp("speed").load_state_dict(made.state_dict())
    assert list(made.state_dict()) == list(mlp("speed").state_dict())


def test_save__a_plain_layer_saves_the_weight_itself() -> None:
    """The same bits, and no bytes of the weight."""
    x = torch.randn(8, 70, dtype=torch.bfloat16)
    grad = torch.randn(8, 44, dtype=torch.bfloat16)
    one, two = plain_layer(), plain_layer(save="memory")
    mxfp8 = RECIPES["mxfp8"]
    speed, memory = octet.measure(one, 8, mxfp8), octet.measure(two, 8, mxfp8)
    assert speed.alive == 0
    assert memory.alive == two.weight.nbytes
    assert speed.stored - memory.stored >= two.weight.numel()
    assert_same(step(two, within(mxfp8, two), x, grad), step(one, within(mxfp8, one), x, grad))


@pytest.mark.parametrize("backend", ["", "aot_eager"])
@pytest.mark.parametrize("name", FP8)
def test_save__a_weight_in_parts_is_joined_again(name: str, backend: str) -> None:
    """The same bits as with the joined weight's bytes; the parameters alone are saved."""
    found = []
    for save in ("speed", "memory"):
        torch._dynamo.reset()
        made = norm(save, parameters_split={"q": 20, "k": 12, "v": 12})
        made.k_weight.requires_grad_(False)
        call: Any = within(RECIPES[name], made)
        call = compiled(call, backend)[0] if backend else call
        found.append(trained(made, name, call))
        none = octet.measure(made, 0, RECIPES[name])
        assert (none.stored < 1024) == (save == "memory")
        held = {p.data_ptr() for p in made.parameters()}
        x, kept = inputs(70)[0].requires_grad_(), []

        def keep(tensor: torch.Tensor, held: Any = held, kept: Any = kept) -> torch.Tensor:  # noqa: ANN401
            if tensor.data_ptr() not in held and 70 in tensor.shape[-2:]:
                kept.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            y = call(x)
        assert (44, 70) not in kept
        y.sum().backward()
    assert_same(found[1], found[0])


def test_save__a_parametrized_part_is_saved_as_bytes() -> None:
    """It is made for the call: nobody holds what it was."""
    made = norm(parameters_split={"q": 20, "k": 24})
    torch.nn.utils.parametrizations.weight_norm(made, "q_weight")
    assert octet.measure(made, 0, RECIPES["mxfp8"]).stored > 44 * 70
    x, grad = inputs(44)
    (memory,) = torch.autograd.grad(
        within(RECIPES["mxfp8"], made)(x.requires_grad_()), x, grad, retain_graph=True
    )
    made.save = "speed"
    (speed,) = torch.autograd.grad(within(RECIPES["mxfp8"], made)(x), x, grad)
    assert torch.equal(memory, speed)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("name", ["current", "mxfp8", "delayed"])
def test_save__ranks_compute_what_the_whole_does(two: Ranks, name: str, sequence: bool) -> None:
    for made in two.run(norm_jobs.mlp, name, sequence, name == "mxfp8", 1, "memory"):
        for key, want in made["wanted"].items():
            error = (made["found"][key].float() - want.float()).norm() / want.float().norm()
            assert error < 0.09, key


# ---- what is saved ---------------------------------------------------------------------------


def saved_by(made: Any, active: Any, x: torch.Tensor) -> tuple[int, torch.Tensor]:  # noqa: ANN401
    """Bytes that autograd saves in a forward, and the output."""
    sizes: dict[tuple[int, int], int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.data_ptr(), tensor.nbytes] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = within(active, made)(x)
    return sum(sizes.values()), y


@pytest.mark.parametrize("save", ["speed", "memory"])
@pytest.mark.parametrize("name", ACTIVE)
def test_measure__is_what_norms_and_mlps_save(name: str, save: str) -> None:
    for made in (norm("speed"), mlp("speed")):
        x = inputs(70)[0].requires_grad_()
        found = octet.measure(made, 39, RECIPES[name], save=save)
        for half in (made.fc1, made.fc2) if isinstance(made, octet.LayerNormMLP) else (made,):
            half.save = save
        assert found == octet.measure(made, 39, RECIPES[name])
        saved, _ = saved_by(made, RECIPES[name], x)
        # Seeds and delayed scaling's state, which backward is lent, are the layer's own.
        assert 0 <= saved - found.saved <= 8 + 4 * (2 + 2 * 4 * 2) * 2
        in_8_bits = save == "memory" and isinstance(made, octet.LayerNormMLP)
        assert bool(found.packed) == in_8_bits


@pytest.mark.parametrize("compile_it", [False, True])
@pytest.mark.parametrize(("save", "dies"), [("speed", False), ("memory", True)])
def test_save__what_the_activation_reads_is_not_held(
    save: str, dies: bool, compile_it: bool
) -> None:
    """The MLP's widest tensor in bf16 lives until backward, or as long as forward."""
    made = mlp(save)
    call: Any = within(RECIPES["mxfp8"], made)
    call = compiled(call)[0] if compile_it else call
    x = inputs(70)[0].requires_grad_()
    kept: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append((t.dtype, t.shape[-1])) or t, lambda t: t
    ):
        y = call(x)
    assert ((torch.bfloat16, 88) in kept) == (not dies)
    y.sum().backward()


def test_save__its_storage_is_free_after_forward() -> None:
    for save, lives in (("speed", True), ("memory", False)):
        made, held = mlp(save), []

        def note(_: Any, __: Any, hidden: torch.Tensor, held: Any = held) -> None:  # noqa: ANN401
            held.append(weakref.ref(hidden.untyped_storage()))

        made.fc1.register_forward_hook(note)
        with octet.autocast(recipe=RECIPES["mxfp8"]):
            y = made(inputs(70)[0].requires_grad_())
        gc.collect()
        assert (held[0]() is not None) == lives
        del y


# ---- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "label"),
    [
        (lambda: octet.Linear(8, 8, device="cpu", name="q", save="fast"), r"Linear 'q'"),
        (lambda: octet.LayerNormLinear(8, 8, device="cpu", save="fast"), r"LayerNormLinear"),
        (lambda: octet.LayerNormMLP(8, 8, device="cpu", save="fast"), r"LayerNormMLP"),
        (lambda: octet.measure(plain_layer(), 8, save="fast"), r"measure"),
    ],
)
def test_save__another_word_is_refused(made: Any, label: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=rf"{label}.*'fast'.*speed, memory"):
        made()


def test_measure__another_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"measure.*GELU.*LayerNormMLP"):
        octet.measure(torch.nn.GELU(), 8)
