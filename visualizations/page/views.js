/* The other five views. */

// ------------------------------------------------------------------------------------------ 2. Your sequence

const written = remember((task, tokens, strategy, temperature, seed) => {
  const model = models[task];
  const random = Model.generator(seed);
  const choose = strategy === "greedy" ? Model.argmax : (logits) => Model.sample(logits, temperature, random.uniform());
  return [...Model.decodeSteps(model, Model.makeSource(model, tokens), Model.ALL_ON, choose)].map(
    ({ token, logits }) => ({
      token,
      probabilities: Model.softmax(strategy === "greedy" ? logits : logits.map((x) => x / temperature)),
    }),
  );
});

const sequence = {
  mount() {
    const strategy = segments(
      "strategy",
      [
        ["greedy", "Greedy"],
        ["temperature", "Temperature"],
      ],
      (value) => set({ strategy: value }),
    );
    const temperature = slider("Temperature", "temperature", 0.1, 5, 0.1);
    const seed = seedControl("Seed", "seed");
    const button = (text, primary, onclick) =>
      el("button", { type: "button", class: primary && "primary", onclick }, text);
    this.next = button("Next token", true, () => set({ shown: state.shown + 1, step: state.shown }));
    this.all = button("All at once", false, () => {
      const { length } = this.steps();
      set({ shown: length, step: length - 1 });
    });
    this.again = button("Start again", false, () => set({ shown: 0, step: 0 }));
    this.parts = [strategy, temperature, seed];
    this.sampling = [temperature, seed];
    $("sequence-controls").append(
      el("fieldset", { class: "control" }, el("legend", {}, "Choose the next token"), strategy),
      temperature,
      seed,
      el("div", { class: "buttons" }, this.next, this.all, this.again),
    );
  },
  steps: () => written(state.task, tokensNow(), state.strategy, state.temperature, state.seed),
  update() {
    const steps = this.steps();
    const shown = steps.slice(0, state.shown);
    const step = Math.min(state.step, shown.length - 1);
    this.parts.forEach((part) => part.update());
    this.sampling.forEach((part) => {
      part.hidden = state.strategy === "greedy";
    });
    this.next.disabled = shown.length === steps.length;
    this.all.disabled = this.next.disabled;
    this.again.disabled = shown.length === 0;
    const line = el(
      "div",
      { class: "line", role: "group", "aria-label": "What the decoder has written; choose a step" },
      el("span", { class: "token" }, tokenText(Model.START)),
      shown.map(({ token }, i) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(i === step),
            "data-key": `step ${i}`,
            "aria-label": `step ${i + 1}: ${labelOf(token)}`,
            onclick: () => set({ step: i }),
          },
          tokenText(token),
        ),
      ),
      shown.length < steps.length && el("span", { class: "token", "aria-hidden": "true" }, "?"),
    );
    const complete = shown.length === steps.length;
    const right = [...Model.answer(state.task, tokensNow()), Model.END];
    const same = complete && right.length === steps.length && right.every((token, i) => steps[i].token === token);
    const verdict = el(
      "p",
      { class: "words", role: "status" },
      complete
        ? same
          ? `Written in ${steps.length} steps, as it should be.`
          : `Written in ${steps.length} steps; it should read ${right.map(labelOf).join(" ")}.`
        : `${shown.length} written so far. The next step reads all of them again.`,
    );
    $("sequence-body").replaceChildren(
      line,
      verdict,
      shown.length === 0 ? "" : el("div", { class: "two" }, this.candidates(shown[step], step), this.sheet(shown)),
    );
  },
  candidates({ token, probabilities }, step) {
    const order = range(VOCABULARY).sort((a, b) => probabilities[b] - probabilities[a]);
    return el(
      "div",
      {},
      el("h3", {}, `Candidates at step ${step + 1}`),
      bars(
        state.strategy === "greedy"
          ? "Greedy takes the first."
          : `At temperature ${state.temperature}, drawn with seed ${state.seed}.`,
        ["token", "probability"],
        order.map((candidate) => ({
          label: tokenText(candidate),
          cells: [number(probabilities[candidate], 6)],
          length: probabilities[candidate],
          chosen: candidate === token,
        })),
      ),
    );
  },
  sheet(shown) {
    const values = range(VOCABULARY).map((token) => shown.map(({ probabilities }) => probabilities[token]));
    return el(
      "div",
      {},
      el("h3", {}, "All steps"),
      el("p", { class: "axis" }, "Rows are candidates, columns the steps and what each chose."),
      heatTable(
        "Probability of each token at each step",
        range(VOCABULARY),
        shown.map(({ token }) => token),
        values,
      ),
    );
  },
};

