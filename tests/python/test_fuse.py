"""convert(fuse=True): transformers' models, with the same names, and what is left alone."""

import copy
import pickle
import warnings
from typing import Any

import octet
import pytest
import torch._dynamo.testing
from laws import RECIPES, assert_same
from torch.nn.utils import prune

import torch

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
FAMILIES = {"Llama": {}, "Qwen2": {}, "Qwen3": {"head_dim": 16}, "Mistral": {}, "GPT2": {}}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 50}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
every_family = pytest.mark.parametrize("family", FAMILIES)


def model(family: str = "Llama", **more: Any) -> Any:  # noqa: ANN401
    torch.manual_seed(0)
    sizes = GPT2 if family == "GPT2" else SIZES
    config = getattr(transformers, f"{family}Config")(**sizes, **FAMILIES[family], **more)
    kind = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    made = getattr(transformers, family + kind)(config)
    with torch.no_grad():  # biases and norms that do something
        for name, parameter in made.named_parameters():
            if "norm" in name or "ln_" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn(parameter.shape))
    return made.train()


def tokens() -> torch.Tensor:
    return torch.arange(24).view(2, 12) * 7 % 50


def trained(made: Any, steps: int = 3, active: Any = None) -> tuple[list[float], torch.Tensor]:  # noqa: ANN401
    """Losses, and the last logits."""
    optimizer = torch.optim.AdamW(made.parameters(), 1e-3)
    losses = []
    for _ in range(steps):
        with octet.autocast(enabled=active is not None, recipe=active):
            out = made(tokens(), labels=tokens())
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
        losses.append(out.loss.item())
    return losses, out.logits.detach()


def near(a: torch.Tensor, b: torch.Tensor, bound: float) -> bool:
    return bool((a - b).norm() <= bound * b.norm())


@every_family
def test_fuse__without_a_recipe_the_model_computes_as_before(family: str) -> None:
    plain = model(family)
    fused = octet.convert(copy.deepcopy(plain), fuse=True)
    for made in (plain, fused):
        made(tokens(), labels=tokens()).loss.backward()
    assert near(fused(tokens()).logits, plain(tokens()).logits, 1e-5)
    held = dict(fused.named_parameters())
    assert list(held) == [name for name, _ in plain.named_parameters()]
    for name, parameter in plain.named_parameters():
        is_turned = ".c_" in name and parameter.dim() > 1  # a Conv1D's
        grad = held[name].grad.t() if is_turned else held[name].grad
        assert near(grad, parameter.grad, 1e-4), name


@every_family
@pytest.mark.parametrize("name", ["delayed", "current", "mxfp8"])
def test_fuse__trains_as_the_unfused_layers_do(family: str, name: str) -> None:
    unfused = octet.convert(model(family))
    fused = octet.convert(model(family), fuse=True)
    wanted, logits = trained(unfused, active=RECIPES[name])
    found, mine = trained(fused, active=RECIPES[name])
    assert all(abs(a - b) < 0.02 * b for a, b in zip(found, wanted, strict=True))
    assert near(mine, logits, 0.1)
    assert wanted[-1] < wanted[0]


def test_fuse__layers_are_what_they_should_be() -> None:
    made = octet.convert(model(), fuse=True)
    layers = [m for m in made.modules() if isinstance(m, octet.LayerNormLinear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(64, 128), (64, 192)] * 2
    assert all(m.eps == made.config.rms_norm_eps for m in layers)
    linear = [n for n, m in made.named_modules() if type(m) is octet.Linear]
    assert linear == [f"model.layers.{i}.self_attn.o_proj" for i in range(2)] + ["lm_head"]
    before = [id(m) for m in made.modules()]
    assert [id(m) for m in octet.convert(made, fuse=True).modules()] == before


@pytest.mark.parametrize("name", ["delayed", "mxfp8"])
def test_fuse__compiled_equals_eager(name: str) -> None:
    eager = octet.convert(model(), fuse=True)
    other = copy.deepcopy(eager)
    active = RECIPES[name]
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def call(made: Any, ids: torch.Tensor) -> Any:  # noqa: ANN401
        with octet.autocast(recipe=active):
            return made(ids, use_cache=False).logits

    fast = torch.compile(call, backend=counter, fullgraph=True)
    for number in range(2):
        for made, run in ((eager, call), (other, fast)):
            made.zero_grad()
            run(made, (tokens() + number) % 50).square().sum().backward()
        pairs = zip(eager.parameters(), other.parameters(), strict=True)
        assert all(near(b.grad, a.grad, 1e-2) for a, b in pairs)
    assert counter.frame_count == 1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["delayed", "mxfp8"])
