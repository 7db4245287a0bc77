"""Where a graph begins and ends: outputs, inputs and gradients that are one another."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._case import Run, case, leaf, plain


def _wide(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).exp().sin()


@case()
def an_output_that_is_also_a_gradient(run: Run) -> None:
    """y = x w elementwise with dL/dy given: the value returned is what the backward returns too."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.exp()
            ctx.save_for_backward(y)
            return y, y.sum()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return ctx.saved_tensors[0]

    x, w = leaf(16, 16), leaf(16, 16, seed=1)
    run.step(run.compile(lambda x, w: Twice.apply(_wide(x, w))), x, w, wrt=[x, w])


@case()
def an_input_returned_as_it_is(run: Run) -> None:
    """The parameter itself is a result."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)
    run.step(run.compile(lambda x, w: (w, _wide(x, w))), x, w, wrt=[x, w])


@case(weighs=False)
def aliases_of_inputs_and_of_each_other(run: Run) -> None:
    """Views of an input, of a result, and the result itself."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)
    fn = lambda x, w: (x.view(-1), (h := _wide(x, w)), h.t(), h[3:], h.view(4, -1))
    run.step(run.compile(fn), x, w, wrt=[x, w])


@case(weighs=False)
def unused_outputs(run: Run) -> None:
    """Only one of three results is in the loss: the others have no tangent of the user's."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)
    call = run.compile(lambda x, w: ((h := _wide(x, w)).cos(), h.exp(), h.square().sum()))
    run.step(lambda x, w: call(x, w)[2], x, w, wrt=[x, w])


@case()
def outputs_without_gradient(run: Run) -> None:
    """Integers, booleans and detached values beside the loss."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)

    def fn(x: Tensor, w: Tensor) -> Any:
        h = _wide(x, w)
        return h.argmax(1), h > 0, h.detach().cos(), h.square().sum(), 3, None

    run.step(run.compile(fn), x, w, wrt=[x, w])


@case(weighs=False)
def no_tangents(run: Run) -> None:
    """A graph none of whose gradients depends on what comes in."""
    x = leaf(16, 16)
    run.step(run.compile(lambda x: x.sum() * 1.0), x, wrt=[x])


@case()
def tied_weights(run: Run) -> None:
    """One matrix embeds and projects: its gradient is the sum of both uses."""
    torch.manual_seed(0)
    table, tokens = leaf(64, 16), torch.randint(64, (8, 4))

    def fn(table: Tensor) -> Tensor:
        h = torch.tanh(F.embedding(tokens, table)).exp()
        return F.cross_entropy((h @ table.t()).flatten(0, 1), tokens.flatten())

    run.step(run.compile(fn), table, wrt=[table])


@case()
def the_same_tensor_passed_twice(run: Run) -> None:
    """x and w are one tensor."""
    x = leaf(16, 16)
    run.step(run.compile(lambda a, b: (_wide(a, b) * a.sin()).sum()), x, x, wrt=[x])


@case(weighs=False)
def overlapping_inputs(run: Run) -> None:
    """Two views of one leaf are passed, and neither is mutated."""
    base = leaf(20, 16)
    call = run.compile(lambda a, b: (_wide(a, b) * a.sin()).sum())
    run.step(lambda base: call(base[:16], base[4:]), base, wrt=[base])


@case(weighs=False)
def retain_graph(run: Run) -> None:
    """Backward twice, and again after a second forward: the same gradients, then twice them."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)
    call = run.compile(lambda x, w: _wide(_wide(x, w), w).sum())
    for _ in range(2):
        x.grad = w.grad = None
        loss = call(x, w)
        loss.backward(retain_graph=True)
        run.see("once", [x.grad, w.grad])
        loss.backward()
        run.see("twice", [x.grad, w.grad])


@case(weighs=False)
def retained_mutation(run: Run) -> None:
    """Backward twice where the forward overwrote a buffer: the backward's own values survive."""
    x, w, s = leaf(16, 16), leaf(16, 16, seed=1), plain(16)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = _wide(x, w) * s.exp()
        s.mul_(2)
        return (y * y.cos()).sum()

    loss = run.compile(fn)(x, w)
    loss.backward(retain_graph=True)
    run.see("once", [x.grad, w.grad])
    loss.backward()
    run.see("twice", [x.grad, w.grad])


