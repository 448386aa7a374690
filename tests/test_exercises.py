"""The exercises and their grader: stubs, solutions, the catalogue, rates, safety, and the command line."""

import csv
import inspect
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import measure_grader
from measure_grader import EXERCISES, FILES, ROOT, grade_here, grade_text, named, solution_text, spliced

import checks
import classroom
import grade
import grading
import implementation
import make_stubs
import reference
import submission
from catalogue import CATALOGUE, candidates
from checks import parts_of
from hints import HINTS
from submission import execute


def definitions_of(path):
    names = {"__name__": path.stem}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return names


def run_grade(*arguments, cwd=ROOT, **options):
    return subprocess.run([sys.executable, str(EXERCISES / "grade.py"), *map(str, arguments)], cwd=cwd, text=True,
                          capture_output=True, **options)


# ------------------------------------------------------------------------------------------- stubs and solutions


@pytest.mark.parametrize("exercise", FILES)
def test_the_stub_is_what_its_solution_makes(exercise):
    stub = (EXERCISES / FILES[exercise]).read_text(encoding="utf-8")
    assert make_stubs.make_stub(solution_text(exercise)) == stub, "run python exercises/make_stubs.py"


@pytest.mark.parametrize("exercise", FILES)
def test_a_stub_holds_one_error_per_todo_and_nothing_of_the_answer(exercise):
    stub, solution = (EXERCISES / FILES[exercise]).read_text(encoding="utf-8"), solution_text(exercise)
    blocks = re.findall(r"# begin: (.+)\n((?:.*\n)*?) *# end\n", solution)
    assert len(blocks) == stub.count("raise NotImplementedError") == stub.count('NotImplementedError("TODO: ')
    assert len(stub.splitlines()) <= 110
    assert not re.search(r"# (begin|end)\b", stub)
    lines = {line.strip() for _, block in blocks for line in block.splitlines() if len(line.strip()) > 25}
    assert lines and not lines & {line.strip() for line in stub.splitlines()}


@pytest.mark.parametrize("exercise", FILES)
def test_a_solution_is_the_library_to_1e12(exercise):
    names = definitions_of(EXERCISES / "solutions" / FILES[exercise].replace("exercise_", "solution_"))
    for seed in range(3):
        for part in parts_of(exercise, seed):
            for check in part.checks:
                want = reference.expected(check.case, exercise)
                if want.error:
                    with pytest.raises(ValueError):
                        execute(check.case.request, names, check.case.arrays)
                    continue
                got = execute(check.case.request, names, check.case.arrays)
                for name, array in want.arrays.items():
                    size = max(1, np.abs(array).max(initial=0))
                    accuracy = 1e-12 if array.dtype != np.float32 else 1e-5
                    np.testing.assert_allclose(got[name], array, rtol=0, atol=accuracy * size)


@pytest.mark.parametrize("exercise", FILES)
def test_a_solution_has_the_library_s_names_constructors_and_methods(exercise):
    names = definitions_of(EXERCISES / "solutions" / FILES[exercise].replace("exercise_", "solution_"))
    for name in set(reference.WRITTEN[exercise]) & set(names) - {"shift_target"}:
        ours, theirs = names[name], getattr(implementation, name)
        if inspect.isclass(ours):
            assert inspect.signature(ours) == inspect.signature(theirs), name
            for method in {"forward", "backward", "encode", "decode", "split_heads", "merge_heads"} & set(vars(ours)):
                assert (list(inspect.signature(getattr(ours, method)).parameters)
                        == list(inspect.signature(getattr(theirs, method)).parameters)), f"{name}.{method}"
        else:
            assert inspect.signature(ours) == inspect.signature(theirs), name


@pytest.mark.parametrize("exercise", FILES)
def test_the_stub_is_not_started_and_the_solution_has_full_marks(exercise):
    result = grading.grade_file(exercise, EXERCISES / "solutions" / FILES[exercise].replace("exercise_", "solution_"))
    assert (result["status"], result["score"], result["bonus_score"]) == ("pass", 10, 4)
    assert (result["max_score"], result["max_bonus"]) == (10, 4)
    stub = grade_here(exercise, (EXERCISES / FILES[exercise]).read_text(encoding="utf-8"))
    assert (stub["status"], stub["score"], stub["bonus_score"]) == ("todo", 0, 0)
    assert all(row["state"] in ("todo", "waits") for row in stub["checks"])
    assert all("not started" in row["message"] for row in stub["checks"] if row["bonus"])


