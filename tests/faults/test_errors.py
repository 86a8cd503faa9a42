"""The check `errors` fails a call on bad inputs that raises nothing, another class, or another text."""

import torch
from tables import each
from verdicts import verdict

from custom_autograd.schema.samples import Sample


def result_of(op, error=ValueError, match="2 dimensions"):
    samples = [Sample(torch.ones(4, 3)), Sample(torch.ones(4)).raises(error, match=match)]
    return verdict("errors", samples)(op)


def refuses(x):
    if x.dim() != 2:
        raise ValueError(f"'x' is to have 2 dimensions, it has {x.dim()}")
    return x * 2


def takes_everything(x):
    return x * 2


def refuses_otherwise(x):
    if x.dim() != 2:
        raise IndexError("dimension out of range")
    return x * 2


def refuses_values(x):
    if not bool((x.detach().numpy() != 1).any()):
        raise ValueError("all of 'x' is 1, in 2 dimensions")
    return x * 2


def test_declared_error_passes():
    assert "passed" == result_of(refuses).status


@each(
    ("op", "message"),
    [
        (takes_everything, "expected ValueError that contains '2 dimensions', found no error"),
        (
            refuses_otherwise,
            "expected ValueError that contains '2 dimensions', found IndexError: dimension out of range",
        ),
    ],
)
def test_anything_else_fails(op, message):
    result = result_of(op)

    assert ("failed", message) == (result.status, result.message)


def test_other_text_fails():
    message = result_of(refuses, match="3 dimensions").message

    assert (
        "expected ValueError that contains '3 dimensions', found ValueError: 'x' is to have 2 dimensions, it has 1"
        == message
    )


def test_error_about_values_that_fake_tensors_do_not_show_is_no_failure():
    result = result_of(refuses_values)

    assert "passed" == result.status
    assert "not checked: fake tensors do not show the error: " in result.message


def test_good_samples_are_left_to_the_other_checks():
    result = verdict("errors", [Sample(torch.ones(4, 3))])(refuses)

    assert ("skipped", "no sample is declared to raise (Sample.raises)") == (result.status, result.message)


def test_a_sample_that_raises_on_another_device_is_not_called():
    calls = []
    sample = Sample(torch.ones(4, 3)).raises(ValueError, on=("cuda", "xpu"))
    result = verdict("errors", [sample])(calls.append)

    assert ("skipped", "it raises on cuda and xpu only, and its result on cpu is undefined") == (
        result.status,
        result.message,
    )
    assert [] == calls


def test_a_sample_that_raises_on_this_device_is_called():
    result = verdict("errors", [Sample(torch.ones(3)).raises(ValueError, on="cpu")])(refuses)

    assert "passed" == result.status
