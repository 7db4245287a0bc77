"""Train a small network under a memory budget: `python examples/quickstart.py`."""

import torch
from torch import nn

import gcpass

BATCH, WIDTH, LAYERS = 2048, 256, 8


def build() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 1))


def main() -> None:
    model = build()
    data, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(model(x), y)

    # What would it take? Nothing is run for this.
    free = gcpass.plan(loss, (data, target), codegen="eager")
    print(free.summary(), end="\n\n")
    tight = gcpass.plan(loss, (data, target), codegen="eager", memory_budget=0.5)
    print(tight.summary(), end="\n\n")

    # Train under that budget. With a C++ compiler, leave codegen out: Inductor then runs the plan.
    options = {"memory_budget": tight.budget_bytes, "codegen": "eager"}
    step = torch.compile(loss, backend="gcpass", options=options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for iteration in range(10):
        optimizer.zero_grad()
        value = step(data, target)
        value.backward()
        optimizer.step()
        print(f"step {iteration}: loss {value.item():.4f}")


if __name__ == "__main__":
    main()