def test_fuse__gradient_checkpointing_computes_the_same(name: str, reentrant: bool) -> None:
    found = []
    for checkpoints in (False, True):
        made = octet.convert(model(), fuse=True)
        if checkpoints:
            made.gradient_checkpointing_enable({"use_reentrant": reentrant})
            made.enable_input_require_grads()
        losses, logits = trained(made, active=RECIPES[name])
        found.append([torch.tensor(losses), logits, *made.parameters()])
    assert_same(*found)


# ---- names, copies, the way back -------------------------------------------------------------


def test_fuse__the_state_dict_is_the_models_own() -> None:
    plain = model()
    fused = octet.convert(copy.deepcopy(plain), fuse=True)
    assert list(fused.state_dict()) == list(plain.state_dict())
    trained(fused, 1)
    plain.load_state_dict(fused.state_dict())
    assert near(plain(tokens()).logits, fused(tokens()).logits, 1e-5)
    other = octet.convert(model(), fuse=True)
    for assign in (False, True):
        other.load_state_dict(plain.state_dict(), assign=assign)
        assert torch.equal(other(tokens()).logits, fused(tokens()).logits)
    trained(other, 1, RECIPES["delayed"])
    kept = other.state_dict()
    scales = [name for name in kept if name.endswith("input_layernorm.linear.fp8_state")]
    assert len(scales) == 2
    again = octet.convert(model(), fuse=True)
    octet.prepare(again, RECIPES["delayed"])
    again.load_state_dict(kept)
    assert torch.equal(again.state_dict()[scales[0]], kept[scales[0]])


def test_fuse__an_optimizer_made_before_still_steps() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), 0.1)
    octet.convert(made, fuse=True)
    with octet.autocast():
        before = made(tokens(), labels=tokens())
    before.loss.backward()
    optimizer.step()
    with octet.autocast():
        assert made(tokens(), labels=tokens()).loss < before.loss