@case(weighs=False, may_refuse=True, like_eager=False)
def double_backward(run: Run) -> None:
    """A gradient of a gradient: an error that says so, not a wrong number."""
    x, w = leaf(8, 8), leaf(8, 8, seed=1)
    call = run.compile(lambda x, w: _wide(x, w).sum())
    (grad,) = torch.autograd.grad(call(x, w), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), w)
    (plain_grad,) = torch.autograd.grad(_wide(x, w).sum(), x, create_graph=True)
    (right,) = torch.autograd.grad(plain_grad.square().sum(), w)
    run.agree("second", second, right)


@case(weighs=False)
def first_without_gradient_then_trained(run: Run) -> None:
    """Called under no_grad, trained, evaluated, and trained again."""
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 16))
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p)
    x, call = plain(8, 16), run.compile(model)
    with torch.no_grad():
        run.see("inference", call(x))
    run.step(call, x, wrt=model)
    model.eval()
    with torch.no_grad():
        run.see("evaluation", call(x))
    model.train()
    run.step(call, x, wrt=model)


@case()
def a_tensor_wanted_only_for_its_size(run: Run) -> None:
    """expand_as, zeros_like and sums whose backward needs sizes: no values need be kept."""
    x, w = leaf(32, 16), leaf(16, 16, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        big = torch.tanh(x @ w)
        scale = x.mean(0, keepdim=True)
        return (scale.expand_as(big) + torch.zeros_like(big)).mean() * big.sum(1).exp().mean()

    run.step(run.compile(fn), x, w, wrt=[x, w])


@case()
def a_gradient_that_is_an_input(run: Run) -> None:
    """L = <x, c>: the gradient of x is c itself, and c is returned as a result too."""
    x, c = leaf(16, 16), plain(16, 16)
    run.step(run.compile(lambda x, c: ((x * c).sum(), c)), x, c, wrt=[x])
    run.agree("gradient", x.grad, c)


@case()
def frozen_part_and_gradients_of_inputs_only(run: Run) -> None:
    """Parameters frozen, input wants a gradient, as in attacks and inversions."""
    torch.manual_seed(0)
    model = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(16, 16), nn.GELU())))
    model.requires_grad_(False)
    x = leaf(16, 16)
    run.step(run.compile(model), x, wrt=[x])


@case(weighs=False)
def part_of_the_leaves_change_their_minds(run: Run) -> None:
    """requires_grad toggled between steps: planned again."""
    x, w, v = plain(16, 16), leaf(16, 16, seed=1), leaf(16, 16, seed=2)
    call = run.compile(lambda x, w, v: _wide(_wide(x, w), v).sum())
    run.step(call, x, w, v, wrt=[w, v])
    w.requires_grad_(False)
    run.step(call, x, w, v, wrt=[v])


@case(weighs=False)
def graph_breaks(run: Run) -> None:
    """Two graphs, the second of which reads what the first kept."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = _wide(x, w)
        torch._dynamo.graph_break()
        return (_wide(h, w) * h.cos()).sum()

    run.step(run.compile(fn), x, w, wrt=[x, w])


@case(weighs=False)
def hooks(run: Run) -> None:
    """A hook on a value inside, and one on a parameter: each sees eager's gradient once."""
    x, w = leaf(16, 16), leaf(16, 16, seed=1)
    seen: list[Tensor] = []
    w.register_hook(lambda g: seen.append(g.clone()))

    def fn(x: Tensor, w: Tensor) -> Tensor:
        h = _wide(x, w)
        h.register_hook(lambda g: g * 2)
        return (h * h.cos()).sum()

    run.step(run.compile(fn), x, w, wrt=[x, w])
    run.see("hook", seen)