// ---------------------------------------------------------------------------------------------- 3. Attention

/* 0 where a query looks at one key alone, log2(n) where it looks at n keys alike. */
const entropy = (weights) => -Model.sum(weights.map((p) => (p > 0 ? p * Math.log2(p) : 0)));

const attention = {
  mount() {},
  update() {
    const result = current();
    const { kind, layer, head } = state;
    const queries = queriesOf(result, kind),
      keys = keysOf(result, kind);
    const i = Math.min(state.query, queries.length - 1),
      j = Math.min(state.key, keys.length - 1);
    const mask = result.masks[kind];
    $("attention-heads").replaceChildren(
      headThumbs("Attention of every head", result, {
        largest: 1,
        masks: result.masks,
        onSelect: set,
        summary: [
          ["largest weight", (rows) => Math.max(...rows.flat())],
          ["mean entropy, bits", (rows) => Model.mean(rows.map(entropy))],
        ],
      }),
    );
    $("attention-map").replaceChildren(
      el("h3", {}, headName()),
      el("p", { class: "axis" }, "Queries down, keys across; hatched cells are hidden by the mask."),
      heatTable(`Attention weights of ${headName()}`, queries, keys, result[kind][layer][head], {
        hidden: mask,
        selected: [i, j],
        keep: "cell",
        onSelect: (query, key, focus) => {
          set({ query, key });
          if (focus) document.querySelector(`[data-key="cell ${query} ${key}"]`)?.focus();
        },
      }),
      valuesTable(
        `attention weights of ${headName()}`,
        queries.map(labelOf),
        keys.map(labelOf),
        result[kind][layer][head],
        { hidden: mask, digits: 8, corner: "query" },
      ),
    );
    $("attention-steps").replaceChildren(...this.steps(result, queries, keys, i, j));
  },
  steps(result, queries, keys, i, j) {
    const { kind, layer, head } = state;
    const name = Model.attentionName(kind, layer);
    const part = (which) => result.tensors[`${name}.${which}`][head];
    const hidden = result.masks[kind][i];
    const q = part("Q")[i],
      k = part("K")[j],
      V = part("V");
    const dots = part("dots")[i],
      scores = part("scores")[i],
      weights = part("weights")[i],
      output = part("heads")[i];
    const dims = range(q.length);
    const peak = Math.max(...scores.filter((_, key) => !hidden[key]));
    const exps = scores.map((score, key) => (hidden[key] ? 0 : Math.exp(score - peak)));
    const total = Model.sum(exps);
    const who = (token, at) => [tokenText(token), ` at position ${at + 1}`];
    const step = (title, ...content) => el("section", { class: "step" }, el("h3", {}, title), content);
    const wide = (label, heads, lines) =>
      el(
        "div",
        { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
        el(
          "table",
          {},
          el("caption", { class: "hidden-text" }, label),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              heads.map((text) => el("th", { scope: "col" }, text || el("span", { class: "hidden-text" }, "vector"))),
            ),
          ),
          el(
            "tbody",
            {},
            lines.map(({ heading, cells, mark }) =>
              el(
                "tr",
                { class: mark },
                el("th", { scope: "row" }, heading),
                cells.map((text) => el("td", {}, text)),
              ),
            ),
          ),
        ),
      );
    const keyLines = (cells) =>
      keys.map((token, key) => ({ heading: tokenText(token), cells: cells(key), mark: key === j && "chosen" }));
    return [
      step(
        "Query times key",
        el(
          "p",
          {},
          "The query is ",
          who(queries[i], i),
          ", the key ",
          who(keys[j], j),
          ". Multiply number by number and add up.",
        ),
        wide(
          "Query times key",
          ["", ...dims.map((d) => String(d + 1)), "sum"],
          [
            { heading: "q", cells: [...q.map((x) => number(x)), ""] },
            { heading: "k", cells: [...k.map((x) => number(x)), ""] },
            { heading: "q \u00B7 k", cells: [...dims.map((d) => number(q[d] * k[d])), number(dots[j])], mark: "total" },
          ],
        ),
      ),
      step(
        "Scale",
        el("p", {}, `Divide by the square root of the head's width, ${q.length}.`),
        el(
          "p",
          { class: "sum" },
          `${number(dots[j])} / \u221A${q.length} = ` +
            `${number(dots[j])} / ${number(Math.sqrt(q.length))} = ${number(scores[j])}`,
        ),
      ),
      step(
        "Mask",
        el(
          "p",
          {},
          hidden[j]
            ? ["The key ", who(keys[j], j), " is hidden: its score becomes \u2212\u221E, its weight 0."]
            : ["The key ", who(keys[j], j), " may be seen: its score stays."],
        ),
      ),
      step(
        "Softmax",
        el(
        "p",
        {},
        `Subtract the largest score that the mask leaves, ${number(peak)}, take the exponential, divide by the sum.`,
      ),
        wide(
          "Softmax over the keys",
          ["key", "score", "masked", "exp(score \u2212 largest)", "weight"],
          [
            ...keyLines((key) => [
              number(scores[key]),
              hidden[key] ? "\u2212\u221E" : number(scores[key]),
              number(exps[key]),
              number(weights[key]),
            ]),
            { heading: "sum", cells: ["", "", number(total), number(Model.sum(weights))], mark: "total" },
          ],
        ),
      ),
      step(
        "Weighted sum of the values",
        el(
          "p",
          {},
          "Each key's value, a vector of ",
          String(q.length),
          ", times its weight; the sum is what this head hands on for ",
          who(queries[i], i),
          ".",
        ),
        wide(
          "Weighted sum of the values",
          ["key", "weight", ...dims.map((d) => `v${d + 1}`)],
          [
            ...keyLines((key) => [number(weights[key]), ...V[key].map((x) => number(x))]),
            { heading: "sum", cells: ["", ...output.map((x) => number(x))], mark: "total" },
          ],
        ),
        el(
          "p",
          { class: "note" },
          "The table shows four decimals of numbers that have fifteen: a pocket calculator may differ in the last one.",
        ),
      ),
    ];
  },
};

