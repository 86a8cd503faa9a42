"""The ops that the how-to pages declare pass the quick checks: what is copied from a page is right."""

import json
import subprocess
import sys

import pytest
from test_documents import ROOT, blocks_of

pytestmark = pytest.mark.slow  # one process runs all pages; test_documents.py runs each by itself

SAMPLES = {
    "batch-with-vmap": {
        "outer": "[Sample(make(3), make(2))]",
        "matvec": "[Sample(make(3, 2), make(2))]",
    },
    "choose-argument-types": {
        "norm": "[Sample(make(4)), Sample(make(4), 2.0, Reduction.MEAN)]",
        "activate": "[Sample(make(4), torch.tanh, 2.0)]",
        "add": "[Sample(make(4), make(4), scale=2.0)]",
    },
    "compile-once-for-all-sizes": {
        "first": "[Sample(make(4), 2)]",
        "scaled": "[Sample(make(4), make())]",
    },
    "compile-and-export": {"row_sums": "[Sample(make(2, 3))]"},
    "inspect-a-graph": {"normalise": "[Sample(make(2, 3, low=0.5, high=2.0), make(3))]"},
    "make-calls-fast": {"double": "[Sample(make(3))]"},
    "migrate-from-autograd-function": {"swish": "[Sample(make(3), 2.0)]"},
    "migrate-from-torch-library": {"cube": "[Sample(make(3))]", "scaled_square": "[Sample(make(3), 2.0)]"},
    "mutate-inputs": {"accumulate_": "[Sample(make(3), make(3))]"},
    "save-and-load": {"cube": "[Sample(make(4))]"},
    "save-what-a-rule-needs": {
        "exponential": "[Sample(make(3))]",
        "normalise": "[Sample(make(2, 3, low=0.5, high=2.0))]",
        "total": "[Sample(make(2, 3))]",
        "scale": "[Sample(make(5, 3), make(3))]",
    },
    "set-an-autocast-policy": {
        "scaled_product": "[Sample(make(2, 3), make(3, 4), make(4))]",
        "add_": "[Sample(make(3), make(3))]",
        "variance": "[Sample(make(2, 3), make(3))]",
    },
    "use-forward-mode": {"cube": "[Sample(make(3))]", "product": "[Sample(make(3), make(3))]"},
    "use-tensor-subclasses": {
        "absolute": "[Sample(make(4, 3))]",
        "damp": "[Sample(make(4, 3), make(3))]",
        "softmax": "[Sample(make(4, 3))]",
    },
    "use-variants": {
        "scaled": "[Sample(make(3, 4), 2.0)]",
        "row": "[Sample(make(3, 4), 1)]",
        "padded": "[Sample(make(3, 4), 2), Sample(make(3, 4), 3)]",
    },
    "write-a-backward": {
        "product": "[Sample(make(3), make(3))]",
        "sum_and_mean": "[Sample(make(4))]",
        "cube": "[Sample(make(3))]",
    },
    "pass-containers": {"step": None},  # the page registers samples
}

# Runs the blocks of each page, given on standard input, then checks its ops, and reports what fails.
RUNNER = """
import contextlib, io, json, sys
problems = {}
for page, blocks, samples in json.load(sys.stdin):
    names = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks:
            exec(block, names)
    exec("from custom_autograd import Sample", names)
    for op, text in samples.items():
        given = None if text is None else eval("lambda make: " + text, names)
        report = names[op].check(given, checks="quick", raise_on_failure=False)
        failed = [f"{one.check}: {one.message}" for one in report.results if one.status in ("failed", "error")]
        problems[f"{page}: {op}"] = failed
json.dump(problems, sys.stdout)
"""


@pytest.fixture(scope="module")
def problems():
    pages = {page: blocks_of((ROOT / "docs/how-to" / f"{page}.md").read_text(encoding="utf-8")) for page in SAMPLES}
    given = json.dumps([(page, [code for _, code, _ in blocks], SAMPLES[page]) for page, blocks in pages.items()])
    found = subprocess.run([sys.executable, "-c", RUNNER], input=given, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.mark.parametrize("op", [f"{page}: {op}" for page, ops in SAMPLES.items() for op in ops])
def test_an_op_of_a_how_to_page_passes_the_quick_checks(problems, op):
    assert [] == problems[op]
