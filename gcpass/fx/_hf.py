"""Transformers' models from their configurations: fake tensors, random weights, no download.

A model is an architecture (``llama``) or a preset of `gcpass._presets`, and changes of its
configuration. The loss is transformers' own, on labels, without a key-value cache.

Attention is `scaled_dot_product_attention` without a mask: sequences are taken as full and not
padded, as in pretraining, so that the fused kernels apply. (Where a mask may be needed,
transformers builds one of length x length while it is traced, whatever the inputs are.) Dropout
inside attention is left out: CUDA's fused kernels draw it again in the backward and keep a seed,
whereas on the CPU, whose tensors are traced, it means unfused attention and its weights kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gcpass._errors import OptionError, did_you_mean
from gcpass._presets import PRESETS

_ATTENTION = "gcpass_sdpa"
_AUTO = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "image": "AutoModelForImageClassification",
    "speech": "AutoModelForSpeechSeq2Seq",
}
_INPUTS = {"image": "pixel_values", "speech": "input_features"}
_ATTENTION_DROPOUTS = ("attn_pdrop", "attention_probs_dropout_prob", "attention_dropout")
_DEPTHS = ("num_hidden_layers", "n_layer", "num_layers")  # of the one stack
_STACKS = (*_DEPTHS, "num_decoder_layers", "encoder_layers", "decoder_layers")


class _TrainingLoss(nn.Module):
    """A transformers model with its own loss."""

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        if kind == "causal":  # for some models it is guessed, with a warning that breaks the graph
            model.loss_type = "ForCausalLM"  # type: ignore[assignment]
        self.model = model
        self._inputs = _INPUTS.get(kind, "input_ids")
        self._has_cache = kind in ("causal", "seq2seq", "speech")

    def forward(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Inputs and labels as `Architecture.inputs` makes them."""
        options = {"use_cache": False} if self._has_cache else {}
        return self.model(**{self._inputs: inputs}, labels=labels, **options).loss


