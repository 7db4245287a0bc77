"""What is trained, as a user describes it: the model, its inputs, and what of it is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gcpass._errors import OptionError, did_you_mean

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021).

    Attributes:
        r: their rank.
        alpha: scale of what they add, times ``r``.
        dropout: of their inputs, in [0, 1).
        targets: last names of the linear layers that get one; empty for all but the output layer.
    """

    r: int = 16
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"LoRA r={self.r}"


@dataclass(frozen=True)
class Workload:
    """One training step.

    Attributes:
        target: ``hf:NAME``, ``zoo:NAME[:SIZE]`` or ``MODULE:CALLABLE``.
        config: changes of the configuration: ``key=value``, or the path of a ``config.json``.
        batch: sequences or images in the micro-batch; None for the target's own.
        seq: tokens in a sequence; None for the model's own.
        dtype: of weights and activations: ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        lora: adapters that are trained instead of the weights, or None.
        qlora: whether the weights under the adapters are held in 4 bits.
        sequence_parallel: over how many devices each sequence is spread.
    """

    target: str
    config: tuple[str, ...] = ()
    batch: int | None = None
    seq: int | None = None
    dtype: str = "bfloat16"
    lora: Lora | None = None
    qlora: bool = False
    sequence_parallel: int = 1

    @property
    def is_built(self) -> bool:
        """Whether gcpass builds the model, so that batch, sequence and the rest can be chosen."""
        return self.target.startswith("hf:")

    def at(self, batch: int, seq: int | None) -> Workload:
        """The same training with another micro-batch and sequence length."""
        return replace(self, batch=batch, seq=seq)


def parse_lora(text: str | None) -> Lora | None:
    """Read ``r=16,alpha=32,dropout=0.1,targets=q_proj+v_proj``.

    Raises:
        OptionError: a key is not known, or its value cannot be used.
    """
    if text is None:
        return None
    values: dict[str, object] = {}
    for part in text.split(","):
        key, equals, value = (p.strip() for p in part.partition("="))
        if not equals or key not in ("r", "alpha", "dropout", "targets"):
            known = did_you_mean(key, ("r", "alpha", "dropout", "targets"))
            raise OptionError(f"--lora {part!r} is not key=value with a known key; {known}")
        if key == "targets":
            values[key] = tuple(t for t in value.split("+") if t)
            continue
        try:
            number = float(value)
        except ValueError:
            raise OptionError(f"--lora {key}={value}: {value!r} is not a number") from None
        if key == "r" and (number < 1 or number != int(number)):
            raise OptionError(f"--lora r={value} must be a whole number of at least 1")
        if key == "alpha" and not number > 0:
            raise OptionError(f"--lora alpha={value} must be more than 0")
        if key == "dropout" and not 0 <= number < 1:
            raise OptionError(f"--lora dropout={value} must be at least 0 and less than 1")
        values[key] = int(number) if key == "r" else number
    return Lora(**values)  # type: ignore[arg-type]


def parse_dtype(text: str) -> str:
    """Read ``bf16``, ``fp16``, ``fp32``, or torch's own names of them.

    Raises:
        OptionError: it is none of these.
    """
    name = DTYPES.get(text, text)
    if name not in DTYPES.values():
        raise OptionError(f"--dtype {text} is not known; {did_you_mean(text, DTYPES)}")
    return name
