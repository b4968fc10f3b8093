"""Print the functions that run when a compiled function is called.

python examples/read_what_runs.py
"""

import torch

import straightline


@straightline.compile
def step(x, running):
    """A value, a view of the argument, and an argument that is changed in place."""
    running.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (x - running).relu(), x.t()


def main():
    running = torch.zeros(3)
    value, _ = step(torch.randn(4, 3, requires_grad=True), running)
    value.sum().backward()
    print(step.source)


if __name__ == "__main__":
    main()