def test_fuse__copies_and_moves_keep_parameters_one() -> None:
    made = octet.convert(model(), fuse=True)
    trained(made, 1, RECIPES["delayed"])
    wanted = made(tokens()).logits
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.half().float()):
        assert near(other(tokens()).logits, wanted, 1e-2)
        layer = other.model.layers[0]
        assert layer.input_layernorm.linear.q_proj_weight is layer.self_attn.q_proj.weight
        assert layer.input_layernorm.linear.layer_norm_weight is layer.input_layernorm.weight
    with torch.device("meta"):
        empty = model()
    empty = octet.convert(empty, fuse=True)
    empty.to_empty(device="cpu")
    empty.load_state_dict(made.state_dict(), strict=False)
    empty.model.rotary_emb = made.model.rotary_emb
    assert near(empty(tokens()).logits, made(tokens()).logits, 1e-6)
    layer = made.model.layers[0]
    layer.self_attn.q_proj.weight = torch.nn.Parameter(torch.zeros(64, 64))
    assert not torch.equal(made(tokens()).logits, empty(tokens()).logits)


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_fuse__unconvert_gives_the_model_back(family: str) -> None:
    plain = model(family)
    fused = octet.convert(copy.deepcopy(plain), fuse=True)
    trained(fused, 2, RECIPES["mxfp8"])
    wanted = fused(tokens()).logits
    back = octet.unconvert(fused)
    assert [type(m) for m in back.modules()] == [type(m) for m in plain.modules()]
    assert [n for n, _ in back.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert near(back(tokens()).logits, wanted, 1e-5)
    assert back.training


def test_fuse__constant_weights_are_cast_once() -> None:
    made = octet.convert(model(), fuse=True).eval()
    with octet.autocast(), torch.no_grad():
        wanted = made(tokens()).logits
        with octet.constant_weights():
            for _ in range(3):
                assert torch.equal(made(tokens()).logits, wanted)
            layer = made.model.layers[0].input_layernorm.linear
            assert layer._weight_cache.tensor is not None
            layer.q_proj_weight.mul_(2)
            assert not torch.equal(made(tokens()).logits, wanted)


def test_fuse__generates() -> None:
    plain, made = model().eval(), octet.convert(model(), fuse=True).eval()
    wanted = plain.generate(tokens()[:, :4], max_new_tokens=5, do_sample=False)
    found = made.generate(tokens()[:, :4], max_new_tokens=5, do_sample=False)
    assert torch.equal(found, wanted)


def test_fuse__gpt2_is_fused_where_its_layers_are() -> None:
    plain = model("GPT2")
    made = octet.convert(copy.deepcopy(plain), fuse=True)
    assert list(made.state_dict()) == list(plain.state_dict())
    made.load_state_dict(plain.state_dict())
    block = made.transformer.h[0]
    assert isinstance(block.attn.c_attn, octet.LayerNormLinear)
    assert isinstance(block.mlp.c_fc, octet.LayerNormLinear)
    assert block.ln_1.weight is block.attn.c_attn.layer_norm_weight
    trained(made, 2, RECIPES["delayed"])
    wanted = made(tokens()).logits
    for other in (copy.deepcopy(made), made.half().float()):
        assert near(other(tokens()).logits, wanted, 1e-2)
        held = other.transformer.h[0]
        assert held.ln_1.weight is held.attn.c_attn.layer_norm_weight
    other = octet.convert(model("GPT2"), fuse=True)
    octet.prepare(other, RECIPES["delayed"])
    other.load_state_dict(made.state_dict(), assign=True)
    assert torch.equal(other(tokens()).logits, made(tokens()).logits)
    tied = model("GPT2")
    tied.transformer.h[0].mlp.c_fc.weight = tied.transformer.h[1].mlp.c_fc.weight
    assert "is also another module's" in left(tied)


# ---- what is left alone ----------------------------------------------------------------------


def left(made: Any, **options: Any) -> str:  # noqa: ANN401
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        octet.convert(made, fuse=True, **options)
    return "".join(str(each.message) for each in caught)


def test_fuse__who_looks_on_prevents_it() -> None:
    made = model()
    layer = made.model.layers[0]
    layer.self_attn.q_proj.register_forward_hook(lambda *_: None)
    layer.mlp.act_fn = torch.nn.Tanh()
    text = left(made)
    assert "layers.0.input_layernorm: it is not fused" in text
    assert "self_attn.q_proj has hooks, which would see other tensors" in text
    assert "its activation, Tanh, is none of Octet's" in text
    assert type(layer.self_attn.q_proj) is octet.Linear
    fused = made.model.layers[1].input_layernorm
    assert isinstance(fused.linear, octet.LayerNormLinear)


def test_fuse__who_saves_and_loads_otherwise_prevents_it() -> None:
    made = model()
    layer = made.model.layers[0].mlp.up_proj
    layer.register_state_dict_post_hook(lambda *_: None)
    assert "mlp.up_proj has hooks" in left(made)


def blocks(made: Any) -> Any:  # noqa: ANN401
    return made.transformer.h if hasattr(made, "transformer") else made.model.layers


PARTS = {
    "Llama": ("mlp", "mlp.gate_proj", "mlp.down_proj", "self_attn.q_proj"),
    "GPT2": ("mlp", "attn", "attn.c_attn"),
}


@pytest.mark.parametrize("family", PARTS)
def test_fuse__parts_compute_nothing_alone(family: str) -> None:
    made = octet.convert(model(family), fuse=True)
    block, x = blocks(made)[1], torch.randn(2, 12, 64)
    for part in PARTS[family]:
        with pytest.raises(RuntimeError, match=r"the \w+ of .*1 is fused .* octet.unconvert"):
            block.get_submodule(part)(x)
    made(tokens())  # and they do together
    with pytest.raises(RuntimeError, match="computes nothing alone"):
        block.mlp(x)
    octet.unconvert(made)
    assert block.mlp(x).shape == x.shape


def test_fuse__a_part_that_is_pruned_later_is_refused() -> None:
    made = octet.convert(model(), fuse=True)
    prune.l1_unstructured(blocks(made)[0].self_attn.k_proj, "weight", 0.5)
    with pytest.raises(NotImplementedError, match=r"the Linear of model.layers.0 is fused"):
        made(tokens())


@pytest.mark.parametrize("family", PARTS)
def test_fuse__parts_are_not_copied_alone(family: str) -> None:
    """A copy of one would have parameters that nobody multiplies by, or nobody saves."""
    made = octet.convert(model(family), fuse=True)
    block = blocks(made)[0]
    norm = "ln_1" if family == "GPT2" else "input_layernorm"
    for part in (norm, *PARTS[family]):
        with pytest.raises(ValueError, match=r"cannot be copied alone .* octet.unconvert"):
            copy.deepcopy(block.get_submodule(part))
    copied = copy.deepcopy(block)
    assert copied.get_submodule(norm).weight is not block.get_submodule(norm).weight


@pytest.mark.parametrize("family", PARTS)
def test_fuse__unconvert_keeps_hooks_and_attributes_of_later(family: str) -> None:
    made, seen = octet.convert(model(family), fuse=True), []
    block, handles = blocks(made)[0], []
    for part in PARTS[family]:
        hook = lambda *_, part=part: seen.append(part)  # noqa: E731
        handles.append(block.get_submodule(part).register_forward_hook(hook))
        block.get_submodule(part).note = part
    octet.unconvert(made)
    made(tokens())
    assert sorted(seen) == sorted(PARTS[family])
    assert [block.get_submodule(part).note for part in PARTS[family]] == [*PARTS[family]]
    for handle in handles:
        handle.remove()
    made(tokens())
    assert len(seen) == len(PARTS[family])


@pytest.mark.parametrize("family", PARTS)
def test_fuse__compiled_code_sees_what_loaders_put_into_dictionaries(family: str) -> None:
    made = octet.convert(model(family), fuse=True)
    run = torch.compile(made, backend="aot_eager")
    run(tokens())
    name = "ln_1" if family == "GPT2" else "self_attn.q_proj"
    holder = blocks(made)[0].get_submodule(name)
    holder._parameters["weight"] = torch.nn.Parameter(3 * holder.weight.detach())
    found = run(tokens()).logits
    assert near(found, octet.unconvert(made)(tokens()).logits, 1e-6)


def test_fuse__a_forward_that_is_replaced_later_prevents_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    octet.convert(model(), fuse=True)  # the first proof is of transformers' own code
    module = transformers.models.llama.modeling_llama

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        return 2 * self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    monkeypatch.setattr(module.LlamaMLP, "forward", forward)
    want, made = model(), model()
    with pytest.warns(UserWarning, match=r"LlamaMLP\.forward is not"):
        octet.convert(made, fuse=True)
    assert torch.equal(made(tokens()).logits, want(tokens()).logits)


def test_fuse__other_code_prevents_it() -> None:
    """Classes of the known names whose forward is another one."""
    made = model()
    cls = type(made.model.layers[0])
    attention = type(made.model.layers[0].self_attn)

    class LlamaDecoderLayer(cls):
        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
            output, _ = self.self_attn(hidden_states=hidden_states, **kwargs)
            hidden_states = residual + output + hidden_states
            hidden_states = self.post_attention_layernorm(hidden_states)
            return residual + self.mlp(hidden_states)

    class LlamaAttention(attention):
        def forward(self, hidden_states: torch.Tensor, **kwargs: Any) -> Any:  # noqa: ANN401
            return self.q_proj(hidden_states) + hidden_states

    for own, theirs in ((LlamaDecoderLayer, cls), (LlamaAttention, attention)):
        own.__module__, own.__qualname__ = theirs.__module__, own.__name__
    made.model.layers[0].__class__ = LlamaDecoderLayer
    made.model.layers[1].self_attn.__class__ = LlamaAttention
    text = left(made)
    assert "does not give input_layernorm's result to self_attn alone" in text
    assert "LlamaAttention.forward reads its input otherwise" in text
    assert isinstance(
        made.model.layers[1].post_attention_layernorm.linear, octet.LayerNormLinear
    )
    assert not hasattr(made.model.layers[0].input_layernorm, "linear")


def test_fuse__a_module_in_two_places_prevents_it() -> None:
    made = model()
    made.model.layers[1].mlp = made.model.layers[0].mlp
    made.model.layers[1].self_attn.q_proj.forward = lambda x: x
    text = left(made)
    assert "layers.0.post_attention_layernorm: it is not fused" in text
    assert "mlp stands in several places of the model" in text
    assert "self_attn.q_proj has a forward of its own, or is compiled" in text
    assert hasattr(made.model.layers[0].input_layernorm, "linear")


def test_fuse__a_norm_that_computes_something_else_prevents_it() -> None:
    made = model()
    norm = made.model.layers[0].input_layernorm
    cls = type(norm)

    class LlamaRMSNorm(cls):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states) * (1 + self.weight)

    LlamaRMSNorm.__module__ = cls.__module__
    norm.__class__ = LlamaRMSNorm
    assert "input_layernorm computes something else than RMSNorm" in left(made)


