"""A user's program: what type checkers should find nothing in."""

import octet
from octet import recipe

import torch


def build(width: int) -> octet.Linear:
    return octet.Linear(width, 2 * width, params_dtype=torch.bfloat16, device="cpu")


def rounded(role: octet.QuantizerRole) -> octet.Quantizer | None:
    return octet.MXFP8Quantizer("e4m3") if role.tensor_type == "weight" else None


def train(layer: octet.Linear, x: torch.Tensor, by: recipe.Recipe) -> torch.Tensor:
    with octet.autocast(recipe=by):
        y: torch.Tensor = layer(x)
    y.sum().backward()
    return y


def main() -> None:
    layer = build(64)
    x = torch.randn(8, 64, dtype=torch.bfloat16)
    kinds: list[recipe.Recipe] = [
        recipe.MXFP8BlockScaling(),
        recipe.DelayedScaling(amax_history_len=16),
        recipe.CustomRecipe(rounded),
    ]
    for by in kinds:
        train(layer, x, by)
    text: str = octet.explain(64, 128, 8, kinds[0], device="cpu")
    saved: int = octet.measure(layer, 8, kinds[0]).saved
    native: dict[str, str] = octet.support("cpu")
    model = octet.convert(torch.nn.Sequential(torch.nn.Linear(64, 64)))
    flat: dict[str, torch.Tensor] = octet.flatten_state_dict(model.state_dict())
    quantized: octet.QuantizedTensor = octet.MXFP8Quantizer("e4m3")(x)
    print(text, saved, native["mxfp8"], sorted(flat), quantized.dequantize().shape)


if __name__ == "__main__":
    main()
