"""Vector math: the functions of the IR expanded into operations that every target has."""
