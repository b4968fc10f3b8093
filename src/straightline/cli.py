"""The command `straightline`. Each subcommand's module is imported when the command is given."""

import argparse
import sys
from collections.abc import Callable, Sequence

from straightline import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = _parser().parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="straightline", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"straightline {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")

    doctor = commands.add_parser("doctor", help="what is in force, what is degraded, what to do")
    doctor.add_argument("--json", action="store_true", help="the same as JSON")
    doctor.set_defaults(run=_doctor)

    demo = commands.add_parser("demo", help="compile a small model and show what runs")
    demo.set_defaults(run=_demo)

    options = commands.add_parser("options", help="describe every option")
    options.set_defaults(run=_options)
    return parser


def _doctor(arguments: argparse.Namespace) -> int:
    from straightline.report.doctor import doctor

    diagnosis = doctor()
    print(diagnosis.json() if arguments.json else diagnosis)
    return 1 if diagnosis.findings else 0


def _demo(arguments: argparse.Namespace) -> int:
    from straightline.demo import main as demo

    return demo()


def _options(arguments: argparse.Namespace) -> int:
    from straightline.config import options_page

    sys.stdout.write(options_page())
    return 0


_DESCRIPTION = "A PyTorch compiler that decides everything once and emits straight-line code."
