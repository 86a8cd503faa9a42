"""Runs the Python blocks of documents, each document in a process of its own that is forked from one with torch loaded.

A request is a line of JSON on standard input: the path of a document, and its blocks as pairs of the line before the
code and the code. The answer is a line on standard output: what each block printed, or the traceback of what it raised.

Only imports are done before the fork: nothing is computed, so there are no threads that a child would miss.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import traceback
import warnings

import torch

import custom_autograd

HEAVY = (
    "torch._dynamo",
    "torch._functorch.aot_autograd",
    "torch._inductor.compile_fx",
    "torch.export",
    "torch.testing",
    "torch.testing._internal.optests",
    "numpy",
)
"""What most documents would import again: it is imported once."""


def run(path: str, blocks: list[tuple[int, str]]) -> list[str]:
    """What each block prints; line numbers are those of the document."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "`torch.jit.script` is (deprecated|not supported)")  # torch's first forward mode
    warnings.filterwarnings("ignore", ".*should not be instantiated")  # torch's own, when Dynamo traces a Function
    warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is deprecated")  # torch's own, decomposing
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")  # torch 2.15, opcheck
    names: dict[str, object] = {"__name__": "__main__", "__file__": path}
    printed = []
    for line, code in blocks:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            exec(compile("\n" * line + code, path, "exec"), names)  # a document is code of ours
        printed.append(text.getvalue())
    return printed


def answer(path: str, blocks: list[tuple[int, str]]) -> dict[str, object]:
    """What is reported of a document."""
    try:
        return {"printed": run(path, blocks)}
    except BaseException:  # noqa: BLE001 - whatever a block raises is its answer
        return {"error": traceback.format_exc()}


def answer_in_a_child(request: str) -> str:
    """The answer of a forked process, as a line of JSON; that it died, where it did not answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w", encoding="utf-8") as pipe:
            pipe.write(json.dumps(answer(*json.loads(request))))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text or json.dumps({"error": f"the process ended with status {status}"})


def main() -> None:
    """Answers until standard input ends."""
    assert custom_autograd.check  # loads what verifies
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in HEAVY:
            importlib.import_module(name)
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a block prints past sys.stdout does not come between the answers
    for request in sys.stdin:
        answers.write(answer_in_a_child(request) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
