"""Values read before their storage is overwritten: neither recomputed nor read again after it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ._case import Run, case, leaf, plain


@case()
def scale_bumped_after_use(run: Run) -> None:
    """pytorch#197039: both exp(s) belong to the old s, in the backward too.

    Read again after ``s += 1`` each factor would be e too large; 62 is right, by finite
    differences as by eager, where torch returns 3393.
    """
    x, w, s = leaf(8, 16), leaf(16, 16, seed=1), torch.full((16,), 0.1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = torch.tanh(x @ w) * torch.exp(s)
        z = (y * torch.exp(s)).square().sum()
        s.add_(1)
        return z

    run.step(run.compile(fn), x, w, wrt=[x, w], times=2)
    run.see("s", s)


class MovingAverage(nn.Module):
    """Normalises by an average that it then moves; ``layers`` of them, with one buffer each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("average", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.linear(x))
        y = h / self.average.sqrt() * self.average.cos()
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.square().mean(0), alpha=0.1)
        return y


@case()
def moving_averages_read_then_updated(run: Run) -> None:
    """The backward divides by the average that the forward divided by, not by the moved one."""
    torch.manual_seed(0)
    model = nn.Sequential(*(MovingAverage(16) for _ in range(3)))
    run.step(run.compile(model), plain(32, 16), wrt=model, times=3)


@case()
def rows_of_a_cache_overwritten_after_use(run: Run) -> None:
    """A key-value cache: the step reads all rows, then writes its own over some.

    The overwritten rows hold NaN to begin with what follows, so a late read shows.
    """
    x, w, cache = leaf(4, 16), leaf(16, 16, seed=1), plain(8, 16, seed=2)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        scores = torch.softmax((x @ w) @ cache.t().sin(), -1)
        out = scores @ cache.sin()
        cache[2:6].fill_(float("nan"))
        return out.cos().sum()

    run.step(run.compile(fn), x, w, wrt=[x, w])
    run.see("cache", cache)


