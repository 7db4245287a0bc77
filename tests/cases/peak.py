"""The peak falls with the budget, and stays what was said."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ._case import Run, case, leaf, plain


def _mlp(depth: int = 6, width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


@case(weighs=False, may_refuse=True)
def loss_and_backward_in_one_function(run: Run) -> None:
    """The gradient is taken inside the compiled function, whose own graph has no backward then."""
    model, x = _mlp(), plain(64, 32)

    def fn(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    run.see("loss", run.compile(fn)(x))
    run.see("gradients", [p.grad for p in model.parameters()])


@case(weighs=False)
def gradient_taken_inside_the_function(run: Run) -> None:
    """A gradient penalty's inner step, by `torch.func.grad`: values and gradient are eager's."""
    x, w = leaf(32, 16), leaf(16, 16, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        inner = torch.func.grad(lambda w: torch.tanh(x @ w).square().sum())
        return inner(w).square().sum()

    run.step(run.compile(fn), x, w, wrt=[x, w])


@case()
def checkpointed_blocks_traversed_twice(run: Run) -> None:
    """Blocks shared by two passes over the data in one step: recomputed for each, held for one."""
    blocks, x = _mlp(4), plain(64, 32)

    def through(x: Tensor) -> Tensor:
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    run.step(run.compile(lambda x: (through(x) - through(x.sin())).square().sum()), x, wrt=blocks)


@case()
def a_long_elementwise_chain(run: Run) -> None:
    """tanh(M y + d), 60 times over: at the floor no more than about 2 sqrt(60) values are held.

    M = A + t B is read by every link, so it crosses every place where the chain could be cut.
    """
    a, b, d, t = plain(48, 48) / 48, plain(48, 48, seed=2) / 48, plain(48, 48, seed=3), leaf(1)

    def fn(t: Tensor) -> Tensor:
        m, y = a + t * b, d
        for _ in range(60):
            y = torch.tanh(m * y + d)
        return y.sum()

    run.step(run.compile(fn), t, wrt=[t])
    run.floor_at_most(24 * 48 * 48 * 8)


@case()
def equal_expressions_written_twice(run: Run) -> None:
    """Common subexpressions are one op before the plan; what is recomputed stays recomputed."""
    x, w = leaf(64, 32), leaf(32, 32, seed=1)

    def fn(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(x @ w).exp() * torch.tanh(x @ w).cos() + torch.tanh(x @ w).exp()
            x = x / 3
        return x.sum()

    run.step(run.compile(fn), x, w, wrt=[x, w])


@case(dtype=torch.float32)
def convolutions_with_frozen_batch_norm(run: Run) -> None:
    """Batch norms in eval mode are affine: nothing of them need be kept."""
    torch.manual_seed(0)
    layers = [
        m for _ in range(4) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ]
    model = nn.Sequential(*layers)
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    run.step(run.compile(model), plain(4, 8, 16, 16), wrt=model)


@case(dtype=torch.float32, weighs=False)
def upcasts_of_autocast(run: Run) -> None:
    """Norms and losses run in fp32 on values that were bf16: the small ones are kept.

    (Not weighed: oneDNN packs bf16 operands, in up to 130 KiB that no plan counts.)
    """
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(32, 32), nn.LayerNorm(32))))
    x = plain(64, 32)

    def fn(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.softmax(model(x), -1).square().sum()

    run.coarse = True
    run.step(run.compile(fn), x, wrt=model)


@case()
def skip_connections_across_the_whole(run: Run) -> None:
    """A U: the first values are read last, and only cross."""
    w = [leaf(32, 32, seed=i) for i in range(8)]

    def fn(x: Tensor, *w: Tensor) -> Tensor:
        skips = []
        for v in w[:4]:
            x = torch.tanh(x @ v)
            skips.append(x)
        for v in w[4:]:
            x = torch.tanh(x @ v) + skips.pop()
        return x.exp().sum()

    run.step(run.compile(fn), plain(64, 32), *w, wrt=w)


@case()
def many_small_heads_on_one_trunk(run: Run) -> None:
    """One value read by twelve heads: a late copy of it must not stay for all of them."""
    trunk, heads = leaf(32, 32), [leaf(32, 32, seed=i) for i in range(12)]

    def fn(x: Tensor, trunk: Tensor, *heads: Tensor) -> Tensor:
        h = torch.tanh(x @ trunk).exp().sin()
        return torch.stack([torch.tanh(h @ w).square().sum() for w in heads]).sum()

    run.step(run.compile(fn), plain(64, 32), trunk, *heads, wrt=[trunk, *heads])


@case()
def a_mask_multiplied_by_numbers(run: Run) -> None:
    """Found by the fuzz in a dropout: the mask's copy as numbers is held while it is multiplied.

    At the product h, the copy and the result are alive, 3 x 32 KiB and the mask, where a byte for
    each element of the mask was all that was counted of it.
    """
    x = leaf(64, 64)

    def fn(x: Tensor) -> Tensor:
        h = x * 2
        return (h * (h > 0)).sum()

    run.step(run.compile(fn), x, wrt=[x])


@case()
def one_row_in_order(run: Run) -> None:
    """Found by the fuzz: a sort holds eight bytes beside each value of the row that it sorts.

    At the sort the row in order, the places and once more the places are alive: 3 x 32 KiB.
    """
    x, row = leaf(4096), plain(4096, seed=1)
    run.step(run.compile(lambda x, row: (x * row.sort().values).sum()), x, row, wrt=[x])
