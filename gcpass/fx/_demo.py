"""The training behind ``gcpass demo``: one small GPT-2 under several budgets, side by side.

Every configuration starts from the same weights and sees the same batches with the same dropout,
so that the losses can be compared; the timed steps are taken in turns, so that whatever else the
machine does falls on all of them.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import shutil
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gcpass._errors import GcpassError, OptionError
from gcpass._report._demo import DemoRecord, DemoRow
from gcpass.fx import _compat
from gcpass.fx._devices import machine
from gcpass.fx._measure import Step, rounds
from gcpass.fx._options import Options, check_codegen, make_request

LEARNING_RATE = 1e-3
_SOURCES = ("argparse", "inspect", "typing", "subprocess", "datetime", "ast", "pathlib")


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of a batch."""

    layers: int
    width: int
    heads: int
    sequence: int
    batch: int
    vocabulary: int = 256  # one token a byte
    dropout: float = 0.1


@dataclass(frozen=True)
class Configuration:
    """One row of the demo: what the backend is asked for."""

    label: str
    memory_budget: float | None = None
    policy: str | None = None


FULL = Shape(layers=4, width=256, heads=4, sequence=128, batch=8)
QUICK = Shape(layers=3, width=128, heads=4, sequence=128, batch=8)
ROWS = (
    Configuration("no budget"),
    Configuration("budget 0.75", memory_budget=0.75),
    Configuration("budget 0.5", memory_budget=0.5),
    Configuration("torch's own", policy="torch"),
    Configuration("torch's at 0.5", policy="torch:0.5"),
    Configuration("torch's at 0.1", policy="torch:0.1"),
)
QUICK_ROWS = (ROWS[0], Configuration("budget 0.6", memory_budget=0.6), ROWS[4])


@dataclass
class _Run:
    """A configuration with its own compiled model."""

    configuration: Configuration
    step: Step
    first_step_seconds: float
    losses: tuple[float, ...]
    peak_bytes: int
    step_seconds: list[float]


def run_demo(
    shape: Shape,
    configurations: Sequence[Configuration],
    *,
    codegen: str,
    device: str,
    seed: int,
    optimizer_steps: int,
    timed_steps: int,
    progress: Callable[[int, int, str], None],
) -> DemoRecord:
    """Train, weigh and time every configuration.

    Args:
        shape: of the model and the batches.
        configurations: the rows; the first is the one the others are compared to.
        codegen: ``"inductor"`` or ``"eager"``.
        device: ``"cpu"`` or ``"cuda"``.
        seed: of weights and dropout.
        optimizer_steps: how many steps of AdamW each row trains for.
        timed_steps: how many forwards and backwards of each row are timed.
        progress: called with what is done, what there is to do, and what is being done.

    Returns:
        The record.

    Raises:
        OptionError: a configuration cannot be used.
        GcpassError: Python's library comes without sources to train on.
    """
    if min(optimizer_steps, timed_steps) < 1:
        raise OptionError("the demo needs at least one step")
    options = [_options(c, codegen) for c in configurations]
    batches = _batches(shape, optimizer_steps).to(device)
    total = len(configurations) * (optimizer_steps + 1) + timed_steps
    done = itertools.count(1)
    runs: list[_Run] = []
    for configuration, chosen in zip(configurations, options, strict=True):
        label = configuration.label
        progress(len(runs) * (optimizer_steps + 1), total, f"{label}: compiling")
        runs.append(
            _train(
                configuration, chosen, shape, batches, seed,
                lambda label=label: progress(next(done), total, f"{label}: training"),
            )
        )  # fmt: skip
        progress(next(done), total, f"{label}: weighed")
    for turns in rounds(runs, timed_steps, seed):
        for run in turns:
            torch.manual_seed(seed)
            run.step_seconds.append(run.step.seconds())
            run.step.drop_gradients()
        progress(next(done), total, "timing all in turns")
    model = build_model(shape, seed)
    return DemoRecord(
        machine={
            **machine(),
            "transformers": metadata.version("transformers") if _has_transformers() else None,
        },
        model={
            "from": "transformers" if _has_transformers() else "gcpass",
            "parameters": sum(p.numel() for p in model.parameters()),
            "optimizer": "AdamW",
            "learning_rate": LEARNING_RATE,
            **asdict(shape),
        },
        codegen=codegen,
        seed=seed,
        rows=tuple(map(_row, runs)),
    )


def _options(configuration: Configuration, codegen: str) -> Options:
    request = make_request(configuration.memory_budget, configuration.policy, "auto", "best")
    return Options(request=request, codegen=check_codegen(codegen))


