"""The tests are finished when they notice every wrong line of mutants.py, and nearly every small change."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mutants import MUTANTS

TESTS = Path(__file__).parent


def test_the_list_is_long_and_fits_the_code():
    """Each right text stands once in its file."""
    assert len(MUTANTS) >= 40 and len({name for name, *_ in MUTANTS}) == len(MUTANTS)
    sources = {file: (TESTS.parent / file).read_text(encoding="utf-8") for _, file, _, _ in MUTANTS}
    for name, file, right, wrong in MUTANTS:
        assert sources[file].count(right) == 1, f"{name}: its text is not found once in {file}"
        assert right != wrong, name


def test_the_report_of_the_automatic_pass_is_whole():
    """At least 95 % killed, and every survivor with its reason."""
    report = (TESTS / "mutation_report.md").read_text(encoding="utf-8")
    total, killed = map(int, re.search(r"^\| all \| (\d+) \| (\d+) \|", report, re.MULTILINE).groups())
    survivors = [line for line in report.split("## Survivors")[1].split("##")[0].splitlines() if line.startswith("| `")]
    assert total > 500 and killed / total >= 0.95
    assert len(survivors) == total - killed
    assert "not yet explained" not in report and all(len(line.split(" | ")[-1]) > 12 for line in survivors)


@pytest.mark.slow
def test_every_wrong_line_is_killed(tmp_path):
    found = tmp_path / "found.json"
    done = subprocess.run([sys.executable, TESTS / "mutate.py", "--kept", "--jobs", "2", "--json", found],
                          env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert found.exists(), done.stdout + done.stderr
    results = json.loads(found.read_text(encoding="utf-8"))
    assert len(results) == len(MUTANTS)
    assert [name for name, killed, _ in results if not killed] == []
    assert done.returncode == 0
    assert not [name for name, _, by in results if by == "the tests cannot be loaded"]


@pytest.mark.slow
def test_a_change_that_changes_nothing_survives():
    """The runner can tell: without a wrong line no test fails."""
    harmless = ("import mutate\n"
                "source = (mutate.ROOT / 'implementation.py').read_text(encoding='utf-8')\n"
                "(_, killed, by), = mutate.run_mutants([('nothing', 'implementation.py', 1, source + '# more')], 1)\n"
                "assert not killed, by\n")
    subprocess.run([sys.executable, "-c", harmless], cwd=TESTS, check=True)