@case()
def spectral_norm(run: Run) -> None:
    """Power iteration moves u and v in place, once a step, before the weight is divided by them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(
            m
            for _ in range(2)
            for m in (nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)), nn.Tanh())
        )
    )
    run.step(run.compile(model), plain(8, 16), wrt=model, times=2)


@case()
def batch_norm_statistics(run: Run) -> None:
    """Recomputed or not, running statistics move once a step; so does the count of batches."""
    torch.manual_seed(0)
    layers = [
        m for _ in range(3) for m in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    ]
    model = nn.Sequential(*layers)
    run.step(run.compile(model), plain(4, 4, 8, 8), wrt=model, times=2)
    run.agree("batches", model[1].num_batches_tracked, torch.tensor(2))


class Clamped(torch.autograd.Function):
    """Overwrites its copy in the forward, and its gradient in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(3).clamp_(max=1.0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        grad = grads[0].clone()
        grad.mul_(3)
        grad[y >= 1.0] = 0
        return grad.add_(y)


_LOSES_OPS = torch.__version__ < "2.13"  # Dynamo of 2.11; under aot_eager, too


@case(torch_fault="torch loses the in-place ops of an autograd Function" if _LOSES_OPS else "")
def in_place_in_forward_and_in_a_custom_backward(run: Run) -> None:
    """Each in-place op acts once and in order: 3x, clamp; then 3g, zero where clamped, + y."""
    x, w = leaf(8, 16), leaf(16, 16, seed=1)
    fn = run.compile(lambda x, w: Clamped.apply(torch.tanh(x @ w)).sin().sum())
    run.step(fn, x, w, wrt=[x, w])


@case()
def backward_overwrites_a_buffer(run: Run) -> None:
    """A custom backward that counts gradients in a buffer does so once a step."""
    seen = torch.zeros(16)

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            seen.add_(grads[0].abs().sum(0))
            return grads[0] * 2

    x, w = leaf(8, 16), leaf(16, 16, seed=1)
    fn = run.compile(lambda x, w: Counted.apply(torch.tanh(x @ w)).sin().sum())
    run.step(fn, x, w, wrt=[x, w])
    run.see("buffer", seen)


class TokenCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("tokens", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.tokens.add_(x.shape[0])
        return torch.tanh(self.linear(x)) * (1 + self.tokens / 100)


@case(like_eager=False)
def token_counter(run: Run) -> None:
    """A counter that the forward moves and reads: 8 tokens, counted once a step, 24 after three.

    The output is scaled by 1 + tokens/100 as it was then: <dL/db, 1> for L = sum(y) says by what.
    """
    model = TokenCounter()
    model.linear.weight.data.zero_()
    model.linear.bias.data.zero_()
    fn = run.compile(lambda x: model(x).sum())
    for step in (1, 2, 3):
        run.step(fn, plain(8, 16), wrt=model, times=1)
        run.agree("counted", model.tokens, torch.tensor(8 * step))
        grad = model.linear.bias.grad
        run.agree("scale", grad, torch.full((16,), 8 * (1 + 0.08 * step)))


@case(like_eager=False)
def token_counter_inside_a_checkpoint(run: Run) -> None:
    """The same inside `torch.utils.checkpoint`: the region's forward runs once for its effect.

    (Eager's checkpoint counts twice; a compiled region recomputes values, not effects.)
    """
    model = TokenCounter()
    model.linear.weight.data.zero_()
    model.linear.bias.data.zero_()
    fn = run.compile(lambda x: checkpoint(model, x, use_reentrant=False).sum())
    x = plain(8, 16)
    for step in (1, 2):
        run.step(fn, x, wrt=model, times=1)
        run.agree("counted", model.tokens, torch.tensor(8 * step))
        grad = model.linear.bias.grad
        run.agree("scale", grad, torch.full((16,), 8 * (1 + 0.08 * step)))


@case(weighs=False, may_refuse=True)
def buffers_bumped_by_eager_code_before_the_backward(run: Run) -> None:
    """exp(buffer) was computed before the bump: the backward must not read the buffer again.

    Eager saved exp(buffer) for the gradient of h, and never the buffer itself. A plan that computes
    it again cannot know of the bump; autograd's check of versions then says so.
    """
    x, w, buffers = leaf(64, 16), leaf(16, 16, seed=1), [plain(64, 16, seed=i) for i in range(4)]

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for buffer in buffers:
            x = torch.tanh(x @ w) * buffer.exp()
        return x.sin().sum()

    loss = run.compile(fn)(x, w)
    for buffer in buffers:
        buffer.add_(1)
    loss.backward()
    run.see("gradients", [x.grad, w.grad])


@case()
def a_detached_copy_of_a_parameter_is_updated(run: Run) -> None:
    """A teacher follows its student within the step; the loss used the teacher as it was."""
    torch.manual_seed(0)
    student, teacher = nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False)

    def fn(x: Tensor) -> Tensor:
        target = teacher(x).softmax(-1)
        loss = F.cross_entropy(student(x).tanh() * 3, target)
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.lerp_(s, 0.5)
        return loss

    run.step(run.compile(fn), plain(8, 16), wrt=student, times=3)
    run.see("teacher", list(teacher.parameters()))


@case()
def an_optimizer_step_inside_the_function(run: Run) -> None:
    """An inner update of fast weights, in place, between two uses of them."""
    x, fast = leaf(8, 16), plain(16, 16)

    def fn(x: Tensor) -> Tensor:
        before = torch.tanh(x @ fast.sin())
        fast.sub_(0.1 * before.detach().t() @ before.detach())
        after = torch.tanh(before @ fast.sin())
        fast.zero_()
        return (after * before).sum()

    run.step(run.compile(fn), x, wrt=[x])
    run.see("fast", fast)


@case()
def an_index_put_into_an_input(run: Run) -> None:
    """Rows written through an index, with gradient into what is written."""
    x, table = leaf(4, 16), plain(8, 16)
    rows = torch.tensor([1, 3, 3, 6])

    def fn(x: Tensor) -> Tensor:
        before = (table.exp().sum(0) * x).tanh()
        table.index_put_((rows,), before.detach(), accumulate=True)
        return (before * table[rows].cos()).sum()

    run.step(run.compile(fn), x, wrt=[x])
    run.see("table", table)


@case()
def overlapping_views_of_a_buffer(run: Run) -> None:
    """A window over a ring buffer is read; then another, overlapping window is overwritten."""
    x, ring = leaf(4, 8), plain(12)

    def fn(x: Tensor) -> Tensor:
        window = ring.as_strided((4, 8), (1, 1))
        y = (x * window.exp()).sin()
        ring[3:7].mul_(2)
        return (y * ring.as_strided((4, 8), (1, 1)).cos()).exp().sum()

    run.step(run.compile(fn), x, wrt=[x], times=2)
    run.see("ring", ring)


@case()
def relu_in_place_and_residual_in_place(run: Run) -> None:
    """In-place activations and ``+=`` on intermediate values: nothing of them is seen twice."""
    x, w, v = leaf(8, 16), leaf(16, 16, seed=1), leaf(16, 16, seed=2)

    def fn(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        h = F.relu_(x @ w)
        skip = h.clone()
        h = h @ v
        h += skip
        h[:, :8] *= 2
        return h.exp().log_softmax(-1).square().sum()

    run.step(run.compile(fn), x, w, v, wrt=[x, w, v])
