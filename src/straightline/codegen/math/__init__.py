"""Vector math: the functions of the IR expanded into operations that every target has."""

from straightline.codegen.math.expand import expand, expand_kernel, supported

__all__ = ["expand", "expand_kernel", "supported"]
