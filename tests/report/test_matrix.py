"""The op x check matrix: which columns stand where, and what each cell says."""

from custom_autograd.verification.report import Result
from custom_autograd.verification.report.html import make_matrix


def result(op, check, status="passed", *, group="", accepted=""):
    return Result(op, check, "small", status, group=group, accepted=accepted)


def kinds(matrix, op):
    (row,) = [row for row in matrix.rows if row.op == op]
    return [cell.kind for cell in row.cells]


def test_columns_stand_by_group_in_the_order_of_the_run():
    results = [
        result("f", "schema", group="values"),
        result("f", "compile", group="compiler"),
        result("f", "bounds", group="values"),
        result("f", "plain"),
        result("f", "jit", group="compiler"),
    ]

    matrix = make_matrix(results)

    assert ["schema", "bounds", "compile", "jit", "plain"] == [column.check for column in matrix.columns]
    assert (("values", 2), ("compiler", 2), ("other", 1)) == matrix.groups


def test_a_check_that_was_not_run_on_an_op_leaves_an_absent_cell():
    matrix = make_matrix([result("f", "fake"), result("g", "vmap")])

    assert ["passed", "absent"] == kinds(matrix, "f")
    assert ["absent", "passed"] == kinds(matrix, "g")


def test_an_op_that_was_not_checked_is_skipped_in_every_cell():
    matrix = make_matrix([result("f", "fake"), result("f", "vmap"), result("g", "all checks", "skipped")])

    assert ["fake", "vmap"] == [column.check for column in matrix.columns]
    assert ["skipped", "skipped"] == kinds(matrix, "g")


def test_a_cell_says_accepted_where_nothing_worse_is_found():
    accepted = result("f", "fake", "skipped", accepted="known")

    assert ["accepted"] == kinds(make_matrix([accepted, result("f", "fake")]), "f")
    assert ["failed"] == kinds(make_matrix([accepted, result("f", "fake", "failed")]), "f")


def test_a_cell_with_findings_leads_to_the_first_of_them():
    failed = result("g", "fake", "failed")
    matrix = make_matrix([result("f", "fake"), result("f", "fake", "error"), failed, failed])

    assert ["finding0", "finding1"] == [row.cells[0].anchor for row in matrix.rows]
    assert "1 passed, 1 error" == matrix.rows[0].cells[0].title
