"""Asks questions of a worker process that may crash or hang; the asker survives both."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Worker:
    """One process that answers JSON lines; a new one after a crash, a hang or `batch` answers."""

    def __init__(self, command: list[str], timeout: float, batch: int) -> None:
        self._command = command
        self._timeout = timeout
        self._batch = batch
        self._asked = 0
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer, or {"crash": what happened}."""
        if self._asked >= self._batch:
            self.close()
        process = self._started()
        self._asked += 1
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._crashed(process)
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(self._timeout):
                self.close()
                return {"crash": f"no answer after {self._timeout:g} s"}
        line = process.stdout.readline()
        if not line:
            return self._crashed(process)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None
        self._asked = 0

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        return self._process

    def _crashed(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        code = process.wait()
        self.close()
        return {"crash": signal.Signals(-code).name if code < 0 else f"exit status {code}"}


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: whatever else is printed goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
        replies.flush()
