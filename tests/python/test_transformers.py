"""Octet in models of Hugging Face transformers: saving, loading, gradient checkpointing."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import octet
import pytest
from laws import RECIPES
from octet.linear import AnyLinear
from safetensors.torch import load_file, save_file

import torch

transformers = pytest.importorskip("transformers")

DELAYED = RECIPES["delayed"]
SCALING = ("fp8_state", "fp8_grad_state")


class SmallConfig(transformers.PretrainedConfig):
    model_type = "octet-small"

    def __init__(self, prepared: bool = False, **kwargs: Any) -> None:  # noqa: ANN401
        self.prepared = prepared
        super().__init__(**kwargs)


class Small(transformers.PreTrainedModel):
    """A model that makes octet layers itself."""

    config_class = SmallConfig

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.embed = torch.nn.Embedding(50, 32)
        self.up = octet.Linear(32, 64)
        self.down = octet.Linear(64, 32, bias=False)
        self.head = torch.nn.Linear(32, 50)
        if config.prepared:
            octet.prepare(self, DELAYED)
        self.post_init()

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(torch.relu(self.up(self.embed(input_ids)))))


class SmallNormed(Small):
    """The same with layers that begin with norms."""

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.up = octet.LayerNormLinear(32, 64)
        self.down = octet.LayerNormMLP(64, 32)
        self.head = torch.nn.Linear(64, 50)
        if config.prepared:
            octet.prepare(self, DELAYED)
        self.post_init()


class OctetLlama(transformers.LlamaForCausalLM):
    """A Llama whose layers are converted when it is made."""

    fuses = False

    def __init__(self, config: transformers.LlamaConfig) -> None:
        super().__init__(config)
        octet.convert(self, "model.*", fuse=self.fuses)
        if getattr(config, "prepared", False):
            octet.prepare(self, DELAYED)


class FusedLlama(OctetLlama):
    """One whose layers are fused, too."""

    fuses = True


def llama_config(**more: Any) -> transformers.LlamaConfig:  # noqa: ANN401
    return transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        attn_implementation="eager",
        use_cache=False,
        **more,
    )


def make(kind: type, dtype: torch.dtype | None = None) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    config = SmallConfig() if issubclass(kind, Small) else llama_config()
    return kind._from_config(config, dtype=dtype)


def ids() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randint(0, 50, (2, 8))


def output(model: torch.nn.Module) -> torch.Tensor:
    made = model(ids())
    return made if isinstance(made, torch.Tensor) else made.logits


def train(model: torch.nn.Module, steps: int = 1) -> list[torch.Tensor]:
    """Some steps under delayed scaling; the weights they lead to."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model.train()
    for _ in range(steps):
        with octet.autocast(recipe=DELAYED):
            loss = output(model).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()]


def scaling(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Delayed scaling's buffers, by name."""
    found = dict(model.named_buffers())
    return {k: v.clone() for k, v in found.items() if k.rpartition(".")[2] in SCALING}


def layers(model: torch.nn.Module) -> list[AnyLinear]:
    return [module for module in model.modules() if isinstance(module, AnyLinear)]


def assert_fresh(model: torch.nn.Module) -> None:
    for name, tensor in scaling(model).items():
        wanted = torch.zeros_like(tensor)
        wanted[0] = 1.0  # the scales
        assert tensor.dtype == torch.float32, name
        assert torch.equal(tensor, wanted), name


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody has written to holds NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def without_scales(folder: Path) -> None:
    """Takes the scales out of a saved model."""
    path = folder / "model.safetensors"
    kept = {k: v for k, v in load_file(path).items() if k.rpartition(".")[2] not in SCALING}
    save_file(kept, path, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", [Small, SmallNormed, OctetLlama, FusedLlama])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_transformers__a_loaded_model_has_saved_or_fresh_scales(
    kind: type,
    prepared: bool,
    saved: bool,
    dtype: torch.dtype | None,
    tmp_path: Path,
    poisoned: None,
) -> None:
    model = make(kind, dtype)
    train(model, 2)
    before = scaling(model)
    assert len(before) == len(SCALING) * len(layers(model))
    model.save_pretrained(tmp_path)
    if not saved:
        without_scales(tmp_path)
    config = copy.deepcopy(model.config)
    config.prepared = prepared
    other = kind.from_pretrained(tmp_path, config=config, dtype=dtype)
    assert layers(other)
    if saved and prepared:
        found = scaling(other)
        assert before.keys() == found.keys()
        for name, tensor in before.items():
            assert found[name].dtype == torch.float32, name
            assert torch.equal(tensor, found[name]), name
    else:
        assert len(scaling(other)) == (len(SCALING) * len(layers(other)) if prepared else 0)
        assert_fresh(other)
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two), name
    with octet.autocast(recipe=DELAYED), torch.no_grad():
        assert output(other.eval()).isfinite().all()
    if saved and prepared:
        for one, two in zip(train(model, 2), train(other, 2), strict=True):
            assert torch.equal(one, two)
    assert all(weight.isfinite().all() for weight in train(other, 2))
    assert all(tensor.isfinite().all() for tensor in scaling(other).values())


# ---- gradient checkpointing ------------------------------------------------------------------


def llama() -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    return OctetLlama(llama_config())


