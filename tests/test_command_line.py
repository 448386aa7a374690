"""The command line of train_minimal.py: what a person sees, their own sequences and texts, and every wrong usage."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import pytest

import train_minimal
from train_minimal import main

ROOT = Path(__file__).resolve().parent.parent
SMALL = "--d-model 16 --n-heads 2 --n-layers 1 --batch-size 16 --seq-len 5".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a checkpoint that has seen 10 steps, and the output of that run."""
    folder = tmp_path_factory.mktemp("trained")
    done = subprocess.run([sys.executable, ROOT / "train_minimal.py", *SMALL, "--max-steps", "100"], cwd=folder,
                          capture_output=True, text=True)
    assert done.returncode == 1
    return folder, done.stdout, done.stderr


@pytest.fixture
def folder(trained, tmp_path, monkeypatch):
    shutil.copytree(trained[0] / "checkpoints", tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(options, capsys):
    """The one line of a usage error."""
    capsys.readouterr()
    assert main([str(option) for option in options]) == 2
    output, error = capsys.readouterr()
    assert output == "" and error.count("\n") == 1 and error.startswith("train_minimal.py: error: ")
    return error


def test_a_person_sees_the_model_the_progress_and_the_test(trained):
    _, output, error = trained
    assert "\r" not in output + error and error == ""
    for pattern in (r"1 \+ 1 layers, d_model 16, 2 heads, d_ff 64, vocabulary 12, [\d,]+ parameters, float32",
                    r"held out 500 for validation, 1,000 for the test", r"Checkpoint: checkpoints/copy.npz", r"Threads: 1",
                    r"step   100  loss \d\.\d+  rate 0\.\d+  token accuracy +[\d.]+ %  exact match +[\d.]+ %  \| [\d ]+ ->",
                    r"Stopped at step 100", r"length  4: +\d+ of  500", r"lengths 1 and 2, seen in training: +\d+ of   90",
                    r"exact match [\d.]+ % when decoding freely", r"Cross-attention of the last layer",
                    r"python visualization.py --checkpoint checkpoints/copy.npz --input \"[\d ]+\" --out figures",
                    r"The target exact match of 100.0 % was not reached"):
        assert re.search(pattern, output), pattern
    assert len(re.findall(r"^  [\d ]+ -> [\d ]*$", output, re.M)) == 3


def test_on_a_terminal_of_80_columns_a_bar_shows_all_four_figures(folder):
    pty, termios = (pytest.importorskip(name, reason="terminals are a thing of Unix") for name in ("pty", "termios"))
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen([sys.executable, ROOT / "train_minimal.py", *SMALL, "--max-steps", "150"], stdout=theirs,
                               stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:                                                          # the other end is closed: all has been read
        pass
    os.close(ours)
    bars = [bar for bar in re.split(r"[\r\n]+", shown.decode()) if re.match(r" *\d+/150 ", bar)]
    assert process.wait() == 1 and max(map(len, bars)) < 80
    assert re.search(r"\d, loss \d\.\d{3}, rate 0\.\d{5}, tokens [\d.]+ %, exact [\d.]+ %$", bars[-1])
    assert re.search(r"[\r\n]step   100  loss", shown.decode())


def test_help_explains_every_option_with_its_default(capsys):
    with pytest.raises(SystemExit) as status:
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert status.value.code == 0
    for option in ("task epochs batch-size seq-len d-model n-heads n-layers vocab-size lr seed checkpoint checkpoint-every "
                   "resume max-steps no-early-stop predict data threads dropout label-smoothing warmup tie-embeddings "
                   "target-exact-match metrics-file inject-bug with-exercises").split():
        assert f"--{option} " in text
    for option, default in train_minimal.DEFAULTS.items():
        if default is not None and option != "tie_embeddings":
            start = text.index(f"--{option.replace('_', '-')} ", text.index("what to learn"))
            assert f"(default: {default})" in text[start:start + 330], option


def test_options_may_have_underscores_and_end_a_run_in_two_ways(folder, capsys):
    small = [option.replace("-", "_") if option.startswith("--d") else option for option in SMALL]
    small = [option.replace("_", "-", 2).replace("--d-model", "--d_model") for option in small]
    assert main([*small, "--batch_size", "8", "--epochs", "1", "--target_exact_match", "0", "--checkpoint", "e.npz"]) == 0
    assert "Stopped at step 100" in capsys.readouterr().out


def test_predict_decodes_the_users_sequence(folder, capsys):
    assert main(["--predict", "5 3 9"]) == 0
    assert re.fullmatch(r"5 3 9 -> [\d ]*\n", capsys.readouterr().out)
    assert main(["--predict", "5,3,9,4,4,4,4,4"]) == 0
    output, error = capsys.readouterr()
    assert output.startswith("5 3 9 4 4 4 4 4 -> ")
    assert error == "train_minimal.py: warning: 8 tokens, but the model was trained on at most 5\n"


def test_a_text_is_learned_and_predicted_in_its_own_script(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("\n".join(f"{a}{b}你好" for a in "абвгдежзик" for b in "αβγδεζηθικλμ"), encoding="utf-8")
    assert main([*SMALL[:-2], "--task", "reverse", "--data", "words.txt", "--max-steps", "10"]) == 0
    assert "--input" in capsys.readouterr().out
    assert main(["--task", "reverse", "--predict", "好你аα"]) == 0
    assert capsys.readouterr().out.startswith("好你аα -> ")
    assert "'x' (U+0078) is not in the vocabulary" in refused(["--task", "reverse", "--predict", "x"], capsys)
    ascii_only = subprocess.run([sys.executable, ROOT / "train_minimal.py", "--task", "reverse", "--predict", "好你аα"],
                                capture_output=True, text=True, env={"PYTHONIOENCODING": "ascii"})
    assert ascii_only.stdout.startswith(r"\u597d\u4f60\u0430\u03b1 -> ") and not ascii_only.stderr
    Path("words.txt").write_text(Path("words.txt").read_text(encoding="utf-8") + "\nабв", encoding="utf-8")
    assert "not the file that this checkpoint was trained on" in refused(["--task", "reverse", "--resume"], capsys)


@pytest.mark.parametrize("options, names", [
    ("--d-model 30 --n-heads 4", "d_model=30, n_heads=4"),
    ("--seq-len 0", "--seq-len: must be a whole number of at least 1, got '0'"),
    ("--seq-len 3", "--seq-len must be at least 4, got 3"),
    ("--seq-len 5000", "--seq-len must be below 5000"),
    ("--vocab-size 3", "--vocab-size: must be a whole number of at least 5, got '3'"), ("--vocab-size 4", "'4'"),
    ("--task sort", "'sort' (choose from"),
    ("--batch-size -1", "'-1'"), ("--max-steps 0", "'0'"), ("--epochs two", "'two'"), ("--n-layers 1.5", "'1.5'"),
    ("--lr 0", "'0'"), ("--lr inf", "'inf'"), ("--dropout 1", "'1'"), ("--dropout nan", "'nan'"),
    ("--label-smoothing 1", "'1'"), ("--target-exact-match 2", "'2'"), ("--warmup 0", "'0'"), ("--threads 0", "'0'"),
    ("--seed -3", "'-3'"), ("--tie-embeddings False", "unrecognized arguments: False"),
    ("--epochs 1 --max-steps 5", "--epochs and --max-steps"), ("--steps 5", "unrecognized arguments: --steps"),
    ("--data missing.txt", "missing.txt: No such file"), ("--data checkpoints", "checkpoints: Is a directory"),
    ("--data empty.txt", "empty.txt has 0 distinct lines"), ("--data binary.bin", "line 1: byte 0x80 at position 1"),
    ("--data binary.bin --vocab-size 9", "--vocab-size does not go with --data"),
    ("--resume --checkpoint no.npz", "there is no checkpoint no.npz"),
    ("--resume --d-model 32", "--d-model 32 does not fit checkpoints/copy.npz, which has 16"),
    ("--resume --checkpoint binary.bin", "binary.bin is damaged or not a checkpoint"),
    ("--resume --data empty.txt", "--data empty.txt does not fit checkpoints/copy.npz, which has None"),
    ("--predict 12", "'12' is not a token of the vocabulary: numbers from 3 to 11"),
    ("--predict 2", "'2' is not a token"), ("--predict -5", "-5"), ("--predict x", "'x' is not a token"),
    ("--predict 5 --task reverse", "there is no checkpoint checkpoints/reverse.npz; train one with: python "
                                   "train_minimal.py --task reverse"),
    ("--predict 5 --checkpoint checkpoints/copy.npz --task reverse", "--task reverse does not fit"),
    ("--checkpoint checkpoints --max-steps 1", "--checkpoint checkpoints is not a file"),
    ("--checkpoint= --max-steps 1", "is not a file"),
    ("--metrics-file no/where.jsonl", "cannot write --metrics-file no/where.jsonl"),
    ("--inject-bug nothing", "there is no bug 'nothing'"),
    ("--d-model 100000000000 --n-heads 1", "does not fit into memory"),
])
def test_wrong_usage_is_one_line_that_names_the_values(options, names, folder, capsys):
    Path("empty.txt").touch()
    Path("binary.bin").write_bytes(bytes(range(128, 256)) * 20)
    before = Path("checkpoints/copy.npz").read_bytes()
    assert names in refused(options.split(), capsys)
    assert Path("checkpoints/copy.npz").read_bytes() == before and not list(Path("checkpoints").glob(".*"))


def test_an_error_stays_on_one_line_whatever_was_typed(folder, capsys):
    assert refused(["--foo\nbar"], capsys).endswith("unrecognized arguments: --foo bar\n")


def test_a_run_that_diverges_says_so_and_keeps_the_checkpoint(folder, capsys):
    assert main([*SMALL, "--lr", "1e38", "--checkpoint-every", "1", "--metrics-file", "m.jsonl"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "no longer a number" in error and "--lr" in error
    kept = train_minimal.load_checkpoint("checkpoints/copy.npz")
    assert f"the checkpoint is that of step {kept.step}." in error
    assert all(np.isfinite(weight).all() for weight in kept.newest.values())
    for line in Path("m.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)                                   # NaN and Infinity are no JSON


def test_the_heatmap_of_a_text_has_straight_columns_and_its_command_is_quoted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("t.txt").write_text("\n".join(f"{a}{b}$x你\u0939\u094d\t" for a in "абвгдежзик" for b in "αβγδεζηθικλμ"), "utf-8")
    assert main([*SMALL[:-2], "--data", "t.txt", "--max-steps", "100", "--checkpoint", "a b.npz"]) == 0
    output = capsys.readouterr().out
    head, *lines = output.partition("Cross-attention")[2].partition("\n\n")[0].splitlines()[1:]
    assert {train_minimal.columns(line) for line in lines} == {train_minimal.columns(head)} and r"\t <end>" in head
    assert "\t" not in output and train_minimal.columns("你\u0939\u094d") == 3
    words = shlex.split(output.rpartition("To plot its attention:")[2])
    assert words[:4] == ["python", "visualization.py", "--checkpoint", "a b.npz"] and words[5].endswith("$x你\u0939\u094d\\t")


def test_a_heatmap_too_wide_for_the_terminal_gives_way_to_the_shortest_example(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for width, tokens in (("80", 4), ("200", 14)):
        monkeypatch.setenv("COLUMNS", width)
        main([*SMALL[:-2], "--seq-len", "24", "--max-steps", "1"])
        head = capsys.readouterr().out.partition("Cross-attention")[2].splitlines()[1]
        assert len(head.split()) == tokens + 1 and len(head) <= int(width)


def test_an_empty_or_far_too_long_prediction(folder, capsys):
    assert "the sequence is empty" in refused(["--predict", " "], capsys)
    assert main(["--predict", "5 " * 6000]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 2 and "warning: 6000 tokens" in error[0] and "max_len=6001 must be from 1 to 5000" in error[1]


def test_an_unreadable_text_is_one_line(folder, capsys, monkeypatch):
    def no_entry(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", no_entry)
    assert "cannot read --data secret.txt: Permission denied" in refused(["--data", "secret.txt"], capsys)


def test_a_reader_of_the_output_may_leave(folder):
    done = subprocess.run(f"'{sys.executable}' '{ROOT}/train_minimal.py' {' '.join(SMALL)} --max-steps 3000 | head -n 1",
                          shell=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("The checkpoint that was at") and "Traceback" not in done.stderr


def test_without_a_standard_output_it_trains_all_the_same(folder):
    done = subprocess.run(f"'{sys.executable}' '{ROOT}/train_minimal.py' {' '.join(SMALL)} --max-steps 1 >&-", shell=True,
                          stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr == ""