// ----------------------------------------------------------------------------------------------- 4. Switches

const SWITCH_WORDS = {
  scale: ["Scale", "Scores are divided by the root of d_k"],
  causalMask: ["Causal mask", "The decoder does not see what comes later"],
  paddingMask: ["Padding mask", "Padding is never a key"],
  positions: ["Positions", "Sines and cosines are added to the embeddings"],
  residuals: ["Residual connections", "Each sublayer is added to what came in"],
  layerNorm: ["Layer norm", "Each position is normalised, then scaled and shifted"],
};
const SWITCH_NOTES = {
  scale: "Without the scale every score is larger by the root of d_k: the softmax moves towards a single key.",
  causalMask:
    "Its own writing often survives: the newest position has nothing later to see, though the earlier ones are " +
    "computed again with a future that training never showed them. The second percentage is where it fails: fed " +
    "the whole right answer, every position but the last sees ahead.",
  paddingMask: "Attention now spreads over padding, whose vectors were never trained to be read.",
  positions: "Without positions equal tokens look alike, and the encoder sees a set instead of a sequence.",
  residuals:
    "Without the residual path each sublayer's output replaces what came in: tokens and positions are lost on the way.",
  layerNorm: "Without layer norm the sums grow from sublayer to sublayer and leave the range the next weights expect.",
};
const listOf = (text) => text.split(",").filter(Boolean);
const switchesNow = () => ({
  ...Object.fromEntries(listOf(state.off).map((name) => [name, false])),
  heads: listOf(state.headsOff).map(headOf),
});

const SAMPLE = 40;
const sampleSequences = range(SAMPLE).map(
  (
    (random) => () =>
      range(random.integer(1, SEQ_LEN + 1)).map(() => random.integer(Model.FIRST_DATA, VOCABULARY))
  )(Model.generator(2017)),
);

