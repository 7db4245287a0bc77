"""The model zoo: seeded models of the families that the planner is tested and measured on.

`build(name, size)` returns `(fn, args)`: `fn` is an `nn.Module` in train mode and `fn(*args)` a
scalar loss. Weights and inputs are random; nothing is downloaded. The sizes are

* `tiny`: for tests, a few milliseconds,
* `cpu`: about a second for forward and backward on two cores, activations outweigh parameters,
* `paper`: the published shapes. Build these under a `FakeTensorMode`, where they use no memory.

Nothing names a device: tensors are made on the default one (see `torch.device` as a context).

The Hugging Face models use `sdpa` attention without an attention mask (a given mask is checked
for its values, which cannot be traced) and no key-value cache. On the CPU an `sdpa` with dropout
(`gpt2`, `t5`) runs unfused and keeps its attention weights; without (`llama`) it runs fused.
`mixtral` uses transformers' `grouped_mm` experts, the one implementation that can be traced whole
and does not copy expert weights for every token: bf16 traces to `aten._grouped_mm`, fp32 to the
custom operator `transformers::grouped_mm_fallback`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._networks import MLP, ResNet, UNet, ViT

SEED = 0

Built = tuple[nn.Module, tuple[Tensor, ...]]


class CausalLM(nn.Module):
    """A Hugging Face decoder with its next-token loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        model.loss_type = "ForCausalLM"  # for GPT-2 it is guessed, and the warning breaks the graph
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, seq]."""
        return self.model(input_ids=ids, labels=ids, use_cache=False).loss


class Seq2SeqLM(nn.Module):
    """A Hugging Face encoder-decoder with its loss on the labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """ids: [batch, seq], labels: [batch, seq]."""
        return self.model(input_ids=ids, labels=labels, use_cache=False).loss


def _mlp(layers: int, width: int, batch: int) -> Built:
    return MLP(layers, width), (torch.randn(batch, width),)


def _resnet(blocks: int, channels: int, image: int, batch: int, classes: int) -> Built:
    fn = ResNet(blocks, channels, classes)
    return fn, (torch.randn(batch, 3, image, image), torch.randint(classes, (batch,)))


def _unet(base: int, levels: int, image: int, batch: int) -> Built:
    shape = (batch, 3, image, image)
    return UNet(base, levels), (torch.randn(shape), torch.randn(shape))


def _vit(
    layers: int,
    width: int,
    heads: int,
    image: int,
    patch: int,
    batch: int,
    classes: int,
    dropout: float,
) -> Built:
    fn = ViT(layers, width, heads, image, patch, classes, dropout)
    return fn, (torch.randn(batch, 3, image, image), torch.randint(classes, (batch,)))


def _gpt2(layers: int, hidden: int, heads: int, vocab: int, batch: int, seq: int) -> Built:
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(
        vocab_size=vocab,
        n_positions=seq,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        use_cache=False,
        attn_implementation="sdpa",
        bos_token_id=0,
        eos_token_id=0,
    )
    fn = CausalLM(AutoModelForCausalLM.from_config(config))
    return fn, (torch.randint(vocab, (batch, seq)),)


def _llama(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
    gqa: bool,
) -> Built:
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4 if gqa else heads,
        max_position_embeddings=seq,
        use_cache=False,
        attn_implementation="sdpa",
    )
    fn = CausalLM(AutoModelForCausalLM.from_config(config))
    return fn, (torch.randint(vocab, (batch, seq)),)


def llama(layers: int) -> Built:
    """A narrow Llama of any depth whose peak is made of activations: for timing the planner."""
    fn, args = _llama(layers, 512, 1376, 4, 32000, 4, 2048, False)
    return fn.bfloat16(), args


def _t5(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    vocab: int,
    batch: int,
    seq: int,
) -> Built:
    from transformers import AutoModelForSeq2SeqLM, T5Config

    config = T5Config(
        vocab_size=vocab,
        d_model=hidden,
        d_kv=hidden // heads,
        d_ff=intermediate,
        num_layers=layers,
        num_heads=heads,
        dropout_rate=0.1,
        use_cache=False,
        decoder_start_token_id=0,
        attn_implementation="sdpa",
    )
    fn = Seq2SeqLM(AutoModelForSeq2SeqLM.from_config(config))
    return fn, (torch.randint(vocab, (batch, seq)), torch.randint(vocab, (batch, seq)))


def _mixtral(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    experts: int,
    top_k: int,
    vocab: int,
    batch: int,
    seq: int,
) -> Built:
    from transformers import AutoModelForCausalLM, MixtralConfig

    config = MixtralConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_local_experts=experts,
        num_experts_per_tok=top_k,
        max_position_embeddings=seq,
        use_cache=False,
        attn_implementation="sdpa",
        experts_implementation="grouped_mm",
    )
    fn = CausalLM(AutoModelForCausalLM.from_config(config))
    return fn, (torch.randint(vocab, (batch, seq)),)


