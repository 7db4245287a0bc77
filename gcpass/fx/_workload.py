"""Tracing a workload: the model built on fake tensors, its joint graph read as a problem."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import nn

from gcpass._depth import Extend, extender
from gcpass._errors import OptionError
from gcpass._estimate import Case
from gcpass._presets import PRESETS
from gcpass._problem import Problem
from gcpass._scale import between
from gcpass._training import Sizes, Unit
from gcpass._units import format_bytes
from gcpass._workload import Workload
from gcpass.fx._capture import Captured, capture, fake_mode
from gcpass.fx._costs import Roofline
from gcpass.fx._hf import Architecture, default_dtype, find_architecture
from gcpass.fx._partitioner import analyze_graph
from gcpass.fx._prices import check_hardware, find_prices
from gcpass.fx._refusals import refusals

log = logging.getLogger("gcpass")

Built = tuple[Callable[..., Any], Sequence[Any]]
_SHALLOW = 5  # layers that are traced: those at the ends differ, and three in the middle must not
_SEQ = 1024  # where neither the user nor a preset says


@dataclass(frozen=True)
class _Traced:
    problem: Problem
    notes: tuple[str, ...]


class Tracer:
    """Traces workloads that differ in batch, sequence length or what is trained.

    Tensors are fake ones of the CPU, which need no CUDA build of torch; ops are priced, and blocks
    of memory rounded, as the hardware's profile says.

    Args:
        hardware: the cost model, of any device but one that ops are run on.
        codegen: ``"inductor"`` or ``"eager"``.
        load: what builds a workload's ``(fn, args)`` where it is not a transformers model.

    Raises:
        OptionError: there is no such hardware, or ops would have to be run on it.
    """

    def __init__(self, hardware: str, codegen: str, load: Callable[[str], Built]) -> None:
        if check_hardware(hardware) == "measured":
            raise OptionError("--hardware measured runs ops, and these tensors are not real")
        self._prices = find_prices(hardware, torch.device("cpu"))
        self._codegen, self._load = codegen, load
        self._extenders: dict[Workload, Extend | None] = {}
        self._shallow: dict[Workload, dict[int, _Traced]] = {}  # by batch
        self._sizes: dict[Workload, Sizes] = {}
        self._unpacked: dict[Workload, tuple[str, ...]] = {}  # notes on weights that QLoRA leaves
        self._made: dict[Workload, Case] = {}

    def __call__(self, workload: Workload) -> Case:
        """Trace a workload, once.

        Raises:
            OptionError: the workload cannot be built.
            CaptureError: its step cannot be captured as one graph.
        """
        if workload not in self._made:
            make = self._built if workload.is_built else self._loaded
            self._made[workload] = make(workload)
        return self._made[workload]

    def _loaded(self, workload: Workload) -> Case:
        fn, args = self._load(workload.target)
        models = _modules([fn, *args])
        if not models:
            raise OptionError(
                f"{workload.target}: no nn.Module was found whose weights to count; return "
                "(model, args), or a function that the model is in the closure of"
            )
        traced = self._read(capture(fn, args, None, self._codegen))
        return self._case(workload, 1, None, traced, sizes_of(models, args))

    def _built(self, workload: Workload) -> Case:
        architecture = find_architecture(workload.target.removeprefix("hf:"), workload.config)
        batch, seq = workload.batch or 1, sequence_length(workload, architecture)
        own_seq = (seq or 1) // workload.sequence_parallel

        def build(depth: int | None) -> tuple[nn.Module, Sequence[Any]]:
            with refusals(workload), fake_mode(), default_dtype(dtype):
                model = architecture.build(depth)
                if workload.lora is not None or workload.qlora:
                    from gcpass.fx._lora import adapt  # imports transformers

                    adapt(model, workload.lora, quantized=workload.qlora)
                return model, architecture.inputs(batch, own_seq, dtype)

        def trace(depth: int | None) -> _Traced:
            model, inputs = build(depth)
            with refusals(workload):
                captured = capture(model, inputs, None, self._codegen)
            return self._read(captured)

        kind = workload.at(0, 0)
        dtype = getattr(torch, workload.dtype)
        with refusals(workload), fake_mode(), default_dtype(dtype):
            inputs = architecture.inputs(batch, own_seq, dtype)
        if kind not in self._sizes:
            model = build(None)[0]
            self._sizes[kind] = sizes_of([model], ())
            self._unpacked[kind] = _unpacked(model) if workload.qlora else ()
        sizes = replace(self._sizes[kind], inputs_nbytes=_total_nbytes(inputs))
        depth = architecture.depth
        traced = None
        if depth is not None and depth > _SHALLOW + 2:
            traced = self._trace_shallow(workload.at(0, seq), batch, trace, depth)
        traced = traced or trace(None)
        traced = replace(traced, notes=(*traced.notes, *self._unpacked[kind]))
        return self._case(workload, batch, seq, traced, sizes)

    def _trace_shallow(
        self,
        workload: Workload,
        batch: int,
        trace: Callable[[int], _Traced],
        depth: int,
    ) -> _Traced | None:
        """The problem at full depth from one of few layers; None if the layers are not alike."""
        known = self._shallow.setdefault(workload, {})
        small = _made_between(known, batch)
        if small is None:
            small = known[batch] = trace(_SHALLOW)
        kind = workload.at(0, 0)
        more = depth - _SHALLOW
        extend = self._extenders.get(kind)
        if extend is not None:
            try:
                return _Traced(extend(small.problem, more), small.notes)
            except ValueError as error:  # another batch may be wired differently
                log.debug("layers are compared again: %s", error)
        extend = extender(small.problem, trace(_SHALLOW + 1).problem)
        self._extenders[kind] = extend
        if extend is None:
            log.debug("%s: layers are not alike, and all are traced", workload.target)
            return None
        return _Traced(extend(small.problem, more), small.notes)

    def _read(self, captured: Captured) -> _Traced:
        analysis = analyze_graph(
            captured.joint, captured.num_fwd_outputs, self._prices, self._codegen
        )
        return _Traced(analysis.problem, analysis.notes)

    def _case(
        self, workload: Workload, batch: int, seq: int | None, traced: _Traced, sizes: Sizes
    ) -> Case:
        prices = self._prices
        rate = prices.hardware.byte_rate if isinstance(prices, Roofline) else 0.0
        return Case(workload, batch, seq, traced.problem, sizes, traced.notes, rate)


def _made_between(known: Mapping[int, _Traced], batch: int) -> _Traced | None:
    """The problem at a batch between traced ones; None if it cannot be made of them."""
    for low, middle, high in combinations(sorted(known), 3):
        if low < batch < high:
            make = between(*((n, known[n].problem) for n in (low, middle, high)))
            if make is not None:
                return _Traced(make(batch), known[low].notes)
    return None


def _unpacked(model: nn.Module) -> tuple[str, ...]:
    """What to say of experts that are one parameter together, as transformers holds them."""
    nbytes = sum(p.numel() * p.element_size() for p in model.parameters() if p.dim() == 3)
    if not nbytes:
        return ()
    return (
        f"{format_bytes(nbytes)} of weights are those of experts, which are no linear layers: they "
        "are not held in 4 bits, and get no adapters",
    )


def sequence_length(workload: Workload, architecture: Architecture) -> int | None:
    """The tokens of a sequence; None for images.

    Raises:
        OptionError: the sequence is too long for the model, or cannot be spread evenly.
    """
    if architecture.kind == "image":
        if workload.seq is not None:
            raise OptionError(f"--seq {workload.seq}: {workload.target} takes images")
        if workload.sequence_parallel > 1:
            raise OptionError(f"--sequence-parallel: {workload.target} takes images")
        return None
    preset, longest = PRESETS.get(architecture.name), architecture.longest
    seq = workload.seq or (preset.seq if preset else min(_SEQ, longest or _SEQ))
    if longest is not None and seq > longest:
        raise OptionError(
            f"--seq {seq} is longer than the {longest} positions that {architecture.name} learns; "
            f"add --config max_position_embeddings={seq}"
        )
    if seq % workload.sequence_parallel:
        raise OptionError(
            f"--sequence-parallel {workload.sequence_parallel} does not divide --seq {seq}"
        )
    return seq


def sizes_of(models: Iterable[nn.Module], inputs: Iterable[Any]) -> Sizes:
    """Bytes of models' weights and gradients, by FSDP's usual units.

    Blocks are the items of the outermost `nn.ModuleList`s.
    """
    models = list(models)
    held = {id(t): t for m in models for t in (*m.parameters(), *m.buffers())}
    blocks = [b for model in models for b in _blocks(model)]
    in_blocks = {id(t) for b in blocks for t in (*b.parameters(), *b.buffers())}
    trained = [t for t in held.values() if t.requires_grad]
    units = [_unit((*block.parameters(), *block.buffers())) for block in blocks]
    modules = {id(part): part for model in models for part in model.modules()}
    packed = sum(getattr(part, "packed_parameters", 0) for part in modules.values())
    return Sizes(
        whole=_unit(held.values()),
        block=Unit(
            max((u.weights_nbytes for u in units), default=0),
            max((u.gradients_nbytes for u in units), default=0),
        ),
        rest=_unit(t for key, t in held.items() if key not in in_blocks),
        trained=sum(t.numel() for t in trained),
        parameters=sum(t.numel() for t in held.values() if isinstance(t, nn.Parameter)) + packed,
        inputs_nbytes=_total_nbytes(inputs),
    )


def _total_nbytes(inputs: Iterable[Any]) -> int:
    tensors = (t for t in inputs if isinstance(t, torch.Tensor))
    return sum(t.numel() * t.element_size() for t in tensors)


def _unit(tensors: Iterable[torch.Tensor]) -> Unit:
    tensors = list(tensors)
    return Unit(
        sum(t.numel() * t.element_size() for t in tensors),
        sum(t.numel() * t.element_size() for t in tensors if t.requires_grad),
    )


def _blocks(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [block for child in module.children() for block in _blocks(child)]


def _modules(values: Iterable[Any]) -> list[nn.Module]:
    """The modules that a step's function and arguments hold, in closures and methods too."""
    found: list[nn.Module] = []
    for value in values:
        if isinstance(value, nn.Module):
            found.append(value)
            continue
        inner = [getattr(value, "__self__", None), getattr(value, "func", None)]
        inner += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        found += _modules(v for v in inner if v is not None and v is not value)
    return list(dict.fromkeys(found))
