"""What a decoder block of transformers keeps for backward: in bf16, and by convert's save=."""

from typing import Any

import octet
import pytest
from laws import RECIPES, compiled, within
from octet.linear import AnyLinear

import torch

transformers = pytest.importorskip("transformers")

# Llama-3-8B's proportions, an eighth of its width (1/16 of its heads' number).
SIZES = {"hidden_size": 512, "intermediate_size": 1792, "num_attention_heads": 8}
SIZES |= {"num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 128}
TOKENS = 256


def llama(blocks: int) -> Any:  # noqa: ANN401
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        num_hidden_layers=blocks, attn_implementation="sdpa", use_cache=False, **SIZES
    )
    return transformers.LlamaModel(config).bfloat16().train()


def hidden_of(made: Any) -> Any:  # noqa: ANN401
    return lambda ids: made(ids).last_hidden_state


def kept(made: Any, call: Any) -> int:  # noqa: ANN401
    """Bytes of all storages that autograd holds for backward, but parameters and buffers."""
    held = {t.untyped_storage().data_ptr() for t in (*made.parameters(), *made.buffers())}
    found: dict[
        int, torch.UntypedStorage
    ] = {}  # which keeps them alive: no address comes twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            found[storage.data_ptr()] = storage
        return tensor

    ids = torch.arange(TOKENS).view(2, -1) % 32
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = call(ids)
    total = sum(storage.nbytes() for storage in found.values())
    y.sum().backward()
    assert all(p.grad is not None for p in made.parameters())
    return total


def layers_of(made: Any) -> list[Any]:  # noqa: ANN401
    return [m for m in made.modules() if isinstance(m, AnyLinear)]


def weights_of(made: Any, recipe: Any) -> int:  # noqa: ANN401
    """Bytes of weights that calls save: what they would save of no rows."""
    return sum(octet.measure(layer, 0, recipe).stored for layer in layers_of(made))


def per_block(make: Any, recipe: Any, backend: str = "") -> float:  # noqa: ANN401
    """Bytes of one more block for each token, without weights."""
    totals = []
    for blocks in (1, 2):
        torch._dynamo.reset()
        made = make(blocks)
        call: Any = within(recipe, hidden_of(made))
        call = compiled(call, backend)[0] if backend else call
        totals.append(kept(made, call) - weights_of(made, recipe))
    return (totals[1] - totals[0]) / TOKENS


def fused(save: str) -> Any:  # noqa: ANN401
    return lambda blocks: octet.convert(llama(blocks), fuse=True, save=save)


def activations(name: str, save: str) -> float:
    """By octet.measure: what one block's layers save for each token, without weights."""
    total = 0
    for layer in layers_of(fused(save)(1)):
        found = octet.measure(layer, TOKENS, RECIPES[name])
        none = octet.measure(layer, 0, RECIPES[name])
        # What attention holds anyway is not the layer's, though it stays alive for it, too.
        alive = 0 if layer._input_is_kept and name != "delayed" else found.alive - none.alive
        total += found.stored - none.stored + alive
    return total / TOKENS


@pytest.mark.parametrize(
    ("name", "backend"), [("mxfp8", ""), ("delayed", ""), ("mxfp8", "aot_eager")]
)
def test_save__a_llama_block_keeps_what_measure_tells(name: str, backend: str) -> None:
    speed, memory = (per_block(fused(s), RECIPES[name], backend) for s in ("speed", "memory"))
    assert memory < 0.65 * speed
    told = activations(name, "speed") - activations(name, "memory")
    assert abs((speed - memory) - told) <= 8  # blocks are rounded up to 256 bytes


def test_save__a_llama_block_keeps_less_than_in_bf16() -> None:
    plain = per_block(llama, None, "inductor")
    assert per_block(fused("memory"), RECIPES["mxfp8"], "aot_eager") < 0.6 * plain


def test_save__a_converted_model_trains_alike() -> None:
    """Losses of some steps, with both; logits of the first are the same bits."""
    ids = torch.arange(48).view(2, -1) * 7 % 32
    losses = {}
    for save in ("speed", "memory"):
        made = octet.convert(llama(1).float(), fuse=True, save=save)
        head = torch.nn.Linear(512, 32, bias=False)
        optimizer = torch.optim.SGD([*made.parameters(), *head.parameters()], 0.003)
        found = []
        for _ in range(5):
            with octet.autocast(recipe=RECIPES["mxfp8"]):
                hidden = made(ids).last_hidden_state
            loss = torch.nn.functional.cross_entropy(head(hidden).flatten(0, 1), ids.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses[save] = found
        torch.manual_seed(0)
    speed, memory = losses.values()
    assert speed[0] == memory[0]
    assert speed[-1] < 0.9 * speed[0]
    assert all(abs(a - b) < 0.02 * a for a, b in zip(speed, memory, strict=True))


# ---- convert ---------------------------------------------------------------------------------


def test_save__convert_gives_it_to_all_layers() -> None:
    made = fused("memory")(1)
    assert {layer.save for layer in layers_of(made)} == {"memory"}
    assert {layer.save for layer in layers_of(octet.convert(llama(1), fuse=True))} == {"speed"}
    small = octet.convert(torch.nn.Sequential(torch.nn.Linear(8, 8)), save="memory")
    assert small[0].save == "memory"
    assert type(octet.unconvert(small)[0]) is torch.nn.Linear


def test_save__what_attention_keeps_is_not_saved_twice() -> None:
    """o_proj reads what SDPA saves itself: its own bytes, an element each, are not saved."""
    assert fused("memory")(1).layers[0].self_attn.o_proj._input_is_kept
    assert not fused("speed")(1).layers[0].self_attn.o_proj._input_is_kept

    def twice(blocks: int) -> Any:  # noqa: ANN401
        made = fused("memory")(blocks)
        for block in made.layers:
            block.self_attn.o_proj._input_is_kept = False
        return made

    mxfp8 = RECIPES["mxfp8"]
    less = per_block(twice, mxfp8) - per_block(fused("memory"), mxfp8)
    assert abs(less - 512 * (1 + 1 / 32)) <= 8
    grads = []
    for make in (twice, fused("memory")):  # the same bits, by another cast of the same tensor
        made = make(1)
        within(mxfp8, hidden_of(made))(torch.arange(8).view(2, 4)).sum().backward()
        grads.append([p.grad for p in made.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    eager = transformers.LlamaModel(transformers.LlamaConfig(num_hidden_layers=1, **SIZES))
    eager.set_attn_implementation("eager")
    eager = octet.convert(eager, save="memory")
    assert not eager.layers[0].self_attn.o_proj._input_is_kept


def test_save__convert_refuses_what_it_cannot_give() -> None:
    made = octet.convert(llama(1), fuse=True)
    with pytest.raises(ValueError, match=r"convert\(save='memory'\).*o_proj.*'speed'"):
        octet.convert(made, fuse=True, save="memory")
    octet.convert(made, fuse=True)
    with pytest.raises(ValueError, match=r"convert: save is 'less'.*speed, memory"):
        octet.convert(llama(1), fuse=True, save="less")
