"""Hugging Face transformers on Octet: train, save, load, generate; then LoRA on FP8 weights.

    pip install . 'transformers>=5' accelerate peft
    python examples/python/hf_trainer.py

A tiny Llama learns to count, and then, by adapters alone, to count in twos. Nothing is
downloaded, and it takes seconds on a CPU.
"""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import octet
import peft
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import torch

RECIPE = octet.recipe.MXFP8BlockScaling()
WHERE = "model.layers.*"  # the output layer and the embedding stay as they are
NUMBERS, LENGTH = 32, 16


def counting(step: int, rows: int = 1024) -> list[dict[str, torch.Tensor]]:
    """Rows that count from a random number, modulo NUMBERS."""
    torch.manual_seed(step)
    starts = torch.randint(0, NUMBERS, (rows, 1))
    data = (starts + step * torch.arange(LENGTH)) % NUMBERS
    return [{"input_ids": row, "labels": row} for row in data]


def new_model() -> LlamaForCausalLM:
    """A Llama from a config alone."""
    transformers.set_seed(1)
    config = LlamaConfig(
        vocab_size=NUMBERS,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * LENGTH,
    )
    return LlamaForCausalLM(config)


def train(model: torch.nn.Module, step: int, rate: float, folder: Path) -> list[float]:
    """Trains by transformers' own Trainer inside one autocast; the losses it logged."""
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        max_steps=30,
        per_device_train_batch_size=32,
        learning_rate=rate,
        lr_scheduler_type="linear",
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=not sys.stderr.isatty(),
        use_cpu=not torch.cuda.is_available(),
        seed=step,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=counting(step))
    trainer.remove_callback(transformers.PrinterCallback)
    with octet.autocast(recipe=RECIPE):
        trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def count_on(model: torch.nn.Module, begin: list[int], more: int = 8) -> list[int]:
    """What the model generates after a beginning; weights are cast once for all of it."""
    ids = torch.tensor([begin], device=model.device)
    with octet.autocast(recipe=RECIPE), octet.constant_weights():
        made = model.eval().generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=more,
            do_sample=False,
            pad_token_id=0,
        )
    return made[0, len(begin) :].tolist()


def pretrain(folder: Path) -> list[float]:
    """Trains all weights and saves them, under the names that transformers gives them."""
    model = octet.convert(new_model(), WHERE)
    losses = train(model, 1, 1e-2, folder)
    model.save_pretrained(folder / "model")
    return losses


def load(folder: Path, weights: octet.recipe.Recipe | None = None) -> LlamaForCausalLM:
    """A saved model with Octet's layers; with a recipe, its weights are stored quantized."""
    plain = LlamaForCausalLM.from_pretrained(folder / "model")
    return octet.convert(plain, WHERE, weights=weights)


def fine_tune(folder: Path) -> tuple[list[float], torch.nn.Module]:
    """Trains LoRA adapters around quantized base weights, and saves the adapters."""
    transformers.set_seed(2)
    config = peft.LoraConfig(
        r=8, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(load(folder, weights=RECIPE), config)
    losses = train(model, 2, 2e-2, folder)
    model.save_pretrained(folder / "adapters")
    return losses, model


def stored_bytes(model: torch.nn.Module) -> int:
    """The bytes of a model's linear layers, without adapters."""
    saved = octet.flatten_state_dict(model.state_dict())
    return sum(t.nbytes for name, t in saved.items() if "_proj" in name and "lora" not in name)


def main() -> None:
    """All of it, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        losses = pretrain(folder)
        print(f"training: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        model = load(folder)
        print(f"loaded, after 3 4 5 comes {count_on(model, [3, 4, 5])}")

        losses, tuned = fine_tune(folder)
        print(f"base weights: {stored_bytes(model)} bytes, quantized {stored_bytes(tuned)}")
        print(f"fine-tuning: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        again = peft.PeftModel.from_pretrained(load(folder, RECIPE), folder / "adapters")
        print(f"loaded, after 2 4 6 comes {count_on(again, [2, 4, 6])}")
        assert count_on(tuned, [2, 4, 6]) == count_on(again, [2, 4, 6])


if __name__ == "__main__":
    main()
