"""The plot of `runtime.py`: net cost a call, torch's layer beside ours, one panel a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from runtime import Row

COLOURS = {"torch": "#9aa5b1", "ours": "#d9482b"}
LABELS = {"torch": "torch 2.13", "ours": "straightline"}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the plot; bars are medians of the rounds, whiskers their 10th to 90th percentile."""
    groups = [(name, list(members)) for name, members in groupby(rows, lambda row: row.group)]
    heights = [len(members) for _, members in groups]
    # A fixed salt and no date: the same measurements give the same file.
    plt.rcParams["svg.hashsalt"] = "straightline"
    figure, axes = plt.subplots(
        len(groups),
        1,
        figsize=(8, 0.55 * sum(heights) + 0.7 * len(groups)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axis, (name, members) in zip(axes[:, 0], groups, strict=True):
        for offset, side in ((-0.2, "torch"), (0.2, "ours")):
            spreads = [row.net[side] for row in members]
            medians = [s.median for s in spreads]
            whiskers = [
                [max(0.0, s.median - s.low) for s in spreads],
                [max(0.0, s.high - s.median) for s in spreads],
            ]
            positions = [i + offset for i in range(len(members))]
            axis.barh(
                positions,
                medians,
                height=0.38,
                color=COLOURS[side],
                label=LABELS[side],
                xerr=whiskers,
                error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
            )
            for position, spread in zip(positions, spreads, strict=True):
                axis.annotate(
                    f"{spread.median:.1f}",
                    (max(spread.high, 0), position),
                    xytext=(4, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
        axis.set_yticks(range(len(members)), [row.name for row in members], fontsize=8)
        axis.invert_yaxis()
        axis.margins(x=0.08)
        axis.set_title(name, loc="left", fontsize=9, fontweight="bold")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False, fontsize=8)
    axes[-1, 0].set_xlabel("microseconds a call above the operations that must run")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
