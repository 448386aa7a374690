"""Training: the data and its three sets, checkpoints, runs that are interrupted and resumed, and the targets reached."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import train_minimal
from train_minimal import (CheckpointError, Run, average_checkpoints, generate_copy_task_data,
                           generate_reverse_task_data, load_checkpoint, main, save_checkpoint)
from implementation import Transformer
from training_data import DataError, RandomNumbers, TextLines, split_of, token_label

ROOT = Path(__file__).resolve().parent.parent
SMALL = "--d-model 16 --n-heads 2 --n-layers 1 --batch-size 16 --seq-len 5 --warmup 100 --dropout 0.1".split()


@pytest.fixture
def train(tmp_path, monkeypatch):
    """The command line with a small model, in a folder of its own. Returns the exit status."""
    monkeypatch.chdir(tmp_path)
    return lambda *options: main([*SMALL, *map(str, options)])


def tiny(**changes):
    return Transformer(**{**dict(src_vocab_size=12, tgt_vocab_size=12, d_model=8, n_heads=2, n_encoder_layers=1,
                                 n_decoder_layers=1, d_ff=16, max_len=20, rng=0), **changes})


# ----------------------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("generate, answer", [(generate_copy_task_data, lambda tokens: tokens),
                                              (generate_reverse_task_data, lambda tokens: tokens[::-1])])
def test_a_task_gives_tokens_end_padding_and_the_target_starts_with_start(generate, answer):
    src, tgt = generate(500, 6, 9, min_len=2, rng=1)
    assert src.shape == (500, 7) and tgt.shape == (500, 8)
    lengths = []
    for s, t in zip(src.tolist(), tgt.tolist()):
        n = s.index(2)
        lengths.append(n)
        assert all(3 <= token < 9 for token in s[:n]) and s[n + 1:] == [0] * (6 - n)
        assert t == [1, *answer(s[:n]), 2] + [0] * (6 - n)
    assert np.bincount(lengths)[2:].min() > 60 and set(lengths) == {2, 3, 4, 5, 6}
    assert {token for row in src.tolist() for token in row} == {0, 2, 3, 4, 5, 6, 7, 8}


def test_task_data_depends_on_rng_alone():
    state = np.random.get_state()[1].copy()
    first, again, other = (generate_copy_task_data(5, 6, rng=seed)[0] for seed in (3, 3, 4))
    assert (first == again).all() and (first != other).any()
    assert (np.random.get_state()[1] == state).all()


@pytest.mark.parametrize("sizes", [dict(seq_len=0), dict(seq_len=3, min_len=4), dict(seq_len=3, min_len=0),
                                   dict(seq_len=3, vocab_size=3)])
def test_impossible_task_sizes_are_named(sizes):
    with pytest.raises(ValueError, match="|".join(str(value) for value in sizes.values())):
        generate_copy_task_data(4, **sizes)


def test_the_three_sets_share_nothing_over_a_whole_run():
    run = Run({**train_minimal.DEFAULTS, "d_model": 8, "n_heads": 2, "n_layers": 1, "seq_len": 5, "batch_size": 64})
    seen, batch = set(), run.data.batch

    def watched(*arguments):
        sequences = batch(*arguments)
        seen.update(tuple(map(int, tokens)) for tokens in sequences)
        return sequences

    run.data.batch = watched
    for _ in range(150):
        run.train_step()
    validation, test = ({tuple(map(int, tokens)) for tokens in run.held_out[split]} for split in ("validation", "test"))
    assert len(seen) > 3000 and len(validation) == 500 and len(test) == 1000
    assert not seen & test and not seen & validation and not validation & test
    assert {len(tokens) for tokens in seen} == {1, 2, 3, 4, 5}


def test_the_test_set_has_equal_shares_of_lengths_and_is_the_same_in_every_run():
    data = RandomNumbers({"seq_len": 8, "vocab_size": 12})
    test = data.held_out("test", 1000)
    assert np.bincount([len(tokens) for tokens in test]).tolist() == [0, 0, 0, 0, 200, 200, 200, 200, 200]
    assert all((a == b).all() for a, b in zip(test, data.held_out("test", 1000)))


def test_the_split_of_a_sequence_never_changes():
    assert [split_of(tokens) for tokens in ([3, 4], [5, 6, 7], [5, 9, 8, 11, 8, 11])] == ["train", "train", "test"]
    shares = [split_of(tokens) for tokens in np.random.default_rng(0).integers(3, 12, (5000, 6))]
    assert [round(shares.count(split) / 5000, 1) for split in ("train", "validation", "test")] == [0.8, 0.1, 0.1]


def lines_file(path, lines=(), encoding="utf-8", end="\n", head=b""):
    words = [f"word{number:03d}" for number in range(150)]
    path.write_bytes(head + end.join([*words, *lines]).encode(encoding) + end.encode())
    return path


def test_lines_of_a_text_bom_crlf_duplicates_empty_lines_and_nfc(tmp_path):
    odd = lines_file(tmp_path / "odd.txt", ["", "  ", "word000", "cafe\u0301", "caf\u00e9", "\u4f60\u597d\u4e16\u754c"],
                     end="\r\n", head=b"\xef\xbb\xbf")
    data = TextLines(odd)
    assert sum(map(len, data.lines.values())) == 152 and data.seq_len == 7
    assert "\u00e9" in data.vocabulary and not set("\u0301\r\n\ufeff") & set(data.vocabulary)
    assert data.vocabulary == "".join(sorted(data.vocabulary)) and data.vocab_size == 3 + len(data.vocabulary)
    assert sorted(map(len, data.short())) == []


def test_a_pass_over_the_lines_sees_each_once_and_follows_from_the_step():
    data = TextLines(ROOT / "train_minimal.py", seq_len=200)
    train = len(data.lines["train"])
    once = [tuple(tokens) for step in range(1, train + 1) for tokens in data.batch(step, 1, None)]
    assert sorted(once) == sorted(tuple(tokens) for tokens in data.lines["train"])
    again = TextLines(ROOT / "train_minimal.py", seq_len=200).batch(7, 3, None)
    assert [tuple(tokens) for tokens in again] == once[18:21]


def test_held_out_lines_come_from_all_over_a_sorted_file(tmp_path):
    path = tmp_path / "sorted.txt"
    path.write_text("\n".join(f"{number:05d}" for number in range(9000)))
    data = TextLines(path)
    chosen, every = ([tuple(tokens) for tokens in lines] for lines in (data.held_out("test", 100), data.lines["test"]))
    places = [every.index(tokens) for tokens in chosen]
    assert len(set(places)) == 100 and places == sorted(places) and places[50] == pytest.approx(len(every) / 2, rel=0.3)
    assert [tuple(tokens) for tokens in data.held_out("test", 5000)] == every


def test_a_token_is_shown_by_its_name_number_or_letter_and_a_control_by_its_escape():
    assert [token_label(token) for token in (0, 1, 2, 3, 11)] == ["<pad>", "<start>", "<end>", "3", "11"]
    assert [token_label(token, "\r\x1b é你") for token in range(3, 8)] == [r"\r", r"\x1b", " ", "é", "你"]


@pytest.mark.parametrize("content, message", [
    (b"", "0 distinct lines; at least 100"),
    (b"same\n" * 500, "1 distinct lines; at least 100"),
    (b"fine\nbad \xff byte\n", "line 2: byte 0xff at position 5 is not UTF-8"),
    (bytes(range(256)) * 9, "is not UTF-8"),
    (b"short\n\n" + b"x" * 65 + b"\n", "line 3 has 65 characters, more than the longest --seq-len by default, 64"),
])
def test_a_text_that_cannot_be_used_is_named_by_line(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        TextLines(path)


# ---------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_holds_plain_arrays_and_gives_the_model_back(tmp_path):
    model, optimizer = tiny(tie_embeddings=True, dtype=np.float64), None
    optimizer = train_minimal.Adam(model)
    for gradient in model.named_gradients().values():
        gradient[...] = 0.5
    optimizer.step(0.1)
    save_checkpoint(tmp_path / "a.npz", model, optimizer, step=1, vocabulary="abc", settings={"task": "copy"})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as entries:
        assert {entries[name].dtype.kind for name in entries.files} == {"f", "U"}
    loaded = load_checkpoint(tmp_path / "a.npz")
    assert (loaded.step, loaded.vocabulary, loaded.settings["task"], loaded.settings["d_model"]) == (1, "abc", "copy", 8)
    assert not loaded.model.training and loaded.optimizer.steps == 1
    for ours, theirs in ((model.named_parameters(), loaded.model.named_parameters()),
                         (optimizer.m, loaded.optimizer.m), (optimizer.v, loaded.optimizer.v)):
        assert ours.keys() == theirs.keys()
        assert all(ours[name].dtype == theirs[name].dtype and (ours[name] == theirs[name]).all() for name in ours)


def test_average_checkpoints_is_the_mean_of_each_weight(tmp_path):
    models = [tiny(rng=seed) for seed in range(3)]
    paths = [tmp_path / f"{seed}.npz" for seed in range(3)]
    for path, model in zip(paths, models):
        save_checkpoint(path, model)
    average = average_checkpoints(paths)
    assert average.keys() == models[0].named_parameters().keys()
    for name, mean in average.items():
        assert mean.dtype == np.float32
        np.testing.assert_allclose(mean, sum(model.named_parameters()[name].astype(float) for model in models) / 3,
                                   rtol=1e-6, atol=1e-9)
    save_checkpoint(paths[1], tiny(d_ff=17))
    with pytest.raises(CheckpointError, match=r"feed_forward.W1 holds float32 \(8, 17\) where float32 \(8, 16\)"):
        average_checkpoints(paths)
    with pytest.raises(ValueError, match="at least one path"):
        average_checkpoints([])


def rewrite(path, change):
    with np.load(path) as entries:
        arrays = dict(entries)
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize("change, message", [
    (lambda a: a.pop("parameters/decoder_layers.0.norm3.gamma"),
     r"parameters/decoder_layers.0.norm3.gamma holds nothing where float32 \(8,\)"),
    (lambda a: a.update({"parameters/extra": np.zeros(3, np.float32)}),
     r"parameters/extra holds float32 \(3,\) where nothing"),
    (lambda a: a.update({"parameters/src_embedding.embedding": np.zeros((12, 9), np.float32)}),
     r"src_embedding.embedding holds float32 \(12, 9\) where float32 \(12, 8\)"),
    (lambda a: a.update({"adam_m/encoder_layers.0.norm1.beta": np.zeros(8)}),
     r"adam_m/encoder_layers.0.norm1.beta holds float64 \(8,\) where float32 \(8,\)"),
    (lambda a: a.pop("state"), "not a checkpoint"),
    (lambda a: a.update(state=np.array("{")), "not a checkpoint"),
    (lambda a: a.update(state=np.array('{"format": 2}')), "format 2; this program reads format 1"),
    (lambda a: a.update(state=np.array('{"format": 1, "model": {"d_model": "x"}}')), "not a checkpoint"),
])
def test_a_checkpoint_that_does_not_fit_names_the_entry_and_both_shapes(tmp_path, change, message):
    path, model = tmp_path / "a.npz", tiny()
    save_checkpoint(path, model, train_minimal.Adam(model))
    rewrite(path, change)
    with pytest.raises(CheckpointError, match=message) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    """The state of a run after one step, and the arrays beside it."""
    path = tmp_path_factory.mktemp("state") / "a.npz"
    main([*SMALL, "--max-steps", "1", "--checkpoint", str(path)])
    with np.load(path) as entries:
        arrays = dict(entries)
    return json.loads(arrays.pop("state").item()), arrays


@pytest.mark.parametrize("entry", [
    "settings", "step", "random_state", "history", "adam", "settings.task", "settings.warmup", "settings.batch_size",
    "settings.seed", "random_state.state", "adam.steps"])
@pytest.mark.parametrize("value", ["missing", None, "x", -1, 3.5])
def test_a_state_that_no_run_could_go_on_from_is_refused_in_one_line(state, entry, value, tmp_path, capsys):
    state, arrays = json.loads(json.dumps(state[0])), state[1]
    *inside, name = entry.split(".")
    holder = state[inside[0]] if inside else state
    if value == "missing":
        del holder[name]
    else:
        holder[name] = value
    np.savez(tmp_path / "a.npz", state=np.array(json.dumps(state)), **arrays)
    capsys.readouterr()
    assert main(["--resume", "--checkpoint", str(tmp_path / "a.npz")]) == 2
    output, error = capsys.readouterr()
    assert output == "" and error.count("\n") == 1
    assert "not a checkpoint of this program" in error or "no run that could be resumed" in error


def test_settings_that_do_not_fit_the_weights_name_the_entry_and_both_shapes(state, tmp_path, capsys):
    settings = {**state[0]["settings"], "vocab_size": 13}
    np.savez(tmp_path / "a.npz", state=np.array(json.dumps({**state[0], "settings": settings})), **state[1])
    assert main(["--resume", "--checkpoint", str(tmp_path / "a.npz")]) == 2
    assert "output_projection holds float32 (16, 12) where float32 (16, 13)" in capsys.readouterr().err


def test_damaged_and_foreign_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "a.npz"
    save_checkpoint(path, tiny())
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [b"", b"hello", whole[:100], whole[:len(whole) // 2], whole[:-1], b"\0" * 1000, b"\x80\x04N."]
    for place in rng.integers(0, len(whole), 40):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0xff]) + whole[place + 1:])
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            loaded = load_checkpoint(path)
        except CheckpointError as error:
            assert "\n" not in str(error) and str(path) in str(error)
            refused += 1
        else:                                        # a byte that no reader looks at, such as a date: all else is right
            for name, weight in tiny().named_parameters().items():
                assert (loaded.model.named_parameters()[name] == weight).all()
    assert refused > 35
    with pytest.raises(CheckpointError, match="No such file"):
        load_checkpoint(tmp_path / "missing.npz")


def test_a_full_disk_leaves_the_old_checkpoint(train, tmp_path, monkeypatch, capsys):
    assert train("--max-steps", 100) == 1
    before = Path("checkpoints/copy.npz").read_bytes()

    def full(file, **arrays):
        file.write(b"half a che")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    capsys.readouterr()
    assert train("--resume", "--max-steps", 200) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and "No space left on device" in error[0] and "untouched" in error[0]
    assert Path("checkpoints/copy.npz").read_bytes() == before
    assert os.listdir("checkpoints") == ["copy.npz"]


def test_a_new_run_keeps_the_checkpoint_that_it_replaces(train):
    train("--max-steps", 10)
    before = Path("checkpoints/copy.npz").read_bytes()
    train("--max-steps", 20, "--seed", 7)
    assert Path("checkpoints/copy.previous.npz").read_bytes() == before != Path("checkpoints/copy.npz").read_bytes()


# ------------------------------------------------------------------------------------- the same numbers every time


def without_seconds(path):
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"}
            for line in Path(path).read_text().splitlines()]


def test_the_same_seed_gives_the_same_checkpoint_byte_for_byte(train):
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        train("--max-steps", 110, "--seed", seed, "--checkpoint", f"{name}.npz", "--metrics-file", f"{name}.jsonl")
    a, b, c = (Path(f"{name}.npz").read_bytes() for name in "abc")
    assert a == b != c
    assert without_seconds("a.jsonl") == without_seconds("b.jsonl") != without_seconds("c.jsonl")


@pytest.mark.parametrize("stop", [100, 37])
@pytest.mark.parametrize("data", [False, True])
def test_a_resumed_run_equals_an_unbroken_one_bit_for_bit(train, tmp_path, stop, data):
    data = ["--data", lines_file(tmp_path / "text.txt"), "--seq-len", 7] if data else []
    train(*data, "--max-steps", 200, "--checkpoint", "whole.npz", "--metrics-file", "whole.jsonl")
    train(*data, "--max-steps", stop, "--checkpoint", "broken.npz", "--metrics-file", "broken.jsonl")
    assert main(["--resume", "--max-steps", "200", "--checkpoint", "broken.npz", "--metrics-file", "broken.jsonl"]) in (0, 1)
    assert Path("whole.npz").read_bytes() == Path("broken.npz").read_bytes()
    whole, broken = ([entry for entry in without_seconds(f"{name}.jsonl") if entry["event"] == "train"]
                     for name in ("whole", "broken"))
    assert whole == broken and whole[-1]["step"] == 200


def test_the_model_that_is_tested_is_a_running_mean_of_the_weights():
    """6.1: snapshots every 20 steps, the mean of the first five, then a fifth for the newest; before, the weights."""
    run = Run({**train_minimal.DEFAULTS, "d_model": 8, "n_heads": 2, "n_layers": 1, "seq_len": 5, "batch_size": 4})
    name, snapshots = "encoder_layers.0.feed_forward.W1", []
    for step in range(1, 141):
        run.train_step()
        newest = run.model.named_parameters()[name].copy()
        if step % 20 == 0:
            snapshots.append(newest)
        expected = newest if step < 20 else np.mean(snapshots[:5], axis=0)
        for snapshot in snapshots[5:]:
            expected = expected + (snapshot - expected) / 5
        with run.averaged() as given:
            np.testing.assert_allclose(run.model.named_parameters()[name], expected, rtol=1e-5, atol=1e-7)
            assert (given[name] == newest).all()
        assert (run.model.named_parameters()[name] == newest).all()


def test_metrics_after_a_kill_and_a_resume_hold_each_step_once(train):
    """The killed run had written more than its last checkpoint knows, and half a line."""
    train("--max-steps", 40, "--metrics-file", "whole.jsonl", "--checkpoint", "whole.npz")
    train("--max-steps", 20, "--metrics-file", "m.jsonl")
    with open("m.jsonl", "a") as file:
        file.write(Path("whole.jsonl").read_text().splitlines()[2] + '\n{"event": "tra')
    train("--resume", "--max-steps", 40, "--metrics-file", "m.jsonl")
    assert without_seconds("m.jsonl") == without_seconds("whole.jsonl")


def test_metrics_end_with_what_the_test_set_says(train):
    status = train("--max-steps", 100, "--metrics-file", "m.jsonl", "--target-exact-match", 0)
    lines = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]
    final = lines[-1]
    assert status == 0 and final["event"] == "final" and final["task"] == "copy" and final["steps"] == 100
    assert {"test_exact_match", "test_loss", "seconds"} <= final.keys()
    assert [line["step"] for line in lines[:-1]] == list(range(10, 101, 10)) and "exact_match" in lines[-2]


def run_command(*options, folder, **kwargs):
    return subprocess.Popen([sys.executable, str(ROOT / "train_minimal.py"), *SMALL, *map(str, options)], cwd=folder,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path):
    process = run_command("--max-steps", 100000, "--no-early-stop", "--checkpoint-every", 100000, folder=tmp_path)
    for line in process.stdout:
        if line.startswith("step   100"):
            break
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 130 and not error
    assert ("python train_minimal.py --resume --task copy --checkpoint checkpoints/copy.npz --max-steps 100000 "
            "--no-early-stop --checkpoint-every 100000\n") in output
    step = load_checkpoint(tmp_path / "checkpoints/copy.npz").step
    assert step >= 100 and f"everything up to step {step} is in checkpoints/copy.npz" in output


def test_ctrl_c_in_the_final_test_says_how_to_go_on(train, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_minimal, "report", interrupted)
    assert train("--max-steps", 10, "--checkpoint", "a b.npz") == 130
    output = capsys.readouterr().out
    assert "everything up to step 10 is in a b.npz" in output
    command = shlex.split(output.splitlines()[-1])
    assert command == [*"python train_minimal.py --resume --task copy --checkpoint".split(), "a b.npz", "--max-steps", "10"]
    monkeypatch.setattr(train_minimal, "report", lambda *_: 1.0)
    assert main(command[2:]) == 0


def test_ctrl_c_when_the_reader_of_the_output_has_gone_too(tmp_path):
    """As in `| tee`, where Ctrl-C ends both: the run is saved, and the status is that of an interruption."""
    process = run_command("--max-steps", 100000, "--no-early-stop", "--batch-size", 256, folder=tmp_path)
    for line in process.stdout:
        if line.startswith("Threads"):
            break
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130 and process.stderr.read() == ""
    assert load_checkpoint(tmp_path / "checkpoints/copy.npz").random_state


def test_killed_at_any_moment_there_is_a_whole_checkpoint(tmp_path):
    path = tmp_path / "checkpoints/copy.npz"
    for wait in (0, 0.02, 0.1):
        process = run_command("--max-steps", 100000, "--no-early-stop", "--checkpoint-every", 1, folder=tmp_path)
        process.stdout.readline()
        while not path.exists():
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        process.communicate()
        step = load_checkpoint(path).step
        assert main([*SMALL, "--resume", "--checkpoint", str(path), "--max-steps", str(step + 1)]) == 1


# -------------------------------------------------------------------------------------------------- what it learns


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 42])
@pytest.mark.parametrize("task", ["copy", "reverse"])
def test_the_defaults_reach_every_held_out_sequence(task, seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--task", task, "--seed", str(seed), "--metrics-file", "m.jsonl"]) == 0
    final = json.loads(Path("m.jsonl").read_text().splitlines()[-1])
    assert final["test_exact_match"] == 1.0 and final["steps"] <= 2300


@pytest.mark.slow
def test_a_harder_run_reaches_99_percent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--task", "copy", "--seq-len", "24", "--vocab-size", "50", "--target-exact-match", "0.99"]) == 0