@dataclass(frozen=True)
class _Family:
    """A builder, the names of its options, and the options' values for each size.

    Every option is a keyword argument of the builder, but `dtype` is the one to build in.
    """

    builder: Callable[..., Built]
    options: str
    tiny: tuple[Any, ...]
    cpu: tuple[Any, ...]
    paper: tuple[Any, ...]

    def values(self, size: str) -> dict[str, Any]:
        """The options of one size by name."""
        return dict(zip(self.options.split(), getattr(self, size), strict=True))


_F32, _BF16 = torch.float32, torch.bfloat16

_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "mlp": _Family(
            _mlp,
            "layers width batch dtype",
            tiny=(2, 64, 32, _F32),
            cpu=(8, 512, 8192, _F32),
            paper=(32, 4096, 4096, _BF16),
        ),
        "resnet": _Family(
            _resnet,
            "blocks channels image batch classes dtype",
            tiny=(2, 8, 32, 2, 10, _F32),
            cpu=(8, 64, 224, 4, 1000, _F32),
            paper=(32, 64, 224, 8, 1000, _F32),
        ),
        "unet": _Family(
            _unet,
            "base levels image batch dtype",
            tiny=(8, 3, 16, 2, _F32),
            cpu=(32, 3, 128, 8, _F32),
            paper=(64, 4, 256, 8, _BF16),
        ),
        "vit": _Family(
            _vit,
            "layers width heads image patch batch classes dropout dtype",
            tiny=(2, 32, 4, 16, 4, 2, 10, 0.1, _F32),
            cpu=(6, 192, 3, 224, 16, 16, 100, 0.1, _F32),
            paper=(24, 1024, 16, 224, 16, 64, 1000, 0.1, _BF16),
        ),
        "gpt2": _Family(
            _gpt2,
            "layers hidden heads vocab batch seq dtype",
            tiny=(2, 32, 4, 128, 2, 16, _F32),
            cpu=(6, 256, 4, 1024, 8, 256, _F32),
            paper=(24, 1024, 16, 50257, 8, 1024, _BF16),
        ),
        "llama": _Family(
            _llama,
            "layers hidden intermediate heads vocab batch seq dtype gqa",
            tiny=(2, 32, 64, 4, 128, 2, 16, _F32, False),
            cpu=(6, 256, 688, 4, 1024, 4, 512, _F32, False),
            paper=(16, 4096, 11008, 32, 32000, 2, 2048, _BF16, False),
        ),
        "t5": _Family(
            _t5,
            "layers hidden intermediate heads vocab batch seq dtype",
            tiny=(2, 32, 64, 4, 128, 2, 16, _F32),
            cpu=(3, 256, 1024, 4, 1024, 8, 256, _F32),
            paper=(24, 1024, 4096, 16, 32128, 8, 512, _BF16),
        ),
        "mixtral": _Family(
            _mixtral,
            "layers hidden intermediate heads experts top_k vocab batch seq dtype",
            tiny=(2, 32, 32, 4, 4, 2, 128, 2, 16, _F32),
            cpu=(4, 256, 384, 4, 4, 2, 1024, 4, 512, _F32),
            paper=(8, 1024, 3584, 16, 8, 2, 32000, 8, 2048, _BF16),
        ),
        "narrow": _Family(
            _llama,  # of pytorch#197838
            "layers hidden intermediate heads vocab batch seq dtype gqa",
            tiny=(2, 32, 86, 4, 128, 1, 32, _F32, False),
            cpu=(8, 256, 688, 4, 1024, 1, 1024, _F32, False),
            paper=(32, 256, 688, 4, 1024, 1, 2048, _BF16, False),
        ),
    }
)

NAMES: tuple[str, ...] = tuple(_FAMILIES)
SIZES: tuple[str, ...] = ("tiny", "cpu", "paper")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Floating-point tensors made inside get `dtype` (`.to` fails on fake parameters)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def build(name: str, size: str, **options: Any) -> Built:
    """Build one model and its inputs; a loss right after building is reproducible.

    Options replace values of the size's table (`gqa=True`, `layers=80`, `batch=1`, ...); an
    option of None keeps the table's value. Seeds PyTorch's global generator.
    """
    if name not in _FAMILIES:
        raise ValueError(f"unknown model {name!r}; the known models are {', '.join(NAMES)}")
    if size not in SIZES:
        raise ValueError(f"unknown size {size!r}; the known sizes are {', '.join(SIZES)}")
    arguments = _FAMILIES[name].values(size)
    for key, value in options.items():
        if key not in arguments:
            raise TypeError(f"{name} has no option {key!r}; its options are {', '.join(arguments)}")
        if value is not None:
            arguments[key] = value
    torch.manual_seed(SEED)
    with _default_dtype(arguments.pop("dtype")):
        fn, args = _FAMILIES[name].builder(**arguments)
    torch.manual_seed(SEED + 1)  # what follows does not depend on how the weights were drawn
    return fn.train(), args