/* Scores on the sample, a few sequences at a time so that the page stays awake. */
const measured = new Map();
let measuring = 0;
function measure(task, switches, done) {
  const key = JSON.stringify([task, switches]);
  if (measured.has(key)) return done(measured.get(key));
  const mine = measuring,
    found = [];
  const some = () => {
    if (mine !== measuring) return;
    const until = performance.now() + 30;
    while (found.length < SAMPLE && performance.now() < until) {
      found.push(Model.score(models[task], task, sampleSequences[found.length], switches));
    }
    if (found.length < SAMPLE) return setTimeout(some);
    measured.set(key, {
      teacherForced: Model.mean(found.map((x) => x.teacherForced)),
      freeRunning: Model.mean(found.map((x) => Number(x.exactMatch))),
    });
    done(measured.get(key));
  };
  setTimeout(some);
}

const switches = {
  mount() {
    const toggle = (field, name, label, content) => {
      const input = el("input", {
        type: "checkbox",
        "aria-label": label,
        onchange: () => {
          const names = new Set(listOf(state[field]));
          names[input.checked ? "delete" : "add"](name);
          set({ [field]: [...names].join(",") });
        },
      });
      this.inputs.push(() => {
        input.checked = !listOf(state[field]).includes(name);
      });
      return el("label", {}, input, content);
    };
    this.inputs = [];
    this.reset = el("button", { type: "button", onclick: () => set({ off: "", headsOff: "" }) }, "Everything on");
    this.now = el("p", { class: "now", role: "status" });
    $("switches-controls").append(
      this.now,
      el(
        "fieldset",
        {},
        el("legend", {}, "Parts"),
        SWITCHES.map((name) =>
          toggle(
            "off",
            name,
            undefined,
            el("span", {}, el("b", {}, SWITCH_WORDS[name][0]), el("small", {}, SWITCH_WORDS[name][1])),
          ),
        ),
      ),
      el(
        "fieldset",
        {},
        el("legend", {}, "Heads; one that is off hands on zeros"),
        el(
          "div",
          { class: "head-switches", style: { "--heads": HEADS } },
          el("span"),
          range(HEADS).map((head) =>
            el("span", { class: "caption", style: { "text-align": "center" } }, String(head + 1)),
          ),
          Object.keys(KINDS).flatMap((kind) =>
            range(LAYERS).map((layer) => [
              el("span", { class: "caption" }, SHORT[kind], el("br"), `layer ${layer + 1}`),
              range(HEADS).map((head) =>
                toggle("headsOff", `${kind}.${layer}.${head}`, `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}`),
              ),
            ]),
          ),
        ),
      ),
      this.reset,
    );
  },
  update() {
    this.inputs.forEach((show) => show());
    const off = switchesNow();
    const whole = current(),
      broken = current(off);
    const nothingOff = !state.off && !state.headsOff;
    this.reset.disabled = nothingOff;
    const waiting = () => el("span", { class: "special" }, "measuring");
    const cells = Object.fromEntries(
      ["taughtWhole", "taughtBroken", "freeWhole", "freeBroken"].map((name) => [name, el("td", {}, waiting())]),
    );
    const tokens = (result) =>
      result.output.map((token, i) => [
        i > 0 && " ",
        el(
          "span",
          { class: token !== result.answer[i] && "wrong" },
          tokenText(token),
          token !== result.answer[i] && el("span", { class: "hidden-text" }, " (wrong)"),
        ),
      ]);
    const words = (result) => el("td", {}, tokens(result));
    this.now.replaceChildren(
      `${nothingOff ? "Everything on: it" : "With your switches it"} writes `,
      el("span", { class: "mono" }, tokens(broken)),
    );
    const future = (result) =>
      Model.mean(
        result.decoderSelfAttention.flat().map((head) => Model.mean(head.map((row, i) => Model.sum(row.slice(i + 1))))),
      );
    const onPadding = (result) =>
      Model.mean(
        ["encoderSelfAttention", "crossAttention"].flatMap((kind) =>
          result[kind]
            .flat()
            .map((head) =>
              Model.mean(head.map((row) => Model.sum(row.filter((_, j) => result.source[j] === Model.PAD)))),
            ),
        ),
      );
    const percent = (x) => `${number(100 * x, 1)} %`;
    const leak = (given) => window.transformer.leak(state.task, tokensNow(), given);
    const line = (name, ...both) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        both.map((x) => (x instanceof Node ? x : el("td", {}, x))),
      );
    const { kind, layer, head } = state;
    const map = (result, title) =>
      el(
        "div",
        {},
        el("h4", {}, title),
        heatTable(`${title}: ${headName()}`, queriesOf(result, kind), keysOf(result, kind), result[kind][layer][head], {
          hidden: result.masks[kind],
        }),
      );
    $("switches-body").replaceChildren(
      ...[
        el(
          "table",
          { class: "compare" },
          el("caption", { class: "hidden-text" }, "The whole model beside the one with your switches"),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, el("span", { class: "hidden-text" }, "what is compared")),
              el("th", { scope: "col" }, "Whole"),
              el("th", { scope: "col" }, nothingOff ? "Nothing switched off" : "With your switches"),
            ),
          ),
          el(
            "tbody",
            {},
            line("Writes", words(whole), words(broken)),
            line(`Free-running: whole sequences right, of ${SAMPLE}`, cells.freeWhole, cells.freeBroken),
            line("Teacher-forced: tokens right when it reads the right answer", cells.taughtWhole, cells.taughtBroken),
            line("Decoder attention that falls on later positions", percent(future(whole)), percent(future(broken))),
            line("Attention that falls on padding", percent(onPadding(whole)), percent(onPadding(broken))),
            line("Exchange the last target token: earlier logits move by at most", number(leak({})), number(leak(off))),
          ),
        ),
        listOf(state.off).map((name) => el("p", { class: "words" }, SWITCH_NOTES[name])),
        el("h3", { class: "apart" }, headName()),
        el("p", { class: "note" }, "The head chosen in the view Attention. A wrong token above has a wavy line."),
        el("div", { class: "pair" }, map(whole, "Whole"), map(broken, "With your switches")),
      ].flat(),
    );
    measuring += 1;
    const show = (taught, free) => (found) => {
      cells[taught].textContent = percent(found.teacherForced);
      cells[free].textContent = percent(found.freeRunning);
    };
    measure(state.task, { heads: [] }, show("taughtWhole", "freeWhole"));
    measure(state.task, off, show("taughtBroken", "freeBroken"));
  },
};

