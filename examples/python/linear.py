"""A layer in MXFP8, compiled whole: one graph node forward and one backward."""

import octet

import torch

layer = octet.Linear(64, 32, params_dtype=torch.bfloat16, device="cpu")


@torch.compile(fullgraph=True)
def forward(x: torch.Tensor) -> torch.Tensor:
    with octet.autocast(recipe=octet.recipe.MXFP8BlockScaling()):
        return layer(x)


y = forward(torch.randn(8, 64, dtype=torch.bfloat16))
y.sum().backward()
print(y.shape, layer.weight.grad.norm())