@pytest.mark.parametrize("body", ["pass", "return None", "return np.zeros((2, 3))", "return args[0]"])
@pytest.mark.parametrize("exercise", FILES)
def test_work_that_was_not_done_gets_no_points(exercise, body):
    stub = (EXERCISES / FILES[exercise]).read_text(encoding="utf-8")
    text = re.sub(r"raise NotImplementedError\(.*\)", body.replace("args[0]", "0"), stub)
    result = grade_here(exercise, text)
    assert result["status"] == "fail" and result["bonus_score"] == 0
    assert result["score"] <= (1 if exercise == 3 else 0)          # a table of the wrong shape raises ValueError, too


# --------------------------------------------------------------------------------------------------- the catalogue


def test_the_catalogue_is_large_and_every_entry_says_what_it_should():
    assert len(CATALOGUE) >= 60
    for exercise in FILES:
        assert sum(mistake.exercise == exercise for mistake in CATALOGUE.values()) >= 12
    for mistake in CATALOGUE.values():
        assert mistake.says and mistake.why.endswith((".", "...")) and mistake.source and mistake.spellings


@pytest.mark.parametrize("exercise", FILES)
def test_every_mistake_applies_to_the_library_is_seen_and_named_and_no_other_is(exercise):
    """Should this fail after a change to implementation.py, the texts in catalogue.py need the same change."""
    parts = parts_of(exercise, 0)
    for mistake in (m for m in CATALOGUE.values() if m.exercise == exercise):
        for changes in mistake.spellings:
            part, = [part for part in parts if all(where in part.code for where, _, _ in changes)]
            observed = [(check, reference.expected(check.case, exercise, changes)) for check in part.checks]
            assert None not in [outcome for _, outcome in observed], f"{mistake.id}: the library has no such line"
            found = reference.diagnose(exercise, observed, candidates(exercise, part.code))
            assert [m.id for m, _ in found or ()] == [mistake.id], mistake.id


def test_what_the_learner_writes_is_not_in_the_library_while_grading():
    for exercise in FILES:
        hidden = reference.hidden_names(exercise)
        text = reference.library_without_answers(exercise)
        assert set(reference.WRITTEN[exercise]) <= hidden
        for name in hidden:
            assert not re.search(rf"^(class|def) {name}\b", text, re.MULTILINE), name
    assert {"MultiHeadAttention", "EncoderBlock", "DecoderBlock", "Transformer"} <= reference.hidden_names(1)
    assert "MultiHeadAttention" not in reference.hidden_names(4)


# ------------------------------------------------------------------------------------- the rates, in this process


@pytest.mark.parametrize("exercise", FILES)
def test_mistakes_of_the_catalogue_as_files(exercise):
    seen = set()
    for name, number, text, ids in measure_grader.catalogue_submissions():
        if number == exercise and not ids & seen:                      # the first spelling; the rest with -m slow
            seen |= ids
            result = grade_here(exercise, text, 1)
            assert result["status"] == "fail" or result["bonus_score"] < result["max_bonus"], name
            assert named(result) == ids, name


@pytest.mark.parametrize("exercise", FILES)
def test_mistakes_that_share_no_code_with_the_catalogue(exercise):
    ours = [item for item in measure_grader.independent_submissions() if item[1] == exercise]
    assert len(ours) >= 12
    for name, _, text, ids in ours:
        result = grade_here(exercise, text, 2)
        assert named(result) == ids and measure_grader.rejected(result), name


def test_unknown_mistakes_are_rejected_without_a_name():
    ours = list(measure_grader.other_submissions("unknown"))
    assert len(ours) >= 20
    for name, exercise, text in ours:                                           # one draw; more of them with -m slow
        result = grade_here(exercise, text, 0)
        wrong = [row for row in result["checks"] if row["state"] == "wrong"]
        assert result["status"] == "fail" and not named(result), name
        assert any("Not a mistake I know" in row["message"] and "expected" in row["message"] for row in wrong), name


