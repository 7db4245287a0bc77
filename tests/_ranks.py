"""One rank of a data-parallel training, run by `test_distributed.py`: `_ranks.py KIND STORE RANK`.

Prints, as JSON, the losses of three steps without and with gcpass, which parameters' gradients
differ, and how many plans were made.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _searching import searching_little
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS = 128, 4  # a block's weights are a megabyte, the least that DDP puts in a bucket
OPTIONS = {"memory_budget": 0.6, "codegen": "eager", "strict": True}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x).logsumexp(-1).mean()


def _distributed(kind: str, model: Net, *, compiles: bool) -> tuple[nn.Module, Any]:
    """A model that is wrapped as users do, and what to call."""
    if kind == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        wrapped: nn.Module = fully_shard(model)
    else:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=1)
    call = torch.compile(wrapped, backend="gcpass", options=OPTIONS) if compiles else wrapped
    return wrapped, call


def _train(kind: str, *, compiles: bool) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(0)
    model, call = _distributed(kind, Net().double(), compiles=compiles)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        torch.manual_seed(10 * step + dist.get_rank())  # each rank has its own share of a batch
        optimizer.zero_grad()
        loss = call(torch.randn(256, WIDTH, dtype=torch.float64))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return losses, [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]


def _meet(store: Path, rank: int) -> None:
    """By a file and over the loopback interface: whatever the machine's name stands for."""
    loopback = (name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ["GLOO_SOCKET_IFNAME"] = next(loopback)
    dist.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=2)


def main() -> None:
    plans: list[logging.LogRecord] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = plans.append
    logging.getLogger("gcpass").addHandler(handler)
    logging.getLogger("gcpass").setLevel(logging.INFO)
    _meet(Path(sys.argv[2]), int(sys.argv[3]))
    with searching_little():
        expected, right = _train(sys.argv[1], compiles=False)
        losses, got = _train(sys.argv[1], compiles=True)
    differing = [i for i, pair in enumerate(zip(got, right, strict=True)) if not _same(*pair)]
    if dist.get_rank() == 0:
        said = {"expected": expected, "losses": losses, "differing": differing}
        print(json.dumps(said | {"plans": len(plans)}), flush=True)
    dist.destroy_process_group()


def _same(got: Tensor, right: Tensor) -> bool:
    return torch.allclose(got, right, rtol=1e-9, atol=1e-12)


if __name__ == "__main__":
    main()
