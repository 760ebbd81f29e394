"""Lightning's TransformerEngine plug-in, running on Octet."""

from collections.abc import Iterator
from typing import Any

import octet
import octet.compat.transformer_engine as compat
import pytest

import torch

lightning = pytest.importorskip("lightning")

from lightning.fabric.plugins import TransformerEnginePrecision as FabricPrecision  # noqa: E402
from lightning.pytorch.plugins import TransformerEnginePrecision  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, of torch and of the CPU

RECIPE = {"fp8_format": "HYBRID", "amax_history_len": 4}
SAME = octet.recipe.DelayedScaling(amax_history_len=4)


@pytest.fixture
def te() -> Iterator[None]:
    with compat.install():
        yield


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 96),
        torch.nn.LayerNorm(96),
        torch.nn.GELU(),
        torch.nn.Linear(96, 32, bias=False),
    )


def batches() -> torch.utils.data.DataLoader:
    torch.manual_seed(2)
    return torch.utils.data.DataLoader(torch.randn(32, 64), batch_size=8)


class Learner(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        loss = self.network(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:  # noqa: ANN401
        return torch.optim.SGD(self.parameters(), lr=0.5)


def is_octet(module: torch.nn.Module) -> bool:
    return type(module).__module__ == "octet.compat.transformer_engine.pytorch"


def by_hand() -> list[float]:
    """The losses of the same steps without Lightning: bf16 weights, one recipe."""
    made = octet.convert(network())
    norm = octet.LayerNorm(96, device="cpu")
    norm.load_state_dict(made[1].state_dict())
    made[1] = norm
    made.to(torch.bfloat16)
    optimizer, losses = torch.optim.SGD(made.parameters(), lr=0.5), []
    for x in batches():
        with octet.autocast(recipe=SAME):
            loss = made(x.bfloat16()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_lightning_te__the_trainer_trains_as_octet_does(te: None) -> None:
    plugin = TransformerEnginePrecision(weights_dtype=torch.bfloat16, recipe=RECIPE)
    assert plugin.recipe == SAME
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[plugin],
    )
    learner = Learner()
    trainer.fit(learner, batches())
    found = learner.network
    assert [is_octet(found[n]) for n in (0, 1, 3)] == [True] * 3
    assert found[0].weight.dtype == torch.bfloat16
    assert found[0].fp8_amax_history.any()
    assert learner.losses == by_hand()


def test_lightning_te__modules_made_inside_fabric_stay(te: None) -> None:
    plugin = FabricPrecision(weights_dtype=torch.bfloat16, recipe=SAME, replace_layers=True)
    fabric = lightning.Fabric(accelerator="cpu", plugins=[plugin])
    with fabric.init_module():
        made = network()
    assert [is_octet(made[n]) for n in (0, 1, 3)] == [True] * 3
    first = made[0]
    wrapped, optimizer = fabric.setup(made, torch.optim.SGD(made.parameters(), lr=0.5))
    assert wrapped.module[0] is first  # and not converted again
    losses = []
    for x in batches():
        loss = wrapped(x).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_lightning_te__a_layer_with_odd_sizes_is_lightnings_to_leave(te: None) -> None:
    made = torch.nn.Sequential(torch.nn.Linear(64, 90), torch.nn.Linear(90, 32))
    plugin = FabricPrecision(weights_dtype=torch.bfloat16)
    made = plugin.convert_module(made)
    assert [type(layer) for layer in made] == [torch.nn.Linear] * 2