def test_fuse__where_chooses_and_refuses() -> None:
    made = octet.convert(model(), fuse=True, where="*.layers.1.*")
    assert not hasattr(made.model.layers[0].input_layernorm, "linear")
    assert hasattr(made.model.layers[1].input_layernorm, "linear")
    with pytest.raises(ValueError, match=r"where= chooses only some of the layers behind it"):
        octet.convert(model(), fuse=True, where="*.q_proj")
    untouched = model()
    with pytest.raises(ValueError, match="where= chooses only some"):
        octet.convert(untouched, fuse=True, where=["*.layers.0.*", "*.1.self_attn.q_proj"])
    assert not hasattr(untouched.model.layers[0].input_layernorm, "linear")
    with pytest.raises(ValueError, match="taken apart all at once; leave out where"):
        octet.unconvert(made, where="*.layers.1.*")


def test_fuse__what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing that is known to be fusable"):
        octet.convert(torch.nn.Sequential(torch.nn.Linear(8, 8)), fuse=True)
    with pytest.raises(ValueError, match="leave out one of the two"):
        octet.convert(model(), fuse=True, weights=RECIPES["mxfp8"])
    mixed = torch.nn.Sequential(octet.LayerNormLinear(8, 8, device="cpu"))
    with pytest.raises(ValueError, match=r"it begins with layernorm, which nn\.Linear"):
        octet.unconvert(mixed)
