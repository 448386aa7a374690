"""The interactive page: its model against NumPy number by number, and the page in a browser without a network."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import REQUIRE_ALL_CHECKS, need
from page_reference import SWITCHES, attention_layers, differences, double_precision, masks_of, reference, score

from implementation import PositionalEncoding
from train_minimal import START, greedy_decode, load_checkpoint, make_masks, pack

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "visualizations"
PAGE = FOLDER / "transformer_interactive.html"
TASKS = ("copy", "reverse")
VIEWS = ("machine", "sequence", "attention", "switches", "explorers", "backward")
TOLERANCE = 1e-9

sys.path.insert(0, str(FOLDER))
import build_page


@pytest.fixture(scope="module")
def checkpoints():
    return {task: load_checkpoint(FOLDER / "checkpoints" / f"{task}.npz") for task in TASKS}


def ask_node(questions):
    """The answers of the page's model script, run by Node without a browser."""
    run = subprocess.run([need("node"), ROOT / "tests" / "page_model.js", PAGE], input=json.dumps(questions), text=True,
                         capture_output=True, check=True)
    return json.loads(run.stdout)


def random_tokens(rng, settings):
    length = rng.integers(1, settings["seq_len"], endpoint=True)
    return rng.integers(3, settings["vocab_size"], length).tolist()


def random_switches(rng, settings):
    """Each part off with probability 0.3, up to four heads off, and a gradient at the first step."""
    heads = [[kind, layer, head] for kind, layer in
             [(kind, layer) for kind in ("encoderSelfAttention", "decoderSelfAttention", "crossAttention")
              for layer in range(settings["n_layers"])] for head in range(settings["n_heads"])]
    off = rng.permutation(len(heads))[:rng.integers(0, 5)]
    return {**{name: bool(rng.random() < 0.7) for name in SWITCHES}, "heads": [heads[i] for i in off],
            "gradient": [0, int(rng.integers(settings["vocab_size"]))]}


def questions(checkpoints, n, seed):
    """For each task n inputs with everything on, a gradient asked for, and the same n with random switches."""
    rng = np.random.default_rng(seed)
    for task, checkpoint in checkpoints.items():
        for _ in range(n):
            tokens = random_tokens(rng, checkpoint.settings)
            gradient = [int(rng.integers(len(tokens))), int(rng.integers(checkpoint.settings["vocab_size"]))]
            yield {"call": "run", "task": task, "tokens": tokens, "switches": {"gradient": gradient}}
            yield {"call": "run", "task": task, "tokens": tokens,
                   "switches": random_switches(rng, checkpoint.settings)}


def assert_same(checkpoints, question, answer):
    """Every tensor of an answer equals NumPy's, and none is missing on either side."""
    checkpoint = checkpoints[question["task"]]
    ours = reference(checkpoint.model, checkpoint.settings, question["task"], question["tokens"], question["switches"])
    assert set(answer["tensors"]) == set(ours["tensors"])
    assert answer["output"] == ours["output"], question
    wrong = {name: d for name, d in differences(answer, ours) if d > TOLERANCE}
    assert not wrong, (question, wrong)


# ------------------------------------------------------------------------------------------------ the file itself


def test_the_page_is_what_the_script_writes(tmp_path, capsys):
    assert build_page.main(["--check"]) == 0
    other = tmp_path / "page.html"
    assert build_page.main(["--out", str(other)]) == 0
    assert other.read_bytes() == PAGE.read_bytes()
    other.write_bytes(PAGE.read_bytes() + b" ")
    assert build_page.main(["--check", "--out", str(other)]) == 1
    assert "not what build_page.py writes" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["missing", "damaged", "swapped"])