// ---------------------------------------------------------------------------------------------- 5. Explorers

const CHART = { width: 520, height: 170, left: 44, bottom: 24 };

/* A curve over whole numbers with its table. */
function curve(name, values, { marks = [], low = -1, high = 1, unit = "position" } = {}) {
  const { width, height, left, bottom } = CHART;
  const x = (i) => left + (width - left - 8) * (values.length > 1 ? i / (values.length - 1) : 0);
  const y = (value) => 8 + ((height - bottom - 8) * (high - value)) / (high - low);
  return el(
    "figure",
    {},
    el("figcaption", {}, name),
    el(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `${name}, from ${unit} 0 to ${values.length - 1}`,
      },
      el("line", { class: "axis-line", x1: left, x2: width - 8, y1: y(Math.max(low, 0)), y2: y(Math.max(low, 0)) }),
      el("text", { x: left - 8, y: y(high) + 4, "text-anchor": "end" }, number(high, Math.abs(high) < 10 ? 1 : 0)),
      el("text", { x: left - 8, y: y(low) + 4, "text-anchor": "end" }, number(low, Math.abs(low) < 10 ? 1 : 0)),
      el("text", { x: left, y: height - 4 }, `${unit} 0`),
      el("text", { x: width - 8, y: height - 4, "text-anchor": "end" }, String(values.length - 1)),
      el("polyline", {
        class: "curve",
        points: values.map((value, i) => `${x(i).toFixed(2)},${y(value).toFixed(2)}`).join(" "),
      }),
      marks.map((i) => el("circle", { class: "mark", cx: x(i), cy: y(values[i]), r: 4 })),
    ),
    valuesTable(
      name,
      values.map((_, i) => String(i)),
      ["value"],
      values.map((value) => [value]),
      { corner: unit },
    ),
  );
}

const draws = remember((width, seed) => {
  const random = Model.generator(seed);
  const vector = () => range(width).map(() => random.normal());
  return range(1000).map(() => Model.dot(vector(), vector()));
});

