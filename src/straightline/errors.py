"""Every error straightline raises, and the one way they are worded.

A message has three parts, in this order: what happened, where in the user's program, what to do.
"""


def explain(what: str, where: str | None = None, todo: str | None = None) -> str:
    """The text of an error or a warning; `where` is `file:line` in the user's program."""
    lines = [what]
    if where:
        lines.append(f"  at {where}")
    if todo:
        lines.append(f"  what to do: {todo}")
    return "\n".join(lines)


class StraightlineError(Exception):
    """The base of all of straightline's errors.

    `what`, `where` and `todo` are the parts of the message, for programs that want them apart.
    """

    def __init__(self, what: str, *, where: str | None = None, todo: str | None = None) -> None:
        super().__init__(explain(what, where, todo))
        self.what = what
        self.where = where
        self.todo = todo


class OptionError(StraightlineError, ValueError):
    """An option, a mode or an argument of the public interface is not one we know."""


class Unsupported(StraightlineError):
    """Something straightline does not compile itself: the caller falls back, and says so."""


class CompilerBug(StraightlineError):
    """straightline broke one of its own invariants: never the user's fault."""


# What to do about a value that a higher derivative needs and that was not kept.
SAVE_IT = 'compile with the option double_backward="save", which keeps the value'


class DoubleBackwardError(StraightlineError, RuntimeError):
    """A second-order gradient needs a value that is no longer there."""


class TangentError(StraightlineError, RuntimeError):
    """A gradient that came into a compiled backward is not what the forward promised."""