@dataclass(frozen=True)
class Architecture:
    """A transformers model that can be built at any depth.

    Attributes:
        name: as the user wrote it.
        kind: what it is trained for: ``"causal"``, ``"masked"``, ``"seq2seq"``, ``"image"`` or
            ``"speech"``.
        config: the checked configuration.
    """

    name: str
    kind: str
    config: Any

    @property
    def depth(self) -> int | None:
        """How many layers its one stack has; None if there are several stacks, or none known."""
        if self.kind in ("seq2seq", "speech"):
            return None
        return next(
            (int(getattr(self.config, d)) for d in _DEPTHS if hasattr(self.config, d)), None
        )

    @property
    def longest(self) -> int | None:
        """The longest sequence that its learned positions allow; None if there is no such bound."""
        if self.kind == "speech":
            return int(self.config.max_target_positions)
        learned = self.config.model_type in ("gpt2", "bert", "roberta", "opt")
        return int(self.config.max_position_embeddings) if learned else None

    def build(self, depth: int | None = None) -> nn.Module:
        """The model with its loss, of the configured depth or another; under a fake mode.

        Args:
            depth: number of layers; None for the configured one.
        """
        import transformers
        from transformers.initialization import no_init_weights

        config = type(self.config).from_dict(self.config.to_dict())
        if depth is not None:
            setattr(config, next(d for d in _DEPTHS if hasattr(config, d)), depth)
            if getattr(config, "layer_types", None):
                config.layer_types = config.layer_types[:depth]
        _register_attention()
        with no_init_weights():  # nothing is computed with them
            model = getattr(transformers, _AUTO[self.kind]).from_config(
                config, attn_implementation=_ATTENTION
            )
        model.tie_weights()
        return _TrainingLoss(model, self.kind).train()

    def inputs(self, batch: int, seq: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and labels: ids are [batch, seq]; images, and the spectra [batch, mel bins,
        frames] of speech, of the configuration's size."""
        if self.kind == "image":
            size = self.config.image_size
            height, width = (size, size) if isinstance(size, int) else size
            images = torch.zeros(batch, self.config.num_channels, height, width, dtype=dtype)
            return images, torch.zeros(batch, dtype=torch.long)
        ids = torch.zeros(batch, seq, dtype=torch.long)
        if self.kind == "speech":  # the encoder's first convolutions halve the frames
            bins, frames = self.config.num_mel_bins, 2 * self.config.max_source_positions
            return torch.zeros(batch, bins, frames, dtype=dtype), ids
        return ids, ids.clone()


def _register_attention() -> None:
    """An attention function for which transformers builds no mask: it knows only its own names."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(_ATTENTION, sdpa_attention_forward)


def find_architecture(name: str, changes: Sequence[str] = ()) -> Architecture:
    """The architecture or preset called ``name``, its configuration changed.

    Args:
        name: of a preset, or of a model type that transformers has.
        changes: each ``key=value``, or the path of a ``config.json``.

    Raises:
        OptionError: transformers is not installed, or does not know the name, a key or a value.
    """
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        raise OptionError(f"hf:{name} needs transformers: pip install 'gcpass[models]'") from None
    values: dict[str, Any] = {}
    preset = PRESETS.get(name)
    model_type = preset.model_type if preset else name
    values.update(preset.values if preset else {})
    for change in changes:
        if "=" not in change:
            values.update(_read_file(change))
            model_type = values.pop("model_type", model_type)
    if model_type not in CONFIG_MAPPING:
        raise OptionError(f"hf:{name} is not known; {_suggest(name, [*PRESETS, *CONFIG_MAPPING])}")
    defaults = CONFIG_MAPPING[model_type]()
    for change in changes:
        if "=" in change:
            key, _, text = change.partition("=")
            values[key] = _checked(name, key.strip(), text.strip(), defaults)
    architectures = values.pop("architectures", None)
    if architectures is not None and not isinstance(architectures, (list, tuple)):
        raise OptionError(f"--config architectures={architectures} must be a list of names")
    kind = _kind(name, model_type, architectures)
    for dropout in _ATTENTION_DROPOUTS:
        if hasattr(defaults, dropout):
            values[dropout] = 0.0
    if kind == "seq2seq":  # T5 has none by itself
        values.setdefault("decoder_start_token_id", 0)
    if model_type == "mixtral":  # the one implementation that can be traced whole
        values.setdefault("experts_implementation", "grouped_mm")
    try:
        config = type(defaults)(**{"use_cache": False, **values})
    except Exception as error:
        raise OptionError(f"hf:{name}: --config is not possible: {error}") from error
    for key in _STACKS:
        if values.get(key) == 0:
            raise OptionError(f"hf:{name}: --config {key}=0 must be at least 1")
    return Architecture(name, kind, config)


def _suggest(name: str, known: Sequence[str]) -> str:
    near = did_you_mean(name, known)
    return near if near.startswith("did") else f"presets: {', '.join(PRESETS)}; or a model type"


def _read_file(path: str) -> dict[str, Any]:
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"--config {path} is neither key=value nor a file that can be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise OptionError(f"--config {path} is not JSON: {error}") from error
    if not isinstance(read, dict):
        raise OptionError(f"--config {path} holds no JSON object")
    unwanted = ("transformers_version", "torch_dtype", "dtype", "_name_or_path", "use_cache")
    return {k: v for k, v in read.items() if k not in unwanted}


def _checked(name: str, key: str, text: str, defaults: Any) -> Any:
    """The value of a ``key=value``, of the kind that the configuration has there."""
    if not hasattr(defaults, key) or key.startswith("_") or callable(getattr(defaults, key)):
        keys = [k for k in defaults.to_dict() if not k.startswith("_")]
        near = did_you_mean(key, keys)
        raise OptionError(
            f"--config {key}={text}: {name} has no {key!r}"
            + (f"; {near}" if near.startswith("did") else "")
        )
    before = getattr(defaults, key)
    try:
        value = json.loads(text)
    except ValueError:
        value = {"True": True, "False": False, "None": None}.get(text, text)
    number = isinstance(before, (int, float)) and not isinstance(before, bool)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and not is_number:
        raise OptionError(f"--config {key}={text}: {text!r} is not a number")
    if isinstance(before, int) and number and (value != int(value) or value < 0):
        raise OptionError(f"--config {key}={text} must be a whole number of at least 0")
    if isinstance(before, bool) and not isinstance(value, bool):
        raise OptionError(f"--config {key}={text} must be true or false")
    return value


def _kind(name: str, model_type: str, architectures: Sequence[str] | None) -> str:
    """What the model is trained for: the first kind that transformers has a head of it for."""
    from transformers.models.auto import modeling_auto as auto

    mappings: dict[str, Any] = {
        "image": auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
        "speech": {"whisper": auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES.get("whisper", "")},
        "seq2seq": auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }
    for kind, mapping in mappings.items():
        if model_type in mapping and (not architectures or mapping[model_type] in architectures):
            return kind
    for kind, mapping in mappings.items():
        if model_type in mapping:
            return kind
    raise OptionError(f"hf:{name}: gcpass knows no training loss for {model_type!r}")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Floating-point tensors made inside get ``dtype``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