def test_right_answers_in_other_words_get_full_marks():
    ours = list(measure_grader.other_submissions("right"))
    assert len(ours) >= 12 and {exercise for _, exercise, _ in ours} == set(FILES)
    for seed in range(3):
        for name, exercise, text in ours:
            result = grade_here(exercise, text, seed)
            assert result["status"] == "pass", (name, [row["message"] for row in result["checks"] if not row["passed"]])


def test_two_mistakes_are_two_findings():
    both = [item for item in measure_grader.independent_submissions() if len(item[3]) == 2]
    assert len(both) >= 8 and {item[1] for item in both} == set(FILES)
    text = next(text for name, exercise, text, _ in both if exercise == 1 and name == "two_at_once")
    rows = [row for row in grade_here(1, text)["checks"] if len(row["misconceptions"]) == 2]
    assert rows and "and when" not in rows[0]["message"] and ", and " in rows[0]["message"]


def test_a_mistake_below_is_not_a_second_mistake_above():
    text = spliced(solution_text(4), "class LayerNorm:\n    def forward(self, x):\n        return np.tanh(x)\n")
    rows = {row["name"]: row for row in grade_here(4, text)["checks"]}
    assert "it rests on LayerNorm.forward" in rows["the block"]["message"]
    # Sharpened by 2, softmax turns into attention without scaling wherever d_k is 4; but that is not the mistake.
    text = spliced(solution_text(1), "def softmax(x, axis=-1):\n    e = np.exp(2 * (x - x.max(axis, keepdims=True)))\n"
                                     "    return e / e.sum(axis, keepdims=True)\n")
    assert named(grade_here(1, text)) == set()
    text = spliced(solution_text(1), "def softmax(x, axis=-1):\n    e = np.exp(x - x.max())\n    return e / e.sum()\n")
    rows = {row["name"]: row for row in grade_here(1, text)["checks"]}
    assert rows["attention without a mask"]["message"] == "follows from the mistake in softmax"
    assert rows["attention without a mask"]["points"] == 0


def test_an_error_is_shown_with_its_line_once_and_named_in_its_own_words_alone(capsys):
    text = spliced(solution_text(1), "def softmax(x, axis=-1):\n    e = np.exp(x - x.max(axis=axis))\n    return e\n")
    grade.show(grade_here(1, text, 0) | {"file": "mine.py"})
    said = capsys.readouterr().out
    assert said.count("ValueError: operands could not be broadcast together with shapes (3,5) (3,)") == 1
    assert re.search(r"line \d+: ValueError, as above", said)
    odd = "class PositionalEncoding:\n    def __init__(self, d_model, max_len=5000, dropout_p=0.1, **more):\n" \
          "        if d_model % 2:\n            raise ValueError('no odd widths')\n        super().__init__()\n" \
          "        self.pe = sinusoidal_table(max_len, d_model)\n        self.dropout = Dropout(dropout_p, **more)\n"
    result = grade_here(3, spliced(solution_text(3), odd), 0)
    assert result["score"] == 9 and not named(result)


def test_what_a_mask_hides_is_exactly_zero():
    leak = "        A = self.attention_weights = softmax(scores)\n"
    text = solution_text(1).replace(leak, leak + "        A = self.attention_weights = A if mask is None else "
                                                 "np.where(mask, 1e-6, A)\n")
    rows = [row for row in grade_here(1, text)["checks"] if row["state"] == "wrong"]
    assert rows and all("mask" in row["name"] or "nothing" in row["name"] or "large" in row["name"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 105))
def test_whatever_inputs_are_drawn_every_answer_is_judged_and_named_as_it_should_be(seed):
    gradings, remarks = measure_grader.graded_again([seed])
    assert gradings > 400 and not remarks


@pytest.mark.slow
def test_every_rate_with_every_file_in_a_process_of_its_own():
    text, remarks = measure_grader.measure()
    assert not remarks
    printed = measure_grader.part_of(measure_grader.README.read_text(encoding="utf-8"), "grader")

    def rates(table):                                                                   # a time is no rate
        return [line for line in table.splitlines()
                if " of " in line and not re.search("entry|processor time|other draws", line)]
    assert rates(printed) == rates(text), "run python tests/measure_grader.py --write"


def test_the_readme_speaks_of_this_catalogue_and_this_grader():
    page = measure_grader.README.read_text(encoding="utf-8")
    spellings = sum(len(mistake.spellings) for mistake in CATALOGUE.values())
    assert f"{spellings} of {spellings} (100 %)" in measure_grader.part_of(page, "grader")
    assert measure_grader.part_of(page, "count") == measure_grader.count()
    assert measure_grader.part_of(page, "example").strip() == measure_grader.example()


