"""The figures in the prose of README.md and docs/ are recorded in benchmarks/results, or listed here with their source.

Tables of figures are made from the records; tests/measuring, tests/testing and tests/test_torch_versions.py say so.
"""

import ast
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
FIGURE = re.compile(
    r"(?<![\d.])0\.\d+\b(?!\.\d)|\b\d+ of (?:\d+|them)\b|\b\d+ (?:faults|cells|nestings)\b"
    r"|\b[\d.]+ (?:µs|ms|s|%)(?!\w)|(?:\d|twice|half|third|quarter)(?: times)? (?:faster|slower|as (?:fast|long))\b"
)
CODE = re.compile(r"^ *```.*?^ *```|^\|.*?$|`[^`]*`|\]\([^)]*\)", re.M | re.S)


def recorded(*parts: str):
    return json.loads((ROOT / "benchmarks" / "results").joinpath(*parts).read_text(encoding="utf-8"))


def ratios(torch: str) -> list[str]:
    """What a call by name takes, relative to torch.library: without gradients, with them, and with a backward."""
    found = {
        row["mode"]: row["ratio"] for row in recorded("overhead-cpu", f"{torch}.json")["ratios"] if is_by_name(row)
    }
    return [f"{found[mode]:.2f}" for mode in ("no grad", "forward", "forward + backward")]


def is_by_name(row) -> bool:
    return (row["ours"], row["peer"]) == ("by name", "torch.library")


def caught(tool: str) -> int:
    return sum(row["outcomes"][tool]["status"] == "caught" for row in faults())


def faults() -> list:
    """The rows of wrong ops; the others are of honest ones."""
    return [row for row in recorded("catches", "2.15.0.json")["rows"] if row["check"]]


def held_out() -> str:
    """How many of the faults that were held out the default check found at the first look: its test has the figures."""
    test = ast.parse((ROOT / "tests" / "testing" / "test_unseen.py").read_text(encoding="utf-8"))
    (sets,) = (one.value for one in test.body if isinstance(one, ast.Assign) and one.targets[0].id == "HELD_OUT")
    found, planted = map(sum, zip(*ast.literal_eval(sets), strict=True))
    return f"{found} of {planted}"


def held(table: str, subject: str) -> int:
    return recorded("torch-versions", "3.11", "2.15.0.json")[table][subject]["held"]


def on_gpu(target: str) -> str:
    """The worst and the best figure of a target of the recorded run on a GPU, in ascending order."""
    report = ROOT / "benchmarks" / "results" / "gpu-h100-80gb-hbm3" / "report.md"
    _, rest = report.read_text(encoding="utf-8").split(f"| {target} | ")
    worst_and_best = rest.split(" | ")[1].split(" .. ")
    return " to ".join(f"{figure:.2f}" for figure in sorted(map(float, worst_and_best)))


def share_of_older(peer: str) -> str:
    """What a call without gradients takes with torch 2.15, relative to 2.13."""
    new, old = (
        recorded("overhead-cpu", f"{torch}.json")["timings"][f"{peer} | no grad"]["minimum"]
        for torch in ("2.15.0", "2.13.0")
    )
    return f"{new / old:.2f}"


