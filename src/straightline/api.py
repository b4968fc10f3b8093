"""The public entry points."""
