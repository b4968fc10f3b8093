"""Train a small network, compiled, and hold it against eager.

python examples/train.py
"""

import copy

import torch
from torch import nn


def loss_after(model, steps=20):
    """Train `model` on one fixed batch and return its losses."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 16, generator=generator)
    target = torch.randn(32, 1, generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    eager = loss_after(copy.deepcopy(model))
    compiled = loss_after(torch.compile(copy.deepcopy(model), backend="straightline"))
    for step in (0, 9, 19):
        print(f"step {step + 1:2}: eager {eager[step]:.6f}, compiled {compiled[step]:.6f}")
    torch.testing.assert_close(compiled, eager)


if __name__ == "__main__":
    main()
