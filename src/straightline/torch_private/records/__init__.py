"""One record per torch minor: what straightline uses of torch's private side, as it stands there.

A record is written by `scripts/record_torch.py`, never by hand; `docs/torch-versions.md` says when.
"""