# ---------------------------------------------------------------------------------------------- the inputs drawn


def probe(exercise, name, seed):
    """The input arrays of a check."""
    case, = (check.case for part in parts_of(exercise, seed) for check in part.checks if check.name == name)
    return case.arrays


SEEDS = range(40)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_the_tolerance_is_ten_times_above_right_answers_and_ten_times_below_mistakes(seed):
    right, wrong = measure_grader.margins([seed])
    assert right < reference.TOLERANCE / 10 and wrong > 10 * reference.TOLERANCE


def test_no_mask_is_drawn_that_shows_one_key_or_all_or_is_the_same_for_two_sequences():
    """With one visible key softmax is constant, and a gradient that lacks the share of the queries is right."""
    for seed in SEEDS:
        for shape in ((2, 1, 1, 5), (2, 1, 4, 4)):
            mask = checks.random_mask(np.random.default_rng(seed), shape)
            visible = (~mask).sum(axis=-1)
            assert mask.shape == shape and 2 <= visible.min() <= visible.max() < shape[-1]
            assert not np.array_equal(mask[0], mask[1])


def test_the_padding_probe_holds_what_a_wrong_mask_would_hide():
    for seed in SEEDS:
        tokens, same = (probe(5, name, seed)["tokens"] for name in ("padding is hidden", "another pad_token is hidden"))
        assert np.array_equal(tokens, same) and all({0, 1, 2} < set(row) and max(row) >= 3 for row in tokens)
        assert (tokens[0, 0], tokens[1, 0]) == (0, 2)                 # each with other tokens behind it


def test_the_sentences_drawn_have_start_and_end_data_and_padding():
    for seed in SEEDS:
        tgt = probe(5, "the target is shifted", seed)["tgt"]
        model = probe(5, "logits", seed)
        assert (tgt[:, 0] == 1).all() and (model["tgt"][:, 0] == 1).all()
        for ids in (tgt, model["src"], model["tgt"]):
            assert (ids[0, -3:] == (2, 0, 0)).all() and ids[1, -1] == 2
            assert (ids[1, 1:-1] >= 3).all() and (ids[:, 1] >= 3).all()
        assert model["src_mask"].any() and not np.array_equal(model["src_mask"][0], model["src_mask"][1])


def test_every_token_is_looked_up_and_some_twice():
    for seed in SEEDS:
        tokens = probe(3, "rows of the table, scaled", seed)["tokens"]
        assert set(tokens.flat) == set(range(7)) and tokens.size > 7


def test_steep_scores_are_exact_in_float32_so_that_no_right_answer_fails_by_rounding():
    for seed in SEEDS:
        steep = probe(1, "hidden, however large the scores", seed)
        scores = [Q @ K.swapaxes(-1, -2) / 2 for Q, K in ((steep["Q"], steep["K"]), (
            steep["Q"].astype(np.float64), steep["K"].astype(np.float64)))]
        assert scores[0].dtype == np.float32 and np.array_equal(*scores)
        visible, hidden = (np.where(keep, scores[1], np.nan) for keep in (~steep["mask"], steep["mask"]))
        for t in range(6):                             # -1e5 is too weak for every other query, -1e6 is not for any
            above = hidden if t % 2 == 0 else visible
            below = visible if t % 2 == 0 else hidden
            assert np.nanmin(above[:, :, t]) > 1e5 and np.nanmax(below[:, :, t]) < -1e5
        assert np.abs(scores[1]).max() < 5e5
        large = probe(1, "softmax of very large scores", seed)["x"]
        assert np.array_equal(large, large.astype(np.float32)) and (np.diff(large.max(axis=1)) > 1000).all()


# ------------------------------------------------------------------------------------------------------ safety

QUICK = ("endless_loop", "crash", "os_exit", "memory", "subclass_of_the_answer", "answer_from_the_solutions",
         "forged_reply_on_the_channel", "prints", "patched_comparisons", "wrong_encoding")


@pytest.mark.parametrize("name", [pytest.param(item[0], marks=() if item[0] in QUICK else pytest.mark.slow)
                                  for item in measure_grader.hostile_submissions()])