def recorded_sentences() -> dict[str, list[str]]:
    """What each page says of what is recorded."""
    new, old = ratios("2.15.0"), ratios("2.13.0")
    all_cells = recorded("torch-versions", "3.11", "2.15.0.json")["database"]["custom_autograd"]["all"]
    return {
        "README.md": [
            f"a call takes {new[0]} of the time of `torch.library.custom_op` without gradients, {new[1]} with "
            f"gradients, and {new[2]} forward and backward with PyTorch 2.15 (2.13: {old[0]}, {old[1]} and {old[2]})",
            f"Of {len(faults())} faults planted in custom ops, `torch.autograd.gradcheck` finds {caught('gradcheck')} "
            f"and `torch.library.opcheck` finds {caught('opcheck')}; [`check` finds all {caught('check')}]",
            f"they give {all_cells} cells.\n  {held('database', 'torch.library')} of them pass with "
            f"`torch.library.custom_op`, and all {held('database', 'custom_autograd')} pass with `custom_autograd`",
            f"only {held('nestings', 'torch.autograd.Function')} of {held('nestings', 'plain operations')} nestings of "
            f"two transforms work; with `custom_autograd` all {held('nestings', 'custom_autograd')} do",
            f"all {held('database', 'custom_autograd')} cells pass on PyTorch 2.11 to 2.15",
            f"{held_out()} realistic faults that were held out from its development",
        ],
        "docs/index.md": [
            f"has {all_cells} cases: [{held('database', 'torch.library')} pass with `torch.library.custom_op`, and all "
            f"{held('database', 'custom_autograd')} with `custom_autograd`]",
            f"finds each of {caught('check')} faults",
            f"{held_out()} that were held out from its development",
            f"takes [{new[0]} of the time of `torch.library.custom_op`](explanation/what-a-call-costs.md) with PyTorch "
            f"2.15, and {old[0]} with 2.13",
        ],
        "docs/explanation/running-on-a-gpu.md": [
            f"attention in bfloat16 takes {on_gpu('attention, forward / SDPA, flash')} of the time of PyTorch's flash "
            f"backend forward, and {on_gpu('attention, backward / SDPA, flash')} backward; grouped products take "
            f"{on_gpu('grouped products, backward / torch._grouped_mm')} of PyTorch's own",
        ],
        "docs/explanation/what-a-call-costs.md": [
            f"a call of `torch.library` takes {share_of_older('torch.library')} of its time with 2.13, and one of "
            f"`autograd.Function` with `forward(ctx, ...)` {share_of_older('Function, forward(ctx)')}",
            *(
                f"{recorded('overhead-cpu', f'{torch}.json')['import']['milliseconds']:.0f} ms with PyTorch {torch}"
                for torch in ("2.15.0", "2.13.0")
            ),
        ],
        "docs/explanation/what-catches-what.md": [f"{len(faults())} faults are planted"],
        "docs/explanation/what-torch-gets-wrong.md": [f"{len(faults())} faults, and which"],
    }


H100 = "report.md of the run on a GPU, by size"
OTHERS = {
    "docs/explanation/kernel-sources.md": {"first loaded in another process, which takes 0.3 s": "commit d8ac81d"},
    "docs/explanation/running-on-a-gpu.md": {
        "reach 0.88 to 1.00 of a copy's bandwidth": H100,
        "(to 1 %, and 2.4 % in one case)": H100,
        "(its backward is 5 to 6 % faster)": H100,
        "attention takes 2 to 6 times as long as compiled PyTorch": H100,
    },
    "docs/explanation/what-a-call-costs.md": {},
    "docs/how-to/adopt-a-codebase.md": {"13 of 45 Functions (29 %) convert unaided": "the table above it"},
    "docs/how-to/make-calls-fast.md": {"takes 2.5 µs more per call": "commit 0b62bb9"},
    "docs/how-to/migrate-from-torch-library.md": {
        "torchao 0.18": "a version",
        "nvalchemi-toolkit-ops 0.5": "a version",
    },
    "docs/reference/kernel-header.md": {"which takes twice as long": "commit f16b67e"},
}
"""Page -> sentence -> where its figures come from, if no record gives them."""


def test_figures_are_the_recorded_ones():
    said = recorded_sentences()
    unknown = {}
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        sentences = [*said.pop(page, ()), *OTHERS.get(page, ())]
        assert [] == [sentence for sentence in sentences if sentence not in text], page
        for sentence in sentences:
            text = text.replace(sentence, "")
        unknown[page] = FIGURE.findall(CODE.sub("", text))

    assert {} == said
    assert {} == {page: figures for page, figures in unknown.items() if figures}, "add them to a record or to OTHERS"
