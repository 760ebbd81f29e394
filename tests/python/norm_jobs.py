"""What ranks do in the tests of split layers that begin with a norm or an activation."""

from typing import Any

import octet
import torch.distributed as dist
from laws import RECIPES
from octet._lent import LentLinear

import torch


def _whole() -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(5)
    return tuple(torch.randn(256, 128, generator=made).bfloat16() for _ in range(2))


def _shifted(module: Any) -> Any:  # noqa: ANN401
    """The norm is not 1, and is the same on every rank."""
    made = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for name in ("layer_norm_weight", "layer_norm_bias"):
            vector = getattr(module, name)
            vector.add_(torch.randn(vector.shape, generator=made))
    return module


def _mlp(**options: Any) -> octet.LayerNormMLP:  # noqa: ANN401
    torch.manual_seed(7)
    shape = {"params_dtype": torch.bfloat16, "device": "cpu", "activation": "swiglu"}
    return _shifted(octet.LayerNormMLP(128, 192, **shape, **options))


def _trained(call: Any, module: Any, x: torch.Tensor, grad: torch.Tensor) -> dict[str, Any]:  # noqa: ANN401
    x = x.clone().requires_grad_()
    y = call(x)
    y.backward(grad)
    found = {name: p.grad for name, p in module.named_parameters()}
    return {"y": y.detach(), "x": x.grad, **found}


def mlp(
    rank: int,
    name: str,
    sequence: bool,
    compile_it: bool,
    chunks: int = 1,
    save: str = "speed",
) -> dict[str, Any]:
    """A rank's results beside its share of those of the whole layer."""
    ranks = dist.get_world_size()
    x, grad = _whole()
    active = RECIPES[name]

    def inside(module: Any) -> Any:  # noqa: ANN401
        def call(inp: torch.Tensor) -> torch.Tensor:
            with octet.autocast(enabled=active is not None, recipe=active):
                return module(inp)

        return call

    unsplit = _mlp(save=save)
    wanted = _trained(inside(unsplit), unsplit, x, grad)
    over = {"set_parallel_mode": True, "tp_group": dist.group.WORLD, "ub_overlap_ag": chunks}
    split = _mlp(sequence_parallel=sequence, save=save, **over)
    call = inside(split)
    if compile_it:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    if sequence:
        x, grad = (t.chunk(ranks)[rank].clone() for t in (x, grad))
    found = _trained(call, split, x, grad)
    if sequence:  # gradients of a rank's own rows: whoever trains sums them
        for key in ("layer_norm_weight", "layer_norm_bias", "fc2_bias"):
            assert getattr(split, key).sequence_parallel is True, key
            total = found[key].float()
            dist.all_reduce(total)
            found[key] = total.bfloat16()
        wanted["y"], wanted["x"] = (wanted[k].chunk(ranks)[rank] for k in ("y", "x"))
    for key in ("fc1_weight", "fc1_bias"):
        halves = [half.chunk(ranks)[rank] for half in wanted[key].chunk(2)]
        wanted[key] = torch.cat(halves)
        mine = torch.cat([h.chunk(ranks)[rank] for h in getattr(unsplit, key).chunk(2)])
        assert torch.equal(getattr(split, key), mine), key
    wanted["fc2_weight"] = wanted["fc2_weight"].chunk(ranks, 1)[rank]
    return {"found": found, "wanted": wanted}


class _Stack(torch.nn.Module):
    """A LayerNormLinear with parts and a LayerNormMLP, as a model has them."""

    def __init__(self) -> None:
        super().__init__()
        shape = {"params_dtype": torch.bfloat16, "device": "cpu"}
        self.first = octet.LayerNormLinear(128, 128, **shape)
        self.parts = octet.LayerNormLinear(128, 128, parameters_split=("a", "b"), **shape)
        self.mlp = octet.LayerNormMLP(128, 192, activation="swiglu", **shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.parts(self.first(x)))


