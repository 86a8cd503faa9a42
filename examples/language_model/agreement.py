"""Do two trainings show the same thing? Three questions, each with a tolerance that has a reason.

The runs do the same mathematics in float32, in a different order of operations.
One unit of rounding is 6e-8 of a value; a step chains some hundreds of operations, and partly cancels.

    gradients   of the first step, before anything could grow: relative to each parameter's norm.
    early       the losses of the first steps: rounding has passed through a few updates only.
    curve       the whole curve, averaged over a window: training amplifies a difference in the last digit
                from step to step, because an update of Adam divides by small second moments.

A wrong gradient fails the first question at once: an error of one percent is a thousand times the tolerance.
"""

from dataclasses import dataclass

from training import Run

GRADIENTS = 1e-5  # relative; 160 roundings of 6e-8, all in one direction
EARLY = 1e-4  # nats, of losses of 3 to 6 nats, which float32 resolves to 5e-7
EARLY_STEPS = 20
CURVE = 0.01  # nats; rounding alone has grown to 3e-4 in single losses after 500 steps
WINDOW = 25  # steps that are averaged


@dataclass(frozen=True)
class Finding:
    """One comparison: the largest difference, where it is, and what was allowed."""

    run: str
    question: str
    difference: float
    tolerance: float
    where: str

    @property
    def holds(self) -> bool:
        """Not a number does not hold."""
        return self.difference <= self.tolerance


def smooth(losses: list[float]) -> list[float]:
    """The mean over each window of steps; over what there is where the run is shorter."""
    window = min(WINDOW, len(losses))
    return [sum(losses[end - window : end]) / window for end in range(window, len(losses) + 1)]


def largest_difference(expected: list[float], found: list[float]) -> tuple[float, int]:
    """The largest absolute difference of two curves, and its index; not a number counts as infinite."""
    pairs = zip(expected, found, strict=True)
    differences = [abs(a - b) if a == a and b == b else float("inf") for a, b in pairs]
    return max(differences), differences.index(max(differences))


def compare_gradients(reference: Run, run: Run) -> Finding:
    """The gradients of the first step, parameter by parameter."""
    errors = {
        name: ((run.first_gradients[name] - expected).norm() / expected.norm()).item()
        for name, expected in reference.first_gradients.items()
    }
    worst = max(errors, key=lambda name: errors[name] if errors[name] == errors[name] else float("inf"))
    return Finding(run.name, "gradients", errors[worst], GRADIENTS, worst)


def compare(reference: Run, run: Run) -> list[Finding]:
    """The answers to the three questions."""
    early, early_step = largest_difference(reference.losses[:EARLY_STEPS], run.losses[:EARLY_STEPS])
    curve, curve_step = largest_difference(smooth(reference.losses), smooth(run.losses))
    return [
        compare_gradients(reference, run),
        Finding(run.name, "early losses", early, EARLY, f"step {early_step}"),
        Finding(run.name, "smoothed curve", curve, CURVE, f"step {curve_step}"),
    ]
