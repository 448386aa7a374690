"""The sizes of the models of Table 3, beside the paper's own figures."""

import pytest

import table3


@pytest.mark.parametrize("row, change, paper", table3.ROWS)
def test_the_number_of_parameters_is_that_of_the_formulas(row, change, paper):
    """Table 3: equal to a formula written from the sections, for a shared vocabulary of 37,000."""
    assert table3.counted(**table3.BASE | change) == table3.written_from_the_paper(**table3.BASE | change)


def test_the_numbers_of_parameters_beside_those_of_the_paper():
    """Table 3, in millions. Ours are smaller by 1.2 to 4.2, and larger by 1.2 for the big model.

    The paper states the vocabulary as "about 37,000" and nowhere says how it counts.
    """
    ours = {row: table3.written_from_the_paper(**table3.BASE | change) / 1e6 for row, change, _ in table3.ROWS}
    paper = {row: figure for row, _, figure in table3.ROWS if figure}
    assert {row: (round(ours[row], 1), paper[row]) for row in paper} == {
        "base": (63.0, 65), "C, N=2": (33.6, 36), "C, N=4": (48.3, 50), "C, N=8": (77.7, 80),
        "C, d_model=256": (26.8, 28), "C, d_model=1024": (163.8, 168), "C, d_ff=1024": (50.5, 53),
        "C, d_ff=4096": (88.2, 90), "big": (214.2, 213)}
    differences = [ours[row] - paper[row] for row in paper]
    assert round(min(differences), 1) == -4.2 and round(max(differences), 1) == 1.2
