"""Fine-tune adapters of a small Llama with Hugging Face's Trainer under a memory budget.

    pip install 'gcpass[models]' peft accelerate && python examples/trainer.py

Nothing is downloaded: the weights are random, and so is the text.
"""

import tempfile

import peft
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

VOCABULARY, LENGTH = 256, 64


class RandomText(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(
            VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index)
        )
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    set_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=VOCABULARY,
    )
    model = peft.get_peft_model(
        LlamaForCausalLM(config), peft.LoraConfig(r=8, target_modules="all-linear")
    )
    # In place, and before the Trainer: its own `torch_compile_backend` knows a fixed list of names.
    # With a C++ compiler, leave codegen out: Inductor then runs the plan.
    model.compile(
        backend="gcpass", options={"memory_budget": 0.7, "codegen": "eager", "report": True}
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=4,
            per_device_train_batch_size=4,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
        )
        Trainer(model, arguments, train_dataset=RandomText()).train()


if __name__ == "__main__":
    main()
