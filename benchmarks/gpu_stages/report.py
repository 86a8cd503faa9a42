"""The report of a run in Markdown, from the lines of its results: python benchmarks/gpu_stages/report.py FOLDER."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside this file
sys.path.insert(0, str(Path(__file__).parents[1]))

from recorded_runs import table
from stage import RUN, read, write_whole
from targets import judged

Line = Mapping[str, Any]


def unreached(lines: list[Line]) -> dict[str, list[str]]:
    """Return by stage what was planned and has no result."""
    done = {(line["stage"], line["name"]) for line in lines if "name" in line}
    planned = [(line["stage"], name) for line in lines for name in line.get("planned", ())]
    found: dict[str, list[str]] = {}
    for stage, name in dict.fromkeys(planned):
        if (stage, name) not in done and not has_problem(lines, stage, name):
            found.setdefault(stage, []).append(name)
    return found


def has_problem(lines: list[Line], stage: str, name: str) -> bool:
    """Return True if a line says why a figure is missing: its first call, its agreement or its case failed."""
    case, _, rest = name.partition(": ")
    starts = tuple(f"{case}: {part}" for part in (rest.partition(": ")[0] + ": ", "measuring"))
    return any("problem" in line and line["stage"] == stage and line["name"].startswith(starts) for line in lines)


def facts_of_run(lines: list[Line]) -> Line:
    """Return the line about the whole run; an empty one for results of before there was one."""
    return next((line for line in lines if line["stage"] == RUN), {})


def stages(lines: list[Line]) -> Iterator[str]:
    """Yield how each stage ended."""
    rows = [[line["stage"], line["ended"], f"{line['seconds']:.0f} s"] for line in lines if "ended" in line]
    yield "## Stages\n"
    yield table(["stage", "end", "time"], rows)


def probes(lines: list[Line]) -> Iterator[str]:
    """Yield what each probe found."""
    for stage in ("trial", "exported"):
        own = [line for line in lines if line["stage"] == stage and "how" in line]
        if not own:
            continue
        yield f"\n## {stage.capitalize()}\n"
        for line in own:
            facts = line.get("found") or " / ".join(line.get("last lines", ())[-3:])
            yield f"- {line['name']}: **{line['how']}** ({line['seconds']} s): {str(facts)[:600]}"


def outcomes(lines: list[Line]) -> Iterator[str]:
    """Yield what tests and checks came to."""
    for stage in ("tests", "checks"):
        own = [line for line in lines if line["stage"] == stage and "how" in line]
        if not own:
            continue
        yield f"\n## {stage.capitalize()}\n"
        rows = [[line["name"], line["how"], counts(line), str(line.get("findings") or "")] for line in own]
        yield table([stage, "end", "counts", "findings"], rows)
        yield from (f"- {failed[:250]}" for line in own for failed in line.get("failed", ())[:40])


def counts(line: Line) -> str:
    """Return counts that are not zero."""
    return ", ".join(f"{count} {name}" for name, count in line.get("counts", {}).items() if count)


def calls(lines: list[Line]) -> Iterator[str]:
    """Yield what calls cost."""
    own = [line for line in lines if line["stage"] == "calls" and "microseconds" in line]
    if own:
        yield "\n## Calls\n"
        heads = ["call", "shortest, µs", "median, µs", "/ torch.mul", "/ C++"]
        yield table(heads, [[line["name"], *(shown(line, key) for key in CALL_FACTS)] for line in own])


CALL_FACTS = ("microseconds", "median", "/ torch.mul", "/ C++")
GALLERY_FACTS = ("mode", "callable", "median", "op / it", "of a copy", "TFLOP/s")


def gallery(lines: list[Line]) -> Iterator[str]:
    """Yield the figures of the gallery, by case, and what did not run or disagrees."""
    own = [line for line in lines if line["stage"] == "gallery"]
    figures = sorted((line for line in own if "microseconds" in line), key=lambda line: (line["case"], line["mode"]))
    if own:
        yield "\n## Gallery\n"
        heads = ["case", "mode", "callable", "median, µs", "op / it", "of a copy", "TFLOP/s"]
        yield table(heads, [[line["case"], *(shown(line, key) for key in GALLERY_FACTS)] for line in figures])
        yield ""
        yield from (f"- {line['name']}: {line['problem']}" for line in own if "problem" in line)
        failed = [line for line in own if line.get("how", "ok") != "ok"]
        yield from (f"- {line['name']}: {line['how']}: {' / '.join(line['last lines'][-2:])}" for line in failed)


def tuned(lines: list[Line]) -> Iterator[str]:
    """Yield the times of the candidates of each kernel."""
    own = [line for line in lines if line["stage"] == "tune" and "kernel" in line]
    if own:
        yield "\n## Candidates of kernels\n"
        rows = [[line["kernel"], str(line["launch"]), *(shown(line, key) for key in TUNE_FACTS)] for line in own]
        yield table(
            ["kernel", "sizes, warps, stages", "case", "default", "forward, µs", "backward, µs", "problem"], rows
        )


TUNE_FACTS = ("case", "is default", "forward", "backward", "problem")


def shown(line: Line, key: str) -> str:
    """Return a fact of a line as text."""
    return str(line.get(key, ""))


def targets(lines: list[Line]) -> Iterator[str]:
    """Yield each target beside the worst and the best figure."""
    rows, asked = [], facts_of_run(lines).get("stages")
    for target, found in judged([dict(line) for line in lines]):
        if asked is not None and target.where["stage"] not in asked:
            continue
        figures = sorted((line[target.fact] for line, _ in found), reverse=not target.is_least)
        held = sum(holds for _, holds in found)
        verdict = "not measured" if not found else "holds" if held == len(found) else f"MISSED by {len(found) - held}"
        limit = f"{'>=' if target.is_least else '<='} {target.limit}"
        spread = f"{figures[0]} .. {figures[-1]}" if figures else ""
        rows.append([target.about, limit, spread, f"{verdict} of {len(found)}" if "MISSED" in verdict else verdict])
    yield "\n## Targets\n"
    yield table(["target", "limit", "worst .. best", "verdict"], rows)


def missing(lines: list[Line]) -> Iterator[str]:
    """Yield what was not reached."""
    yield "\n## Not reached\n"
    found = unreached(lines)
    for stage, names in found.items():
        yield f"- {stage}: {len(names)}: {'; '.join(names[:12])}{' ...' if len(names) > 12 else ''}"
    if not found:
        yield "Everything that was planned has a result."


def report(lines: list[Line]) -> str:
    """Return the whole report."""
    parts = (stages, targets, missing, probes, outcomes, calls, gallery, tuned)
    device = facts_of_run(lines).get("device", "cuda")
    title = "What a run on a GPU found" if device.startswith("cuda") else f"What a rehearsal on {device} found"
    return f"# {title}\n\n" + "\n".join(line for part in parts for line in part(lines)) + "\n"


def write_report(out: Path) -> str:
    """Write the report beside the results, and return it."""
    text = report(list(read(out)))
    write_whole(out / "report.md", text)
    return text


if __name__ == "__main__":
    print(write_report(Path(sys.argv[1])))