def test_what_breaks_cheats_or_misbehaves_gets_its_verdict(name):
    _, exercise, text, status, words = next(i for i in measure_grader.hostile_submissions() if i[0] == name)
    result = grade_text(exercise, text, time_limit=1.5 if status == "timeout" else 30)
    assert result["status"] == status and words in measure_grader.verdict(result)
    if name == "prints":
        assert "PASS 10 / 10" in result["printed"] and result["score"] == 10
    if name == "patched_comparisons":
        assert result["score"] == 0


def test_a_bonus_that_never_ends_does_not_take_the_main_part_away():
    endless = "class TokenEmbedding:\n    def backward(self, dout):\n        while True:\n            pass\n"
    text = spliced(solution_text(3), endless)
    result = grade_text(3, text, time_limit=1.5)
    assert (result["status"], result["score"], result["bonus_score"]) == ("pass", 10, 0)
    assert grade_text(3, text, time_limit=1.5, bonus=True)["status"] == "timeout"


def test_without_a_memory_limit_the_grader_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)                  # as on Windows
    assert submission.set_limits(2**30) == ["on this system submissions run without a memory limit"]


def test_where_the_address_space_cannot_be_limited_memory_in_use_is():
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import submission, time\n"
               "sys.platform = 'darwin'; unit = 1024                    # Linux counts in KiB, macOS in bytes\n"
               "submission.set_limits(400 * 2**20 // unit); x = b'1' * (600 * 2**20); time.sleep(5)")
    assert subprocess.run([sys.executable, "-c", program, str(EXERCISES)]).returncode == -9


def test_inputs_are_drawn_anew_and_a_seed_repeats_them():
    cases = [parts_of(1, seed)[0].checks[0].case.arrays["x"] for seed in (1, 1, 2)]
    assert np.array_equal(cases[0], cases[1]) and not np.array_equal(cases[0], cases[2])
    assert len({grade_here(1, solution_text(1))["score"]}) == 1
    path = EXERCISES / "solutions" / "solution_03_positional_encoding.py"
    assert grading.grade_file(3, path)["seed"] != grading.grade_file(3, path)["seed"]


# ------------------------------------------------------------------------------------------------ the command line