function histogram(name, values, reach) {
  const { width, height, left, bottom } = CHART;
  const bins = 24;
  const counts = new Array(bins).fill(0);
  for (const value of values)
    counts[Math.min(Math.max(Math.floor(((value / reach + 1) * bins) / 2), 0), bins - 1)] += 1;
  const most = Math.max(...counts);
  const step = (width - left - 8) / bins;
  const edge = (i) => ((2 * i) / bins - 1) * reach;
  return el(
    "figure",
    {},
    el("figcaption", {}, name),
    el(
      "svg",
      {
        class: "chart",
        viewBox: `0 0 ${width} ${height}`,
        role: "img",
        "aria-label": `${name}: histogram from ${number(-reach, 1)} to ${number(reach, 1)}`,
      },
      counts.map((count, i) =>
        el("rect", {
          class: "block",
          x: left + i * step + 0.5,
          width: step - 1,
          y: height - bottom - ((height - bottom - 8) * count) / most,
          height: ((height - bottom - 8) * count) / most,
        }),
      ),
      el("line", { class: "axis-line", x1: left, x2: width - 8, y1: height - bottom, y2: height - bottom }),
      el("text", { x: left, y: height - 4 }, number(-reach, 1)),
      el("text", { x: (left + width - 8) / 2, y: height - 4, "text-anchor": "middle" }, "0"),
      el("text", { x: width - 8, y: height - 4, "text-anchor": "end" }, number(reach, 1)),
    ),
    valuesTable(
      name,
      counts.map((_, i) => `${number(edge(i), 2)} to ${number(edge(i + 1), 2)}`),
      ["count"],
      counts.map((count) => [count]),
      { digits: 0, corner: "q\u00B7k" },
    ),
  );
}

const explorers = {
  mount() {
    this.positionSliders = [
      slider("Width", "width", 2, 128),
      slider("Length", "length", 2, 100),
      slider("Dimension", "wave", 0, 127),
      slider("First position", "first", 0, 99),
      slider("Second position", "second", 0, 99),
    ];
    const [width, length, wave, first, second] = this.positionSliders;
    const under = (...controls) => {
      const body = el("div");
      return { body, element: el("div", { class: "part" }, el("div", { class: "controls" }, controls), body) };
    };
    this.table = under(width, length);
    this.wave = under(wave);
    this.similarity = under(first, second);
    this.scaleSliders = [slider("Width of a head, d_k", "d_k", 1, 256)];
    this.seed = seedControl("Seed", "draw");
    this.scaleBody = el("div");
    $("explorers-body").append(
      el(
        "section",
        { class: "explorer", "aria-labelledby": "title-positions" },
        el(
          "div",
          {},
          el("h3", { id: "title-positions" }, "Positions as waves"),
          el(
            "p",
            { class: "note" },
            "Section 3.5. Even dimensions are sines, odd ones cosines; the further right, the slower.",
          ),
        ),
        el(
          "div",
          {},
          [this.table, this.wave, this.similarity].map(({ element }) => element),
        ),
      ),
      el(
        "section",
        { class: "explorer", "aria-labelledby": "title-root" },
        el(
          "div",
          {},
          el("h3", { id: "title-root" }, "Why the square root"),
          el(
            "p",
            { class: "note" },
            "Section 3.2.1, footnote 4. A thousand pairs of random vectors, each number normal with variance 1.",
          ),
          this.scaleSliders,
          this.seed,
        ),
        this.scaleBody,
      ),
    );
  },
  update() {
    const { width, length } = state;
    const at = {
      wave: Math.min(state.wave, width - 1),
      first: Math.min(state.first, length - 1),
      second: Math.min(state.second, length - 1),
    };
    this.positionSliders.forEach((part, i) => part.update([128, 100, width - 1, length - 1, length - 1][i]));
    this.scaleSliders.forEach((part) => part.update());
    this.seed.update();
    const pe = Model.positionalEncoding(length, width);
    const similar = pe.map((row) => Model.dot(pe[at.first], row));
    const distance = Math.abs(at.first - at.second);
    const period = 2 * Math.PI * 10000 ** ((at.wave - (at.wave % 2)) / width);
    this.table.body.replaceChildren(
      picture("The table: a row for each position", range(length).map(String), range(width).map(String), pe, {
        height: `${Math.min(4 * length, 260)}px`,
      }),
      legend(SIGNS),
    );
    this.wave.body.replaceChildren(
      curve(
        `Dimension ${at.wave}: ${at.wave % 2 ? "a cosine" : "a sine"} that repeats every ` +
          `${number(period, period < 1000 ? 1 : 0)} positions`,
        pe.map((row) => row[at.wave]),
      ),
    );
    this.similarity.body.replaceChildren(
      el(
        "p",
        { class: "big" },
        `Positions ${at.first} and ${at.second}: dot product `,
        el("b", {}, number(similar[at.second], 3)),
        `; of position ${at.first} with itself ${number(similar[at.first], 3)}`,
      ),
      curve(`Dot product of position ${at.first} with every position`, similar, {
        marks: [at.first, at.second],
        low: Math.min(0, ...similar),
        high: Math.max(...similar),
      }),
      el(
        "p",
        { class: "note" },
        width % 2 ? "" : `It depends on the distance, ${distance}, alone: any other pair as far apart gives the same.`,
      ),
    );
    const dots = draws(state.d_k, state.draw);
    const root = Math.sqrt(state.d_k);
    const centre = Model.mean(dots);
    const variance = Model.mean(dots.map((x) => (x - centre) ** 2));
    const eight = dots.slice(0, 8);
    const raw = Model.softmax(eight),
      scaled = Model.softmax(eight.map((x) => x / root));
    const groups = range(dots.length / 8).map((g) => dots.slice(8 * g, 8 * g + 8));
    const overGroups = (measureOne) => (divisor) =>
      Model.mean(groups.map((group) => measureOne(Model.softmax(group.map((x) => x / divisor)))));
    const peak = overGroups((weights) => Math.max(...weights));
    const slope = overGroups((weights) => Model.sum(weights.map((p) => p * (1 - p))));
    const list = (name, scores, weights) =>
      bars(
        name,
        ["score", "weight"],
        scores.map((x, i) => ({
          label: number(x, 2),
          cells: [number(weights[i])],
          length: weights[i],
          chosen: i === Model.argmax(weights),
        })),
      );
    this.scaleBody.replaceChildren(
      el(
        "p",
        { class: "big" },
        "Variance of q\u00B7k: ",
        el("b", {}, number(variance, 1)),
        "; after the scale: ",
        el("b", {}, number(variance / state.d_k, 3)),
      ),
      histogram("q\u00B7k before the scale", dots, 3.5 * root),
      el(
        "div",
        { class: "two" },
        list("Softmax of the first eight, unscaled", eight, raw),
        list(
          "The same eight, divided by \u221Ad_k",
          eight.map((x) => x / root),
          scaled,
        ),
      ),
      el(
        "p",
        { class: "note" },
        `Over all ${groups.length} groups of eight, the largest weight is on average ${number(peak(1), 3)} unscaled ` +
          `and ${number(peak(root), 3)} scaled; the derivative p(1 \u2212 p), added over the eight, is ` +
          `${number(slope(1), 3)} and ${number(slope(root), 3)}. A saturated softmax lets little gradient through.`,
      ),
    );
  },
};

