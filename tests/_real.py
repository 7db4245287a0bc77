"""Models of transformers, peft and diffusers as users train them, and three steps of each."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
GATED = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 1, "vocab_size": 128}
Batch = dict[str, Tensor]


def _tokens(rows: int) -> Batch:
    tokens = torch.randint(3, 120, (rows, 12))
    return {"input_ids": tokens, "labels": tokens}


def _gpt2(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=128, n_positions=32)
    return transformers.GPT2LMHeadModel(config), _tokens(rows)


def _llama(rows: int) -> tuple[nn.Module, Batch]:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**GATED)), _tokens(rows)


def _mistral(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.MistralConfig(**GATED, sliding_window=8)
    return transformers.MistralForCausalLM(config), _tokens(rows)


def _mixtral(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.MixtralConfig(**GATED, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config), _tokens(rows)


def _bert(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.BertConfig(**SMALL, intermediate_size=64, vocab_size=128)
    return transformers.BertForMaskedLM(config), _tokens(rows)


def _t5(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=128,
        decoder_start_token_id=0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), _tokens(rows)


def _vit(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.ViTConfig(**SMALL, intermediate_size=64, image_size=16, patch_size=8)
    batch = {"pixel_values": torch.randn(rows, 3, 16, 16), "labels": torch.randint(2, (rows,))}
    return transformers.ViTForImageClassification(config), batch


def _whisper(rows: int) -> tuple[nn.Module, Batch]:
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=128,
        max_source_positions=16, num_mel_bins=8, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    batch = {"input_features": torch.randn(rows, 8, 32), "labels": torch.randint(3, 120, (rows, 6))}
    return transformers.WhisperForConditionalGeneration(config), batch


def _llama_with_adapters(rows: int) -> tuple[nn.Module, Batch]:
    peft = pytest.importorskip("peft")
    model, batch = _llama(rows)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules="all-linear")), batch


class _Denoiser(nn.Module):
    """The noise in an image, told the time and a text: a U-Net with self and cross attention."""

    def __init__(self) -> None:
        super().__init__()
        diffusers = pytest.importorskip("diffusers")
        self.unet = diffusers.UNet2DConditionModel(
            sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=4,
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=12,
        )  # fmt: skip

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any) -> None:
        self.unet.enable_gradient_checkpointing()

    def forward(self, noisy: Tensor, time: Tensor, text: Tensor, noise: Tensor) -> Any:
        found = self.unet(noisy, time, text).sample
        return SimpleNamespace(loss=nn.functional.mse_loss(found, noise))


def _diffusion(rows: int) -> tuple[nn.Module, Batch]:
    noise = torch.randn(rows, 4, 8, 8)
    noisy, time = torch.randn(rows, 4, 8, 8) + noise, torch.randint(1000, (rows,))
    batch = {"noisy": noisy, "time": time, "text": torch.randn(rows, 5, 12), "noise": noise}
    return _Denoiser(), batch


MODELS: dict[str, Callable[[int], tuple[nn.Module, Batch]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "bert": _bert,
    "t5": _t5,
    "vit": _vit,
    "whisper": _whisper,
    "lora": _llama_with_adapters,
    "diffusion": _diffusion,
}


def _without_dropout(model: nn.Module) -> None:
    """Dropout off, so that two systems draw the same numbers: none."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or name == "p"):
                setattr(module, name, 0.0)


def train(
    name: str, compiler: Callable[[Any], Any], *, rows: int = 2, checkpointed: bool = False
) -> list[float]:
    """The losses of three optimizer steps on a batch of so many rows."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, batch = MODELS[name](rows)
    model.train()
    _without_dropout(model)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        config = getattr(model, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    call = compiler(model)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
