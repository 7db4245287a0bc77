"""Autocast, scalers, accumulation, optimizers, layouts, subclasses: training loops as they are."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._case import Run, case, leaf, plain


def _mlp(width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Linear(width, width), nn.LayerNorm(width))]
    return nn.Sequential(*layers, nn.GELU(), nn.Linear(width, width))


def _train(run: Run, optimizer: Any, steps: int = 4, accumulate: int = 1, **zero: Any) -> None:
    model = _mlp()
    call = run.compile(lambda x: model(x).square().mean())
    optimizer = optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad(**zero)
        for part in range(accumulate):
            loss = call(plain(8, 16, seed=step * accumulate + part)) / accumulate
            loss.backward()
        optimizer.step()
        run.see("loss", loss)
    run.see("parameters", list(model.parameters()))


@case(weighs=False)
def adamw(run: Run) -> None:
    """Parameters after four steps are eager's."""
    _train(run, lambda p: torch.optim.AdamW(p, lr=1e-2))


@case(weighs=False)
def fused_and_foreach_optimizers(run: Run) -> None:
    """The same with optimizers that overwrite all parameters in one call."""
    _train(run, lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True))
    _train(run, lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True))


@case(weighs=False)
def gradient_accumulation(run: Run) -> None:
    """Gradients add up over three micro-batches, kept in place or set to None between steps."""
    _train(run, lambda p: torch.optim.SGD(p, lr=0.1), accumulate=3, set_to_none=False)
    _train(run, lambda p: torch.optim.SGD(p, lr=0.1), accumulate=3, set_to_none=True)


@case(dtype=torch.float32, like_eager=False)
def autocast(run: Run) -> None:
    """Under bf16 autocast the loss, linear in the last bias, says what its gradient is."""
    model = _mlp()

    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().sum()

    run.step(run.compile(fn), plain(8, 16), wrt=model)
    run.agree("bias", model[-1].bias.grad, torch.full((16,), 8.0))


@case(dtype=torch.float32, weighs=False)
def grad_scaler(run: Run) -> None:
    """Scaled by 1024 and back, with one step skipped for an infinity."""
    model = _mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = run.compile(lambda x: model(x).square().mean())
    for step in range(3):
        x = plain(8, 16, seed=step)
        if step == 1:
            x[0, 0] = float("inf")
        optimizer.zero_grad()
        scaler.scale(call(x)).backward()
        scaler.step(optimizer)
        scaler.update()
    run.see("scale", scaler.get_scale())
    run.see("parameters", list(model.parameters()))


@case(dtype=torch.float32)
def channels_last(run: Run) -> None:
    """Strides of inputs, weights and gradients stay those of the layout."""
    torch.manual_seed(0)
    layers = [m for _ in range(3) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.SiLU())]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    x = plain(2, 8, 8, 8).to(memory_format=torch.channels_last)
    run.step(run.compile(model), x, wrt=model)
    run.agree("strides", model[0].weight.grad.stride(), model[0].weight.stride())


@case()
def complex_numbers(run: Run) -> None:
    """A Fourier layer: complex values in the middle, real ones at the ends."""
    w = leaf(9, 16, dtype=torch.complex128)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(torch.fft.irfft(torch.fft.rfft(x, dim=0) * w, n=16, dim=0))
        return x.exp().sum()

    run.step(run.compile(fn), leaf(16, 16), w, wrt=[w])


@case(dtype=torch.float32)
def a_mix_of_precisions(run: Run) -> None:
    """fp16, bf16, fp32 and fp64 in one graph."""
    w = leaf(16, 16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = torch.tanh(x.bfloat16() @ w.bfloat16()).half().sin()
        return (h.double() @ w.double()).exp().float().mean() + h.float().cos().sum()

    run.coarse = True
    run.step(run.compile(fn), plain(16, 16), w, wrt=[w])


@case(weighs=False)
def gradient_clipping_and_norms(run: Run) -> None:
    """A norm over all gradients, and clipping by it."""
    model = _mlp()
    call = run.compile(lambda x: model(x).square().sum())
    call(plain(8, 16)).backward()
    run.see("norm", nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    run.see("gradients", [p.grad for p in model.parameters()])


@case(weighs=False)
def a_compiled_optimizer_beside_it(run: Run) -> None:
    """The optimizer is compiled too, by the same system: a graph without a backward."""
    model = _mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    call = run.compile(lambda x: model(x).square().mean())
    step = run.compile(optimizer.step)
    for seed in range(3):
        optimizer.zero_grad()
        call(plain(8, 16, seed=seed)).backward()
        step()
    run.see("parameters", list(model.parameters()))


@case(weighs=False)
def dtensor_on_one_rank(run: Run) -> None:
    """Parameters that are DTensors, replicated on a mesh of one."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    from .side_effects import _group

    _group()
    assert dist.is_initialized()
    mesh = init_device_mesh("cpu", (1,))
    w = nn.Parameter(distribute_tensor(leaf(16, 16).detach(), mesh, [Replicate()]))
    x = distribute_tensor(plain(8, 16), mesh, [Replicate()])
    call = run.compile(lambda x, w: torch.tanh(torch.tanh(x @ w).exp() @ w).sum())
    loss = call(x, w)
    loss.backward()
    run.see("loss", loss.full_tensor())
    run.see("gradient", w.grad.full_tensor())


class Scaled(torch.Tensor):
    """A weight stored as int8 with a scale, which dequantises wherever it is used."""

    @staticmethod
    def __new__(cls, data: Tensor, scale: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype)

    def __init__(self, data: Tensor, scale: Tensor) -> None:
        self.data8, self.scale = data, scale

    def __tensor_flatten__(self) -> Any:
        return ["data8", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, meta: Any, size: Any, stride: Any) -> Any:
        return Scaled(inner["data8"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].data8, args[0].scale)
        plainly = lambda t: t.data8.to(t.scale.dtype) * t.scale if isinstance(t, Scaled) else t
        args, kwargs = torch.utils._pytree.tree_map(plainly, (args, kwargs or {}))
        return func(*args, **kwargs)


@case()
def a_quantised_weight_as_a_subclass(run: Run) -> None:
    """A wrapper subclass unfolds into its parts; its dequantised value is not kept."""
    torch.manual_seed(0)
    bases = [Scaled(torch.randint(-99, 99, (64, 64), dtype=torch.int8), plain(64, 1) / 400)] * 3
    adapters = [leaf(64, 64, seed=i) for i in range(3)]

    def fn(x: Tensor, *adapters: Tensor) -> Tensor:
        for base, a in zip(bases, adapters, strict=True):
            x = torch.tanh(F.linear(x, base) + x @ a / 64)
        return x.square().sum()

    run.step(run.compile(fn), plain(8, 64), *adapters, wrt=adapters)


@case(weighs=False)
def modules_frozen_and_thawed(run: Run) -> None:
    """Layers thawed one at a time: every step plans for what is trained now."""
    model = _mlp().requires_grad_(False)
    call = run.compile(lambda x: model(x).square().mean())
    for index in (6, 4):
        if index < len(model):
            model[index].requires_grad_(True)
        trained = [p for p in model.parameters() if p.requires_grad]
        if trained:
            run.step(call, plain(8, 16), wrt=trained)
