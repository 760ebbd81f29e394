"""The example for Hugging Face transformers: what it saves, loads, generates and leaves."""

import importlib.util
import os
from pathlib import Path
from types import ModuleType

os.environ["HF_HUB_OFFLINE"] = "1"

import octet
import pytest
from safetensors import safe_open

import torch

pytest.importorskip("transformers")
pytest.importorskip("peft")

EXAMPLE = Path(__file__).parents[2] / "examples" / "python" / "hf_trainer.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hf_trainer", EXAMPLE)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def folder(example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a model is saved that has learned to count."""
    made = tmp_path_factory.mktemp("hf")
    losses = example.pretrain(made)
    assert losses[-1] < 0.2 * losses[0]
    return made


def test_hf_trainer__saves_what_transformers_saves(example: ModuleType, folder: Path) -> None:
    """The names of a plain Llama: whoever has no Octet loads it, too."""
    with safe_open(folder / "model" / "model.safetensors", "pt") as file:
        saved = set(file.keys())
    assert saved == set(example.new_model().state_dict())


def test_hf_trainer__a_loaded_model_goes_on_counting(example: ModuleType, folder: Path) -> None:
    model = example.load(folder)
    layers = [m for m in model.modules() if isinstance(m, octet.Linear)]
    assert len(layers) == 7
    assert example.count_on(model, [3, 4, 5]) == list(range(6, 14))


def test_hf_trainer__adapters_learn_and_the_quantized_base_stays(
    example: ModuleType, folder: Path
) -> None:
    base = example.load(folder, weights=example.RECIPE)
    losses, tuned = example.fine_tune(folder)
    assert losses[-1] < 0.2 * losses[0]
    before = octet.flatten_state_dict(base.state_dict())
    after = octet.flatten_state_dict(tuned.get_base_model().state_dict())
    data = [name for name in before if name.endswith("_data")]
    assert len(data) == 14  # rowwise and columnwise bytes of seven weights
    for name in data:
        inner = name.replace(".weight.", ".base_layer.weight.")
        assert torch.equal(before[name], after[inner]), name
    again = example.peft.PeftModel.from_pretrained(
        example.load(folder, example.RECIPE), folder / "adapters"
    )
    assert example.count_on(again, [2, 4, 6]) == list(range(8, 24, 2))
    assert example.count_on(tuned, [2, 4, 6]) == example.count_on(again, [2, 4, 6])
