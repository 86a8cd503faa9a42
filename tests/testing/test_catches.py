"""The page that says what catches what is what was recorded."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORKS = "ignore:This process .* is multi-threaded:DeprecationWarning"  # where tests before have left threads

pytestmark = pytest.mark.filterwarnings(FORKS)  # the benchmark forks for each op


@pytest.fixture(scope="module")
def catches():
    spec = importlib.util.spec_from_file_location("catches", ROOT / "benchmarks" / "catches.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_recorded_results(catches):
    assert catches.document_of(catches.read_recorded(catches.RESULTS)) == catches.DOCUMENT.read_text(encoding="utf-8")


def test_what_is_caught_on_one_sample_is_caught(catches):
    outcomes = [{"status": status, "message": ""} for status in ("passed", "caught", "crashed")]

    assert "caught" == catches.worst(outcomes)["status"]


def test_a_failure_of_the_tool_is_caught(catches):
    assert "caught" == catches.run_isolated("sign_of_square", ["gradcheck"], "named")["gradcheck"]["status"]


def test_an_exception_of_the_op_is_a_crash(catches):
    assert "crashed" == catches.run_isolated("contract_few", ["gradcheck"], "named")["gradcheck"]["status"]


def test_an_honest_op_passes(catches):
    assert "passed" == catches.run_isolated("scaled_square", ["gradcheck"], "named")["gradcheck"]["status"]