def two_steps(model: torch.nn.Module, name: str) -> list[torch.Tensor]:
    """Gradients of two steps, with the autocast around forward only; then the scales."""
    model.train()
    found = []
    for number in range(2):
        torch.manual_seed(10 + number)
        model.zero_grad()
        with octet.autocast(recipe=RECIPES[name]):
            y = model(ids()).logits
        y.square().mean().backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found + list(scaling(model).values())


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "delayed"])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_transformers__gradient_checkpointing_changes_nothing(
    name: str, use_reentrant: bool
) -> None:
    wanted = two_steps(llama(), name)
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        model.enable_input_require_grads()
    found = two_steps(model, name)
    assert len(wanted) == len(found)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def compile_blocks(model: torch.nn.Module, fullgraph: bool = True) -> None:
    for block in model.model.layers:
        block.compile(backend="aot_eager", fullgraph=fullgraph)


@pytest.mark.parametrize(
    ("name", "use_reentrant"), [("mxfp8", False), ("mxfp8", True), ("nvfp4", False)]
)
def test_transformers__checkpointed_compiled_blocks_compute_the_same(
    name: str, use_reentrant: bool
) -> None:
    plain, model = llama(), llama()
    compile_blocks(plain)
    wanted = two_steps(plain, name)
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        model.enable_input_require_grads()
    compile_blocks(model)
    found = two_steps(model, name)
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_transformers__checkpointed_compiled_delayed_scaling_is_refused(
    use_reentrant: bool,
) -> None:
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    if use_reentrant:
        model.enable_input_require_grads()
    compile_blocks(model)
    with pytest.raises(Exception, match=r"octet.Linear 'model.layers.*checkpoint"):
        two_steps(model, "delayed")


def test_transformers__compiled_code_that_may_break_runs_delayed_scaling_eagerly() -> None:
    """Without fullgraph=True a checkpointed layer breaks the graph: it computes by itself."""
    wanted = two_steps(llama(), "delayed")
    model = llama()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    compile_blocks(model, fullgraph=False)
    found = two_steps(model, "delayed")
    assert all(one.isfinite().all() for one in found)
    for one, two in zip(wanted, found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


# ---- layers that begin with a norm -----------------------------------------------------------


class Normed(transformers.PreTrainedModel):
    """A model of layers that transformers does not know, or takes for norms."""

    config_class = SmallConfig

    def __init__(self, config: SmallConfig) -> None:
        super().__init__(config)
        self.up = octet.Linear(32, 32)
        self.qkv = octet.LayerNormLinear(32, 48, parameters_split=("q", "k", "v"))
        self.linear = octet.LayerNormLinear(48, 32, normalization="RMSNorm")
        self.mlp = octet.LayerNormMLP(32, 64, activation="swiglu")
        self.norm = octet.RMSNorm(32, zero_centered_gamma=True)
        self.last = octet.LayerNorm(32)
        self.post_init()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.mlp(self.linear(self.qkv(self.up(x))))))


FIRST = {"norm.weight": 0.0, "last.weight": 1.0, "last.bias": 0.0}
FIRST |= {f"{each}.layer_norm_weight": 1.0 for each in ("qkv", "linear", "mlp")}
FIRST |= {f"{each}.layer_norm_bias": 0.0 for each in ("qkv", "mlp")}


def assert_drawn(model: torch.nn.Module) -> None:
    """Norms have their first values, and weights are random numbers of the usual size."""
    for name, parameter in model.named_parameters():
        if name in FIRST:
            assert parameter.eq(FIRST[name]).all(), name
        elif name.startswith("up."):
            assert parameter.abs().max() < 0.1, name  # by transformers' own rule
        else:
            bound = 64**-0.5 if "fc2" in name else (48 if "linear" in name else 32) ** -0.5
            assert parameter.abs().max() <= bound, name
            assert parameter.std() > bound / 4, name


def test_transformers__a_new_model_has_weights_and_norms_of_first_values() -> None:
    assert_drawn(Normed(SmallConfig()))


def test_transformers__what_a_checkpoint_lacks_is_drawn(tmp_path: Path, poisoned: None) -> None:
    made = Normed(SmallConfig())
    made.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    kept = {k: v for k, v in load_file(path).items() if k.startswith("up.")}
    save_file(kept, path, metadata={"format": "pt"})
    loaded = Normed.from_pretrained(tmp_path)
    assert_drawn(loaded)
    assert torch.equal(loaded.up.weight, made.up.weight)


def test_transformers__what_a_checkpoint_has_is_loaded(tmp_path: Path, poisoned: None) -> None:
    made = Normed(SmallConfig())
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.fill_(1.0) if name == "linear.weight" else parameter.normal_()
    made.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    lacking = ("qkv.k_weight", "mlp.fc1_bias")
    kept = {k: v for k, v in load_file(path).items() if k not in lacking}
    save_file(kept, path, metadata={"format": "pt"})
    loaded = dict(Normed.from_pretrained(tmp_path).named_parameters())
    for name, parameter in made.named_parameters():
        assert torch.equal(loaded[name], parameter) != (name in lacking), name
    for name in lacking:
        assert loaded[name].abs().max() <= 32**-0.5


def test_transformers__a_models_own_rule_for_weights_wins() -> None:
    class Own(Normed):
        def _init_weights(self, module: torch.nn.Module) -> None:
            if module is self.linear:
                torch.nn.init.constant_(module.weight, 0.5)
            else:
                super()._init_weights(module)

    made = Own(SmallConfig())
    assert made.linear.weight.eq(0.5).all()
    assert made.mlp.fc1_weight.std() > 0.02