@pytest.fixture
def desk(tmp_path):
    """A copy of the project, as a learner has it, with the answers deleted."""
    for name in ("implementation.py", "train_minimal.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(EXERCISES, tmp_path / "exercises", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def at(desk, *arguments, program="grade.py", **options):
    return subprocess.run([sys.executable, str(desk / "exercises" / program), *map(str, arguments)], cwd=desk,
                          text=True, capture_output=True, **options)


def test_grading_works_without_the_solutions_and_an_exercise_grades_itself(desk):
    shutil.rmtree(desk / "exercises" / "solutions")
    fresh = at(desk, 2, 3)
    assert fresh.returncode == 1 and fresh.stdout.count("not started: 0 of 10") == 2 and "Progress [---" in fresh.stdout
    text = solution_text(2).replace("context @ self.W_O\n", "context @ self.W_O.T\n")
    path = desk / "exercises" / FILES[2]
    path.write_text(make_stubs.HOW_TO.split('"""')[1] + text, encoding="utf-8")
    itself = at(desk, program=FILES[2])
    assert itself.returncode == 1 and "exactly what you get when W_O is transposed" in itself.stdout, itself.stderr
    path.write_text(make_stubs.HOW_TO.split('"""')[1] + solution_text(2), encoding="utf-8")
    itself = at(desk, program=FILES[2])
    assert itself.returncode == 0 and "done: 10 of 10 points, bonus 4 of 4" in itself.stdout


def test_json_holds_what_programs_rely_on(tmp_path):
    shutil.copy(EXERCISES / "solutions" / "solution_02_multi_head_attention.py", tmp_path / "mine.py")
    done = run_grade("--submission", tmp_path / "mine.py", 2, "--json")
    result, = json.loads(done.stdout)["exercises"]
    assert done.returncode == 0
    assert (result["id"], result["status"], result["score"], result["max_score"]) == (2, "pass", 10, 10)
    assert (result["bonus_score"], result["max_bonus"]) == (4, 4)
    for row in result["checks"]:
        assert {"name", "passed", "points", "misconception", "message"} <= set(row)
    (tmp_path / "mine.py").write_text(solution_text(2).replace("+= rows(context).T @ rows(dout)", "+= 0"))
    more = [run_grade("--submission", tmp_path / "mine.py", 2, "--json", *extra) for extra in ((), ("--bonus",))]
    assert [m.returncode for m in more] == [0, 1]
    assert [json.loads(m.stdout)["exercises"][0]["status"] for m in more] == ["pass", "fail"]


def test_an_unwritten_bonus_is_not_started_and_never_fails():
    text = re.sub(r"(def backward.*\n(?:.*\n)*?)( *)# begin: .*\n(?:.*\n)*?\2# end\n",
                  r"\1\2raise NotImplementedError\n", solution_text(4))
    result = grade_here(4, text)
    assert (result["status"], result["score"], result["bonus_score"]) == ("pass", 10, 0)
    assert {row["state"] for row in result["checks"] if row["bonus"]} <= {"todo", "waits"}
    assert all("not started" in row["message"] for row in result["checks"] if row["bonus"])


@pytest.mark.parametrize("arguments", [["9"], ["x"], ["--submission", "nowhere.py"], ["--submission", "README.md"],
                                       ["--submissions", "."], ["--csv", "out.csv"], ["--hint", "4"], ["--jobs", "0"],
                                       ["--submissions", "nowhere", "--csv", "out.csv"], ["--time-limit", "0"],
                                       ["1", "2", "--submission", "implementation.py"], ["--no-such-option"],
                                       ["1", "--json", "--hint"], ["1", "--json", "--watch"]])
def test_wrong_usage_is_one_line_and_status_2(arguments, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert grade.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("grade.py: ")


@pytest.mark.parametrize("arguments", [["--submissions", "nowhere", "--csv", "out.csv"],
                                       ["--submissions", ".", "--csv", "nowhere/out.csv"],
                                       ["--submissions", ".", "--csv", "."], ["--reset", "1"]])
def test_wrong_usage_of_the_program_itself_is_one_line_without_a_traceback(arguments, desk):
    (desk / "exercises" / FILES[1]).write_text("mine\n")
    said = at(desk, *arguments, input="n\n")
    assert said.returncode == 2 and said.stderr.count("\n") == 1 and said.stderr.startswith("grade.py: ")


def test_a_broken_library_is_said_to_be_broken(desk):
    (desk / "implementation.py").write_text("def softmax(\n")
    said = at(desk, 1)
    assert said.returncode == 2 and said.stderr.count("\n") == 1 and "the library cannot be loaded" in said.stderr


def test_hints_have_three_levels_for_every_part(capsys):
    names = {part.name for exercise in FILES for part in parts_of(exercise, 0)}
    assert set(HINTS) == names
    assert all(len(levels) == 3 and levels[0].endswith("?") for levels in HINTS.values())
    result = grade_here(1, (EXERCISES / FILES[1]).read_text(encoding="utf-8"))
    for level in (1, 2, 3):
        grade.show_hint(result, level)
        assert HINTS["softmax"][level - 1] in re.sub(r"\n +", " ", capsys.readouterr().out)


def test_watch_grades_on_save_and_stays(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("1")
    graded, stamps = [], iter([1, 2, None])
    assert grade.watch(lambda: graded.append(1) or len(graded), path, lambda before: next(stamps)) == 3
    before = grade.stamp(path)
    saver = threading.Timer(0.2, path.write_text, ["changed"])
    saver.start()
    assert grade._wait_for_change(path, before) != before
    saver.join()


def test_reset_asks_and_keeps_a_backup(desk):
    path = desk / "exercises" / FILES[3]
    assert "untouched" in at(desk, "--reset", 3, input="").stdout
    stub = path.read_text(encoding="utf-8")
    path.write_text("mine\n")
    no = at(desk, "--reset", 3, input="n\n")
    assert no.returncode == 2 and path.read_text() == "mine\n"
    yes = at(desk, "--reset", 3, input="y\n")
    assert yes.returncode == 0 and path.read_text(encoding="utf-8") == stub
    assert path.with_name(path.name + ".backup-1").read_text() == "mine\n"
    path.write_text("again\n")
    at(desk, "--reset", 3, input="y\n")
    assert path.with_name(path.name + ".backup-2").read_text() == "again\n"


# --------------------------------------------------------------------------------------------------------- a class


@pytest.fixture
def school(tmp_path):
    """Submissions of a small class in both layouts, with a broken file, and things that are no submissions."""
    folder = tmp_path / "handed in"
    wrong = solution_text(2).replace("x.transpose(0, 2, 1, 3).reshape(B, T, h * d_k)", "x.reshape(B, T, h * d_k)")
    for name, text in {"ada/exercise_02_multi_head_attention.py": solution_text(2), "ada/notes.txt": "",
                       "grace/late.py": "", "bob/exercise_02.py": wrong,
                       "=cmd()_exercise_02.py": "import nothing_at_all", "exercise_03.py": "",
                       "exercise_03_positional_encoding_carl.py": solution_text(3)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_class_is_graded_into_a_table(school, tmp_path):
    out = tmp_path / "class.csv"
    first = run_grade("--submissions", school, "--csv", out, "--jobs", 2)
    assert first.returncode == 0, first.stderr
    rows = {row["student"]: row for row in csv.DictReader(open(out, encoding="utf-8", newline=""))}
    assert set(rows) == {"ada", "bob", "'=cmd()", "carl"}
    assert [rows[n]["status"] for n in ("ada", "bob", "'=cmd()", "carl")] == ["pass", "fail", "error", "pass"]
    assert rows["ada"]["score"] == "10" and rows["ada"]["bonus"] == "4" and rows["carl"]["exercise"] == "3"
    assert rows["bob"]["misconceptions"] == "merge_without_transpose"
    table = list(csv.DictReader(open(tmp_path / "class-misconceptions.csv", encoding="utf-8", newline="")))
    assert [(row["misconception"], row["students"]) for row in table] == [("merge_without_transpose", "1")]
    for name in ("ada/notes.txt", "grace/late.py", "exercise_03.py"):
        assert f"unrecognised: {Path(name)}" in first.stdout
    (school / "bob" / "exercise_02.py").write_text(solution_text(2), encoding="utf-8")
    second = run_grade("--submissions", school, "--csv", out)
    assert "4 files in class.csv (3 unchanged and skipped), 3 unrecognised" in second.stdout
    assert {row["status"] for row in csv.DictReader(open(out, encoding="utf-8", newline=""))} == {"pass", "error"}


def test_an_interrupted_class_keeps_finished_rows(school, tmp_path, monkeypatch, capsys):
    done = []

    def grade_file(exercise, path, **options):
        if done:
            raise KeyboardInterrupt
        done.append(path)
        return {"checks": [], "status": "pass", "score": 10, "bonus_score": 0, "seconds": 0.1}
    monkeypatch.setattr(classroom.grading, "grade_file", grade_file)
    out = tmp_path / "class.csv"
    assert grade.main(["--submissions", str(school), "--csv", str(out)]) == 130
    assert len(list(csv.DictReader(open(out, encoding="utf-8", newline="")))) == 1
    assert "finished rows are kept" in capsys.readouterr().out


def test_one_bad_file_never_stops_the_others(school, tmp_path, monkeypatch, capsys):
    real = grading.grade_file

    def grade_file(exercise, path, **options):
        if "bob" in str(path):
            raise RuntimeError("the grader itself stumbled")
        return real(exercise, path, **options)
    monkeypatch.setattr(classroom.grading, "grade_file", grade_file)
    out = tmp_path / "class.csv"
    assert grade.main(["--submissions", str(school), "--csv", str(out)]) == 0
    assert len(list(csv.DictReader(open(out, encoding="utf-8", newline="")))) == 4


def test_a_file_that_cannot_be_read_is_a_row_too(school, tmp_path, monkeypatch):
    real = Path.read_bytes

    def read_bytes(path):
        if "bob" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)
    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    out = tmp_path / "class.csv"
    assert grade.main(["--submissions", str(school), "--csv", str(out)]) == 0
    rows = {row["student"]: row for row in csv.DictReader(open(out, encoding="utf-8", newline=""))}
    assert rows["bob"]["status"] == "error" and rows["ada"]["status"] == "pass"


@pytest.mark.parametrize("value", ["=1+1", "+x", "-x", "@x"])
def test_no_cell_is_a_formula(value):
    assert classroom.safe(value) == "'" + value and classroom.safe("x=") == "x="