// ----------------------------------------------------------------------------------------------- 6. Backward

const backward = {
  mount() {
    this.steps = el("div", { class: "line", role: "group", "aria-label": "Step of the output", style: { margin: 0 } });
    this.token = el("select", {
      id: "gradient-token",
      onchange: () => set({ gradientToken: Number(this.token.value) }),
    });
    $("backward-controls").append(
      el("div", { class: "control" }, el("span", { class: "label" }, "Step"), this.steps),
      el("div", { class: "control" }, el("label", { for: "gradient-token" }, "Logit of the token"), this.token),
    );
  },
  /* The largest number of the source's gradient, found again without a backward pass. */
  check(result, step, token) {
    const vectors = result.gradients.sourceEmbeddings;
    const largest = largestOf(vectors);
    const position = vectors.findIndex((row) => row.some((x) => Math.abs(x) === largest));
    if (position < 0) return "";
    const dimension = vectors[position].findIndex((x) => Math.abs(x) === largest);
    const slope = Model.slope(models[state.task], result, [step, token], "src", position, dimension);
    return el(
      "p",
      { class: "words", id: "gradient-check" },
      `Checked without a backward pass: dimension ${dimension} of the source's position ${position + 1}, raised and ` +
        "lowered by 0.0001, moves the logit at a rate of ",
      el("span", { class: "mono" }, number(slope, 7)),
      "; the gradient there is ",
      el("span", { class: "mono" }, number(vectors[position][dimension], 7)),
      ".",
    );
  },
  update() {
    const plain = current();
    const step = Math.min(state.gradientStep, plain.output.length - 1);
    const token = state.gradientToken < 0 ? plain.output[step] : state.gradientToken;
    const result = current({ gradient: [step, token] });
    const { gradients } = result;
    this.steps.replaceChildren(
      ...plain.output.map((written, i) =>
        el(
          "button",
          {
            type: "button",
            "aria-pressed": String(i === step),
            "aria-label": `step ${i + 1}: ${labelOf(written)}`,
            "data-key": `gradient step ${i}`,
            onclick: () => set({ gradientStep: i, gradientToken: -1 }),
          },
          tokenText(written),
        ),
      ),
    );
    this.token.replaceChildren(
      ...range(VOCABULARY).map((id) =>
        el(
          "option",
          { value: id, selected: id === token },
          `${labelOf(id)}${id === plain.output[step] ? " (written)" : ""}`,
        ),
      ),
    );
    const { kind, layer, head } = state;
    const arrays = gradients[kind][layer][head];
    const queries = queriesOf(result, kind),
      keys = keysOf(result, kind);
    const mostOf = Object.keys(KINDS).reduce(
      (most, name) =>
        Math.max(
          most,
          ...gradients[name]
            .flat()
            .map((matrix, h) =>
              largestOf(matrix.map((row, i) => row.map((x, j) => (result.masks[name][i][j] ? 0 : x)))),
            ),
        ),
      0,
    );
    const largest = largestOf(arrays.map((row, i) => row.map((x, j) => (result.masks[kind][i][j] ? 0 : x))));
    const unit = Number(`1e${Math.floor(Math.log10(largest))}`);
    const dims = range(WIDTH).map(String);
    const lengths = (name, tokens, vectors) => {
      const norms = vectors.map((row) => Math.sqrt(Model.dot(row, row)));
      const most = Math.max(...norms) || 1;
      return bars(
        name,
        ["position", "length"],
        tokens.map((t, i) => ({
          label: tokenText(t),
          cells: [number(norms[i])],
          length: norms[i] / most,
          chosen: norms[i] === most,
        })),
      );
    };
    $("backward-body").replaceChildren(
      el(
        "p",
        { class: "big" },
        "Logit of ",
        el("b", {}, labelOf(token)),
        ` at step ${step + 1}: ${number(result.logits[step][token])}`,
      ),
      el(
        "div",
        { class: "two" },
        el(
          "div",
          {},
          lengths("Gradient at the source embeddings", result.source, gradients.sourceEmbeddings),
          el("br"),
          picture("Its numbers at each source position", result.source.map(labelOf), dims, gradients.sourceEmbeddings),
        ),
        el(
          "div",
          {},
          lengths("Gradient at the target embeddings", result.target, gradients.targetEmbeddings),
          el("br"),
          picture("Its numbers at each target position", result.target.map(labelOf), dims, gradients.targetEmbeddings),
        ),
      ),
      legend("A row is a position, a column a dimension.", SIGNS),
      this.check(result, step, token),
      el(
        "p",
        { class: "note" },
        "An embedding here is the vector that enters the stack: the row of the table times the root of d_model. " +
          "Later target positions get exactly 0: the causal mask stops the gradient as it stops the reading.",
      ),
      el("h3", { class: "apart" }, "Gradient at the attention weights"),
      el(
        "div",
        { class: "split wide" },
        headThumbs("Gradient of every head", gradients, {
          largest: mostOf || 1,
          masks: result.masks,
          onSelect: set,
          summary: [
            ["lowest", (rows) => Math.min(...rows.flat())],
            ["highest", (rows) => Math.max(...rows.flat())],
          ],
        }),
        el(
          "div",
          {},
          el("h4", { style: { "margin-top": 0 } }, headName()),
          el("p", { class: "axis" }, `How fast the logit would rise with each weight, in units of ${unit}.`),
          heatTable(`Gradient at the attention weights of ${headName()}`, queries, keys, arrays, {
            hidden: result.masks[kind],
            largest,
            text: (x) => (Math.abs(x / unit) < 0.05 ? "0" : number(x / unit, 1)),
          }),
          valuesTable(`gradient at the weights of ${headName()}`, queries.map(labelOf), keys.map(labelOf), arrays, {
            hidden: result.masks[kind],
            digits: 8,
            corner: "query",
          }),
        ),
      ),
    );
  },
};
