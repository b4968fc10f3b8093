"""All rules there are."""

from __future__ import annotations

from straightline.lower import creation, pointwise, rearrange, reduction, views
from straightline.lower.table import Table

VIEWS = views.VIEWS

RULES = Table()
for _table in (pointwise.RULES, rearrange.RULES, creation.RULES, reduction.RULES):
    assert not RULES.keys() & _table.keys()
    RULES.update(_table)
