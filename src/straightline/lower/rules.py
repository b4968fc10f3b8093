"""All rules there are."""

from __future__ import annotations

from straightline.lower import (
    activation,
    binary,
    channels,
    choice,
    creation,
    indexing,
    losses,
    normalisation,
    pointwise,
    rearrange,
    reduction,
    views,
)
from straightline.lower.table import Table

VIEWS = views.VIEWS

RULES = Table()
for _topic in (
    activation,
    binary,
    channels,
    choice,
    creation,
    indexing,
    losses,
    normalisation,
    pointwise,
    rearrange,
    reduction,
):
    assert not RULES.keys() & _topic.RULES.keys()
    RULES.update(_topic.RULES)