def _train(
    configuration: Configuration,
    options: Options,
    shape: Shape,
    batches: Tensor,
    seed: int,
    progress: Callable[[], None],
) -> _Run:
    """Compile a fresh model, take the optimizer steps, and weigh one more."""
    model = build_model(shape, seed).to(batches.device)
    ids = batches[0].clone()  # every batch is copied into it: a step has fixed arguments

    def loss(ids: Tensor) -> Tensor:
        return model(ids)

    # Dynamo's cache hangs on the code object: with one for each, no row counts as a recompilation.
    loss.__code__ = loss.__code__.replace()
    step = Step(loss, (ids,), None, options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses: list[float] = []
    first_step_seconds = 0.0
    for number, batch in enumerate(batches):
        ids.copy_(batch)
        torch.manual_seed(seed + number)
        if number == 0:
            start = time.perf_counter()
            with warnings.catch_warnings():
                # Said below the table instead: it is among the plan's notes.
                warnings.filterwarnings("ignore", message=".*Going on with the smallest peak")
                step.run()
            first_step_seconds = time.perf_counter() - start
        else:
            step.run()
        optimizer.step()
        losses.append(float(step.loss))
        progress()
    return _Run(configuration, step, first_step_seconds, tuple(losses), step.peak_bytes(), [])


def _row(run: _Run) -> DemoRow:
    plans, configuration = run.step.plans, run.configuration
    plan = plans[0] if len(plans) == 1 else None
    return DemoRow(
        label=configuration.label,
        memory_budget=configuration.memory_budget,
        policy=configuration.policy,
        budget_bytes=plan.budget_bytes if plan else None,
        predicted_peak_bytes=plan.predicted_peak_bytes if plan else None,
        measured_peak_bytes=run.peak_bytes,
        first_step_seconds=run.first_step_seconds,
        step_seconds=tuple(run.step_seconds),
        losses=run.losses,
        notes=tuple(dict.fromkeys(note for p in plans for note in p.notes)),
    )


def _batches(shape: Shape, count: int) -> Tensor:
    """[count, batch, sequence] bytes of Python's own library."""
    wanted = count * shape.batch * shape.sequence
    text = bytearray()
    for source in _library():
        text += source.encode()
        if len(text) >= wanted:
            tokens = torch.frombuffer(text, dtype=torch.uint8)[:wanted].long()
            return tokens.view(count, shape.batch, shape.sequence)
    raise GcpassError("the demo trains on the sources of Python's library; none are installed here")


def _library() -> Iterator[str]:
    """Sources of library modules, over and over; none if there are none."""
    sources: list[str] = []
    for name in _SOURCES:
        try:
            sources.append(inspect.getsource(import_module(name)))
        except OSError:
            continue
    return itertools.cycle(sources)


# -- the machine --------------------------------------------------------------------------------


def find_device() -> str:
    """``"cuda"`` if there is one, or ``"cpu"``."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def inductor_obstacle(device: str) -> str | None:
    """What keeps Inductor from compiling for a device here, in a few words; None: nothing does."""
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    configured = _compat.inductor_config.cpp.cxx
    names = configured if isinstance(configured, (list, tuple)) else (configured,)
    compilers = [name for name in names if name]
    if device == "cpu" and not any(map(shutil.which, compilers)):
        return f"there is no C++ compiler {' or '.join(compilers)} (install g++, or set CXX)"
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        return f"Python's C headers are not in {include} (install python3-dev or the like)"
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:
        return f"a trial compilation failed: {str(error).strip().splitlines()[0]}"
    return None


# -- the model ----------------------------------------------------------------------------------


def _has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def describe_model() -> str:
    """Where the model comes from, in a sentence."""
    if _has_transformers():
        return "The model is transformers' GPT-2, with random weights."
    return "transformers is not installed: the model is a built-in one of GPT-2's shape."


def build_model(shape: Shape, seed: int) -> nn.Module:
    """A GPT-2 that returns its next-byte loss on ``ids``; the same weights for the same seed."""
    torch.manual_seed(seed)
    model = _HuggingFaceGPT2(shape) if _has_transformers() else _GPT2(shape)
    return model.train()


class _HuggingFaceGPT2(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=shape.vocabulary,
            n_positions=shape.sequence,
            n_embd=shape.width,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=shape.dropout,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.model = GPT2LMHeadModel(config)
        self.model.loss_type = "ForCausalLM"  # guessed otherwise, with a warning inside the graph

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, sequence]."""
        loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        assert loss is not None
        return loss


class _GPT2(nn.Module):
    """The same architecture in plain PyTorch: pre-norm blocks, learned positions, tied head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.randn(shape.sequence, shape.width) * 0.02)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [batch, sequence]."""
        x = self.dropout(self.tokens(ids) + self.positions)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class _Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads, self.p = shape.heads, shape.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, sequence, width]."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = qkv.unbind(2)  # each [batch, heads, sequence, width / heads]
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self.p if self.training else 0.0, is_causal=True
        )
        x = x + self.dropout(self.project(mixed.transpose(1, 2).flatten(2)))
        hidden = F.gelu(self.up(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.down(hidden))
