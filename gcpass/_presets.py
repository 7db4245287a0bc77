"""Public shapes of known models, by name, as their published ``config.json`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A model type of transformers and what its configuration sets.

    Attributes:
        model_type: transformers' name of the architecture.
        source: where the values are from.
        values: of the configuration; all others are transformers' defaults.
        seq: sequence length that is planned for if none is given; 0 if there is none.
    """

    model_type: str
    source: str
    values: Mapping[str, Any]
    seq: int


def _llama(hidden: int, inner: int, layers: int, heads: int, kv: int, vocab: int, **more: Any):  # type: ignore[no-untyped-def]
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "tie_word_embeddings": False,
        **more,
    }


_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "llama-2-7b": Preset(
            "llama",
            "meta-llama/Llama-2-7b-hf",
            _llama(4096, 11008, 32, 32, 32, 32000, max_position_embeddings=4096),
            4096,
        ),
        "llama-3-8b": Preset(
            "llama",
            "meta-llama/Meta-Llama-3-8B",
            _llama(4096, 14336, 32, 32, 8, 128256, max_position_embeddings=8192),
            8192,
        ),
        "llama-3-70b": Preset(
            "llama",
            "meta-llama/Meta-Llama-3-70B",
            _llama(8192, 28672, 80, 64, 8, 128256, max_position_embeddings=8192),
            8192,
        ),
        "mistral-7b": Preset(
            "mistral",
            "mistralai/Mistral-7B-v0.1",
            _llama(
                4096,
                14336,
                32,
                32,
                8,
                32000,
                max_position_embeddings=32768,
                sliding_window=4096,
            ),
            4096,
        ),
        "mixtral-8x7b": Preset(
            "mixtral",
            "mistralai/Mixtral-8x7B-v0.1",
            _llama(
                4096,
                14336,
                32,
                32,
                8,
                32000,
                max_position_embeddings=32768,
                num_local_experts=8,
                num_experts_per_tok=2,
                sliding_window=None,
            ),
            4096,
        ),
        "gpt2": Preset(
            "gpt2",
            "openai-community/gpt2",
            {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
            1024,
        ),
        "bert-large": Preset(
            "bert",
            "google-bert/bert-large-uncased",
            {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "max_position_embeddings": 512,
                "vocab_size": 30522,
                "architectures": ["BertForMaskedLM"],
            },
            512,
        ),
        "t5-large": Preset(
            "t5",
            "google-t5/t5-large",
            {
                "d_model": 1024,
                "d_kv": 64,
                "d_ff": 4096,
                "num_layers": 24,
                "num_decoder_layers": 24,
                "num_heads": 16,
                "vocab_size": 32128,
            },
            512,
        ),
        "vit-l": Preset(
            "vit",
            "google/vit-large-patch16-224",
            {
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "image_size": 224,
                "patch_size": 16,
                "num_labels": 1000,
            },
            0,
        ),
        "whisper-tiny": Preset(
            "whisper",
            "openai/whisper-tiny",
            {
                "d_model": 384,
                "encoder_layers": 4,
                "decoder_layers": 4,
                "encoder_attention_heads": 6,
                "decoder_attention_heads": 6,
                "encoder_ffn_dim": 1536,
                "decoder_ffn_dim": 1536,
                "vocab_size": 51865,
            },
            448,
        ),
        "tiny-llama": Preset(
            "llama",
            "for tests",
            {**_TINY, "intermediate_size": 64, "num_key_value_heads": 2},
            16,
        ),
        "tiny-mixtral": Preset(
            "mixtral",
            "for tests",
            {
                **_TINY,
                "intermediate_size": 32,
                "num_key_value_heads": 2,
                "num_local_experts": 4,
            },
            16,
        ),
        "tiny-gpt2": Preset(
            "gpt2",
            "for tests",
            {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 128},
            16,
        ),
        "tiny-bert": Preset(
            "bert",
            "for tests",
            {**_TINY, "intermediate_size": 64, "architectures": ["BertForMaskedLM"]},
            16,
        ),
        "tiny-t5": Preset(
            "t5",
            "for tests",
            {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
            | {"vocab_size": 128},
            16,
        ),
        "tiny-whisper": Preset(
            "whisper",
            "for tests",
            {
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "max_source_positions": 32,
                "max_target_positions": 16,
                "vocab_size": 128,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 1,
                "decoder_start_token_id": 1,
            },
            16,
        ),
        "tiny-vit": Preset(
            "vit",
            "for tests",
            {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 16,
                "patch_size": 4,
                "num_labels": 10,
            },
            0,
        ),
    }
)