def test_a_checkpoint_that_cannot_be_used_is_one_line(tmp_path, capsys, damage):
    for task in TASKS:
        content = (FOLDER / "checkpoints" / f"{task}.npz").read_bytes()
        (tmp_path / f"{task}.npz").write_bytes(content[:1000] if damage == "damaged" else content)
    if damage == "missing":
        (tmp_path / "copy.npz").unlink()
    if damage == "swapped":
        (tmp_path / "copy.npz").write_bytes((FOLDER / "checkpoints" / "reverse.npz").read_bytes())
    out = tmp_path / "page.html"
    assert build_page.main(["--checkpoints", str(tmp_path), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "copy.npz" in error and not out.exists()


def test_the_page_is_one_file_that_asks_for_nothing():
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.encode("utf-8")) <= 1.5e6
    assert set(re.findall(r"https?://[^\"'\s)]*", text)) == {"http://www.w3.org/2000/svg"}     # a name, not an address
    for word in ("Math.random", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(",
                 "XMLHttpRequest", "import(", "@import", "url("):
        assert word not in text, word


def test_the_committed_models_write_every_answer(checkpoints):
    """The end of training said 100 %; these sequences are drawn anew."""
    rng = np.random.default_rng(5)
    for task, checkpoint in checkpoints.items():
        settings = checkpoint.settings
        src, tgt = pack([random_tokens(rng, settings) for _ in range(200)], task, settings["seq_len"])
        written = greedy_decode(checkpoint.model, src, settings["seq_len"] + 1)
        assert np.array_equal(written, tgt[:, 1:1 + written.shape[1]]), task


# ------------------------------------------------------------------------------------------- the reference itself


def test_the_reference_with_everything_on_is_the_model(checkpoints):
    """What tests/page_reference.py adds changes nothing while nothing is switched off."""
    for task, checkpoint in checkpoints.items():
        settings, tokens = checkpoint.settings, [5, 3, 9]
        model = double_precision(checkpoint.model, settings)
        ours = reference(checkpoint.model, settings, task, tokens, {"gradient": [1, 3]})
        src, _ = pack([tokens], task, settings["seq_len"])
        assert ours["output"] == greedy_decode(model, src, settings["seq_len"] + 1)[0].tolist()
        target = np.array([[START, *ours["output"][:-1]]])
        logits = model(src, target, *make_masks(src, target))
        np.testing.assert_allclose(ours["logits"], logits[0], rtol=0, atol=1e-12)
        for (kind, i), layer in attention_layers(model).items():
            np.testing.assert_allclose(ours[kind][i], layer.get_attention_weights()[0], rtol=0, atol=1e-12)
        # The gradient at a position's embedded vector, summed over equal tokens, is that of the table's row.
        dlogits = np.zeros_like(logits)
        dlogits[0, 1, 3] = 1
        model.backward(dlogits)
        for token, gradient in zip(src[0], ours["gradients"]["sourceEmbeddings"]):
            if token >= 2:                                        # padding stands there several times
                row = model.src_embedding.dembedding[token] / model.src_embedding.scale
                np.testing.assert_allclose(gradient, row, rtol=0, atol=1e-12)


@pytest.mark.parametrize("part", [*SWITCHES, "heads"])
def test_every_switch_of_the_reference_changes_the_pass(checkpoints, part):
    checkpoint = checkpoints["copy"]
    off = {"heads": [["crossAttention", 0, 0]]} if part == "heads" else {part: False}
    whole, broken = (reference(checkpoint.model, checkpoint.settings, "copy", [5, 3, 9, 7], switches)
                     for switches in ({}, off))
    n = min(len(whole["logits"]), len(broken["logits"]))
    assert np.abs(whole["logits"][:n] - broken["logits"][:n]).max() > 1e-6


# ------------------------------------------------------------------------------------- the model, without a browser


def test_the_pages_model_agrees_with_numpy(checkpoints):
    asked = list(questions(checkpoints, 5, seed=1))
    for question, answer in zip(asked, ask_node(asked), strict=True):
        assert_same(checkpoints, question, answer)


def test_teacher_forced_and_free_running_agree_with_numpy(checkpoints):
    asked = list(questions(checkpoints, 4, seed=2))
    for question in asked:
        question["call"] = "score"
        del question["switches"]["gradient"]
    for question, answer in zip(asked, ask_node(asked), strict=True):
        checkpoint = checkpoints[question["task"]]
        ours = score(checkpoint.model, checkpoint.settings, question["task"], question["tokens"], question["switches"])
        wrong = {name: d for name, d in differences(answer, ours) if d > TOLERANCE}
        assert not wrong, (question, wrong)


@pytest.mark.parametrize("task", ["copy", pytest.param("reverse", marks=pytest.mark.slow)])
def test_a_weight_changed_by_a_thousandth_is_noticed(checkpoints, task):
    """In every weight array, one number changed by 1e-3: the comparison must fail. The number is the one on which the
    asked-for logit depends most, since some (an unused token's row, a unit that stays at 0) have no effect at all."""
    tokens, gradient = [5, 3, 9, 7, 4, 8, 11, 6], [2, 4]
    checkpoint = checkpoints[task]
    model = double_precision(checkpoint.model, checkpoint.settings)
    parts = ["logits", "gradients"]
    question = {"call": "run", "task": task, "tokens": tokens, "switches": {"gradient": gradient}, "only": parts}
    ours = reference(checkpoint.model, checkpoint.settings, task, tokens, question["switches"])
    source, target = ours["source"][None], ours["target"][None]
    dlogits = np.zeros_like(model(source, target, *masks_of(source, target, {})))
    dlogits[0, gradient[0], gradient[1]] = 1
    model.backward(dlogits)
    nudges = []
    for name, d in model.named_gradients().items():
        index = np.unravel_index(np.abs(d).argmax(), d.shape)
        nudges.append([name, [int(i) for i in index], 1e-3])
    assert len(nudges) == len(checkpoint.model.named_parameters())
    ours = {part: ours[part] for part in parts}
    *wrong, right = ask_node([*({**question, "nudge": nudge} for nudge in nudges), question])
    for nudge, answer in zip(nudges, wrong, strict=True):
        assert max(d for _, d in differences(answer, ours)) > TOLERANCE, nudge
    assert max(d for _, d in differences(right, ours)) <= TOLERANCE


# ------------------------------------------------------------------------------------------------ in the browser


@pytest.fixture(scope="module")
def browser():
    playwright = need("playwright.sync_api")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=need("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """open_page(hash, width, scheme) -> a page opened from disk with the network cut; whatever it asked for or
    complained about fails the test."""
    contexts, trouble = [], []

    def open_(fragment="", width=1280, scheme="light", **options):
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, color_scheme=scheme,
                                      **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(180_000)
        address = PAGE.as_uri()
        page.on("request", lambda request: request.url.partition("#")[0] in (address, "data:,") or
                trouble.append(f"request for {request.url}"))
        page.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
        page.goto(address + fragment)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not trouble


def visit(page, fragment):
    """Another address of the page that is open, without loading it again."""
    page.goto(PAGE.as_uri() + fragment)
    shows_its_address(page, re.search("view=([a-z]+)", fragment)[1])


def shows_its_address(page, view):
    """Wait until the page has heard of the address that it stands at; it draws in the same turn."""
    page.wait_for_function("addressOf(state) === addressOf(stateFromAddress())")
    page.wait_for_selector(f"#view-{view}:not([hidden])")


def open_tables(page, details):
    """Open tables of values, a JavaScript list of details, and wait until each is filled."""
    page.evaluate(f"{details}.forEach((details) => {{ details.open = true; }})")
    page.wait_for_function(f"{details}.every((details) => details.querySelector('table'))")


def at_rest(page):
    """Wait until nothing on the page is still being measured."""
    page.wait_for_function("!document.querySelector('main').innerText.includes('measuring')")


def narrow(page):
    return page.evaluate("document.documentElement.scrollWidth")


def test_every_view_opens_from_disk_and_fits_a_phone(open_page):
    page = open_page(width=375)
    for view in VIEWS:
        visit(page, f"#view={view}&tokens=11+10+11+10+11+10+11+10&shown=9&strategy=temperature&temperature=4&length=20")
        assert page.locator("section h2:visible").count() == 1
        assert page.locator("nav a[aria-current=page]").get_attribute("id") == f"link-{view}"
        assert narrow(page) <= 375
        open_tables(page, "[...document.querySelectorAll('main section:not([hidden]) details')]")
        assert narrow(page) <= 375


def test_every_picture_has_a_name_and_a_table(open_page):
    page = open_page()
    for view in VIEWS:
        visit(page, f"#view={view}&shown=4")
        found = page.evaluate("""() => {
            const pictures = [...document.querySelectorAll("main section:not([hidden]) :is(canvas, svg)")];
            return pictures.map((picture) => ({
                name: picture.getAttribute("aria-label"), role: picture.getAttribute("role"),
                inButton: picture.closest("button")?.getAttribute("aria-label"),
                table: Boolean(picture.closest("figure")?.querySelector("details")) }));
        }""")
        for picture in found:
            assert picture["inButton"] or picture["name"], (view, picture)
            assert picture["inButton"] or picture["role"] == "group" or picture["table"], (view, picture)
        assert found or view in ("sequence", "switches")            # these two are made of tables
        assert page.locator("main section:not([hidden]) :is(table, details)").count() > 0


def test_masked_pixels_let_the_hatching_through(open_page):
    page = open_page("#view=attention&tokens=5+3+9")
    alphas = page.evaluate("""(head) => { const canvas = document.querySelector(`[data-key="${head}"] canvas`);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return [[canvas.height, canvas.width], [...data].filter((_, i) => i % 4 === 3),
                getComputedStyle(canvas).backgroundImage]; }""", "thumb decoderSelfAttention.0.1")
    shape, alpha, background = alphas
    assert shape == [4, 4] and background.startswith("repeating-linear-gradient")
    assert np.array_equal(np.reshape(alpha, shape) == 0, np.triu(np.ones(shape), 1))


def test_beside_the_switches_of_a_narrow_page_stands_what_it_writes(open_page):
    page = open_page("#view=switches&task=reverse&tokens=5+3+9+7+4", width=375)
    now, table = page.locator(".now"), page.locator(".compare tbody tr").first.locator("td").nth(1)
    assert now.is_visible() and now.inner_text().split()[:4] == ["Everything", "on:", "it", "writes"]
    page.locator("#switches-controls input[type=checkbox]").nth(3).uncheck()
    assert "(wrong)" in now.inner_text()
    assert now.inner_text().split()[5:] == table.inner_text().split()
    assert not open_page("#view=switches").locator(".now").is_visible()


def read_table(page, name):
    """The numbers of the table behind a picture, opened as a reader would."""
    page.locator(f"details[data-key$='{name}'] summary").click()
    rows = page.locator(f"[aria-label='Values of {name}'] tbody tr")
    rows.first.wait_for()                              # the table is filled once the browser says that it is open
    return [[cell.replace("\N{MINUS SIGN}", "-") for cell in row.locator("td").all_inner_texts()]
            for row in rows.all()]


def test_the_numbers_on_the_page_are_those_of_numpy(open_page, checkpoints):
    """Read from the tables of the attention view and of the backward view, not from the model script."""
    checkpoint, tokens = checkpoints["reverse"], [7, 3, 3, 10]
    ours = reference(checkpoint.model, checkpoint.settings, "reverse", tokens, {"gradient": [1, 3]})
    fragment = "&task=reverse&tokens=7+3+3+10&kind=decoderSelfAttention&layer=1&head=2&gradientStep=1&gradientToken=3"
    head = "Decoder self-attention, layer 2, head 3"
    shown = {"attention": (f"attention weights of {head}", ours["decoderSelfAttention"]),
             "backward": (f"gradient at the weights of {head}", ours["gradients"]["decoderSelfAttention"])}
    page = open_page()
    for view, (name, arrays) in shown.items():
        visit(page, f"#view={view}{fragment}")
        table = read_table(page, name)
        hidden = ours["masks"]["decoderSelfAttention"]
        assert len(table) == len(arrays[1][2])
        for i, row in enumerate(table):
            for j, cell in enumerate(row):
                if hidden[i, j]:
                    assert cell == "masked"
                else:
                    assert float(cell) == pytest.approx(arrays[1][2][i][j], abs=0.6e-8)
    checked = page.locator("#gradient-check .mono").all_inner_texts()
    slope, gradient = (float(text.replace("\N{MINUS SIGN}", "-")) for text in checked)
    assert abs(gradient) == pytest.approx(np.abs(ours["gradients"]["sourceEmbeddings"]).max(), abs=0.6e-7)
    assert slope == pytest.approx(gradient, abs=2e-7)
    visit(page, f"#view=attention{fragment}&query=2&key=1")
    weight = page.locator(".step").nth(3).locator("tr.chosen td").all_inner_texts()[-1]
    assert float(weight) == pytest.approx(ours["decoderSelfAttention"][1][2][2][1], abs=0.6e-4)
    visit(page, f"#view=sequence{fragment}&shown=3&step=2")
    best = page.locator(".bars tr.chosen td").first.inner_text()
    assert float(best) == pytest.approx(ours["probabilities"][2].max(), abs=0.6e-6)


def test_wrong_questions_are_refused_in_words(open_page):
    page = open_page()
    ask = """([task, tokens, switches]) => {
        try {
            window.transformer.run(task, tokens, switches);
            return "answered";
        } catch (error) {
            return `${error.name}: ${error.message}`;
        }
    }"""
    for question, words in [
            (["add", [3], {}], "RangeError: there is no task add"),
            (["copy", [], {}], "RangeError: between 1 and"),
            (["copy", [3] * 9, {}], "RangeError: between 1 and 8"),
            (["copy", [2], {}], "RangeError: 2 is not a token"),
            (["copy", [12], {}], "RangeError: 12 is not a token"),
            (["copy", [3.5], {}], "RangeError: 3.5 is not a token"),
            (["copy", ["5"], {}], "RangeError: 5 is not a token"),
            (["copy", [3], {"mask": False}], "TypeError: there is no switch"),
            (["copy", [3], {"scale": 0}], "TypeError: scale must be"),
            (["copy", [3], {"heads": [["crossAttention", 2, 0]]}], "RangeError: there is no head"),
            (["copy", [3], {"gradient": [5, 0]}], "RangeError: there is no logit")]:
        assert page.evaluate(ask, question).startswith(words), question
    assert page.evaluate(ask, ["copy", [3], {}]) == "answered"


def test_what_the_user_types_stays_text(open_page):
    page = open_page()
    text = "<img src=x onerror=alert(1)>"
    page.fill("#tokens", text)
    assert page.locator("img").count() == 0
    assert '"<img" is not a token' in page.locator("#tokens-error").inner_text()
    page.reload()
    assert page.input_value("#tokens") == text
    page.fill("#tokens", "3 4, 5")
    assert page.locator("#tokens-error").inner_text() == ""
    assert page.locator("#written").inner_text().split() == ["3", "4", "5", "end"]
    page.fill("#tokens", "3 4 5 6 7 8 9 10 11")
    assert "at most 8 tokens" in page.locator("#tokens-error").inner_text()
    assert page.locator("#written").inner_text().split() == ["3", "4", "5", "end"]


def test_the_address_holds_the_view_and_nonsense_in_it_is_ignored(open_page):
    page = open_page("#view=attention&task=reverse&tokens=8+6&kind=encoderSelfAttention&layer=0&head=3&query=1&key=2"
                     "&theme=dark")
    assert page.locator("#attention-map h3").inner_text() == "Encoder self-attention, layer 1, head 4"
    page.locator("[data-key='cell 0 0']").click()
    page.locator("#link-backward").click()
    page.wait_for_url("**#view=backward*")
    page.go_back()
    shows_its_address(page, "attention")
    assert page.locator("[aria-selected=true]").get_attribute("data-key") == "cell 0 0"
    again = open_page("#" + page.url.partition("#")[2])
    assert again.locator("#main").inner_text() == page.locator("#main").inner_text()
    assert again.evaluate("document.documentElement.dataset.theme") == "dark"
    for view in VIEWS:
        visit(again, f"#view={view}&task=constructor&layer=99&head=-1&query=x&shown=1e9&off=a,,b&box=%3Cb%3E&wave=127"
                     "&headsOff=crossAttention.9.9,toString.0.0&width=2&d_k=0&gradientToken=77&temperature=0"
                     "&kind=__proto__&tokens=%E0%A4%A")
        assert again.locator("section h2:visible").count() == 1


def test_sampling_repeats_with_its_seed_and_follows_its_probabilities(open_page):
    page = open_page()

    def line(seed):
        visit(page, f"#view=sequence&strategy=temperature&temperature=5&seed={seed}&tokens=5+3+9+7+4&shown=9")
        return page.locator("#sequence-body .line").inner_text().split()
    assert line(1) == line(1)
    assert len({tuple(line(seed)) for seed in range(6)}) > 1
    tokens = page.evaluate("""() => { const random = Model.generator(3); const counts = [0, 0, 0];
        for (let i = 0; i < 20000; i++) counts[Model.sample([0, Math.log(2), Math.log(5)], 1, random.uniform())] += 1;
        return counts; }""")
    np.testing.assert_allclose(np.array(tokens) / 20000, [1 / 8, 2 / 8, 5 / 8], atol=0.015)


def test_the_explorers_show_the_papers_numbers(open_page):
    page = open_page("#view=explorers&d_k=64&width=33&length=40&first=3&second=9")
    for width in (1, 8, 33):
        table = page.evaluate("(width) => window.transformer.positionalEncoding(40, width)", width)
        np.testing.assert_allclose(table, PositionalEncoding(width, 40, dtype=np.float64).pe, rtol=0, atol=TOLERANCE)
    pe = PositionalEncoding(33, 40, dtype=np.float64).pe
    similarity, variance = page.locator(".big").all_inner_texts()
    assert f"dot product {pe[3] @ pe[9]:.3f}" in similarity
    before, after = (float(x) for x in re.findall(r"\d+\.\d+", variance))
    assert 55 < before < 73 and after == pytest.approx(before / 64, abs=1e-3)          # about 64, about 1


def test_themes_and_reduced_motion(open_page):
    background = "getComputedStyle(document.body).backgroundColor"
    moving = "getComputedStyle(document.querySelector('.bar')).transitionDuration"
    page = open_page("#view=sequence")
    light, motion = page.evaluate(background), page.evaluate(moving)
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    dark, rest = page.evaluate(background), page.evaluate(moving)
    assert light != dark and motion != "0s" and rest == "0s"
    page.click("#theme")
    assert page.evaluate(background) == light                               # chosen, whatever the system says
    page.emulate_media(color_scheme="light")
    page.click("#theme")
    assert page.evaluate(background) == dark


def tab_to(page, condition, most=120):
    """Press Tab until the focused element satisfies a condition in JavaScript; the path a keyboard user takes."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate(f"(() => {{ const e = document.activeElement; return {condition}; }})()"):
            return
    raise AssertionError(f"the keyboard never reached {condition}")


def test_a_tour_by_keyboard_alone(open_page):
    page = open_page()
    def press(*keys):
        for key in keys:
            page.keyboard.press(key)

    def text(selector):
        return page.locator(selector).inner_text()
    tab_to(page, "e.id === 'skip'", most=1)
    tab_to(page, "e.name === 'choice-task'")
    press("ArrowRight")
    tab_to(page, "e.id === 'tokens'")
    press("ControlOrMeta+a")
    page.keyboard.type("4 9 6")
    assert text("#written").split() == ["6", "9", "4", "end"]

    tab_to(page, "e.dataset.key?.startsWith('box')")                                    # 1. the machine
    press("Home")
    assert text("#machine-panel h3") == "Output embedding"
    press("ArrowUp", "ArrowUp")
    assert text("#machine-panel h3") == "Masked self-attention, decoder layer 1"
    press("ArrowLeft")
    assert text("#machine-panel h3") == "Self-attention, encoder layer 1"
    tab_to(page, "e.tagName === 'SUMMARY' && e.closest('#machine-panel')")
    press("Enter")
    page.locator("#machine-panel details[open] table").wait_for()

    def go(view):
        page.locator("#skip").focus()                                       # as after loading; the rest by Tab
        tab_to(page, f"e.id === 'link-{view}'")
        press("Enter")
        assert page.evaluate("document.activeElement.id") == f"title-{view}"

    go("sequence")
    tab_to(page, "e.textContent === 'Next token'")
    press("Enter", "Enter")
    assert text("#sequence-body .line").split()[:4] == ["start", "6", "9", "4"]
    tab_to(page, "e.textContent === 'All at once'")
    press("Space")
    assert "as it should be" in text("#sequence-body [role=status]")

    go("attention")
    tab_to(page, "e.dataset.key === 'thumb encoderSelfAttention.0.1'")
    press("Enter")
    assert text("#attention-map h3") == "Encoder self-attention, layer 1, head 2"
    tab_to(page, "e.getAttribute('role') === 'gridcell'")
    press("ArrowDown", "ArrowRight", "ArrowRight")
    assert page.evaluate("document.activeElement.dataset.key") == "cell 1 2"
    assert "The query is 9 at position 2, the key 6 at position 3" in text(".step >> nth=0")

    go("switches")
    tab_to(page, "e.type === 'checkbox'")
    press("Tab", "Space")
    page.wait_for_url(lambda url: "causalMask" in url)
    at_rest(page)
    assert "100.0 %" in text(".compare")

    go("explorers")
    tab_to(page, "e.id === 'control-d_k'")
    press("ArrowRight")
    page.wait_for_url(lambda url: "d_k=65" in url)

    go("backward")
    tab_to(page, "e.dataset.key === 'gradient step 1'")
    press("Enter")
    assert "Logit of 9 at step 2" in text("#backward-body")
    tab_to(page, "e.id === 'gradient-token'")
    press("ArrowDown")
    assert "Logit of 10 at step 2" in text("#backward-body")


def test_the_browser_agrees_with_numpy(open_page, checkpoints):
    compare_in_browser(open_page, checkpoints, 2, seed=3)


@pytest.mark.slow
def test_the_browser_agrees_with_numpy_on_a_hundred_inputs(open_page, checkpoints):
    compare_in_browser(open_page, checkpoints, 100, seed=4)


def compare_in_browser(open_page, checkpoints, n, seed):
    page = open_page()
    for question in questions(checkpoints, n, seed):
        asked = "(question) => JSON.stringify(transformer.run(...question))"
        answer = json.loads(page.evaluate(asked, [question["task"], question["tokens"], question["switches"]]))
        assert_same(checkpoints, question, answer)


def axe_script():
    """axe-core as npm installs it: in node_modules of the repository, or in the global folder."""
    places = [ROOT / "node_modules"]
    if os.environ.get("NODE_PATH"):
        places += [Path(place) for place in os.environ["NODE_PATH"].split(os.pathsep)]
    for place in places:
        if (place / "axe-core" / "axe.min.js").exists():
            return (place / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    (pytest.fail if REQUIRE_ALL_CHECKS else pytest.skip)("axe-core is not installed: npm install --no-save axe-core")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing(open_page, view, scheme):
    script = axe_script()
    for width in (1280, 375):
        page = open_page(f"#view={view}&shown=5&step=2&off=causalMask&headsOff=crossAttention.0.0&tokens=5+3+9+7+4+11"
                         "&length=12&width=12", width, scheme)
        at_rest(page)
        open_tables(page, "[...document.querySelectorAll('main section:not([hidden]) details')].slice(0, 3)")
        page.evaluate(script)
        found = page.evaluate("""async () => (await axe.run()).violations.map(({ id, nodes }) =>
            [id, nodes.slice(0, 5).map((node) => node.html.slice(0, 200))])""")
        assert not found


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 768, 1440])
def test_no_view_is_wider_than_its_window(open_page, width):
    page = open_page(width=width)
    for view in VIEWS:
        visit(page, f"#view={view}&tokens=11+11+11+11+11+11+11+11&shown=9")
        assert narrow(page) <= width