def _llama() -> Any:  # noqa: ANN401
    import transformers

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    torch.manual_seed(8)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return octet.convert(made, fuse=True)


def sharded(rank: int, name: str, kind: str) -> dict[str, Any]:
    """Gradients of a rank's own rows: of a model that is sharded, summed, and of one that is
    not; and the loss of a second step."""
    from torch.distributed.fsdp import fully_shard

    active, found = RECIPES[name], {}
    ids = torch.arange(48).view(4, 12) * 7 % 50
    x = _whole()[0]
    for way in ("whole", "sharded"):
        torch.manual_seed(9)
        module = _llama() if kind == "llama" else _Stack()
        if way == "sharded":
            blocks = module.model.layers if kind == "llama" else module.children()
            for block in list(blocks):
                fully_shard(block)
            fully_shard(module)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        losses = []
        for _ in range(2):
            with octet.autocast(enabled=active is not None, recipe=active):
                if kind == "llama":
                    loss = module(ids, labels=ids).loss
                else:
                    loss = module(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        full = [
            p.grad.full_tensor() if way == "sharded" else p.grad for p in module.parameters()
        ]
        found[way] = {"losses": torch.stack(losses), "grads": full}
        found[way]["names"] = [name for name, _ in module.named_parameters()]
    return found


def cached_weights(rank: int, kind: str) -> dict[str, Any]:
    """Which casts are taken again after another gather, into other memory, and what a model
    computes after the shards were written."""
    from torch.distributed.fsdp import fully_shard

    ids = torch.arange(48).view(4, 12) * 7 % 50
    made, other = (_llama() if kind == "llama" else _mlp() for _ in range(2))
    x = ids if kind == "llama" else _whole()[0]
    part = made.model.layers[0] if kind == "llama" else made
    for each in [part] if part is made else [part, made]:
        fully_shard(each)
    layers = [m for m in part.modules() if isinstance(m, (octet.LayerNormLinear, LentLinear))]

    def call(of: Any) -> torch.Tensor:  # noqa: ANN401
        with torch.no_grad(), octet.autocast(recipe=RECIPES["mxfp8"]):
            found = of(x)
        return found.logits if kind == "llama" else found

    with octet.constant_weights():
        call(made)
        casts = [layer._weight_cache.tensor for layer in layers]
        part.reshard()
        held = [torch.empty(p.shape, dtype=p.dtype) for p in other.parameters()]
        call(made)
        again = [layer._weight_cache.tensor for layer in layers]
        del held
        for each in (part, made):
            each.reshard()
        with torch.no_grad():
            for model in (made, other):
                for name, parameter in model.named_parameters():
                    parameter.mul_(2 if "norm" not in name else 1)
        found, wanted = call(made), call(other)
    same = [a is not None and a is b for a, b in zip(casts, again, strict=True)]
    return {"taken again": same, "found": found, "wanted": wanted}


def recomputed_steps(rank: int) -> dict[str, Any]:
    """Losses of MLPs that backward runs again, whose weights are stored in MXFP8: backward has
    gathered them columnwise."""
    from torch.distributed.fsdp import fully_shard

    x, found = _whole()[0], {}
    for way in ("whole", "sharded"):
        torch.manual_seed(9)
        options = {"params_dtype": torch.bfloat16, "device": "cpu", "checkpoint": True}
        with octet.quantized_model_init(recipe=RECIPES["mxfp8"]):
            module = torch.nn.Sequential(
                *(octet.LayerNormMLP(128, 96, **options) for _ in range(2))
            )
        for part in [*module, module] if way == "sharded" else []:
            fully_shard(part)
        optimizer, losses = torch.optim.SGD(module.parameters(), 0.5), []
        for _ in range(3):
            with octet.autocast(recipe=RECIPES["mxfp8"]):
                loss = module(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        found[way] = torch.stack(losses)
    return found
