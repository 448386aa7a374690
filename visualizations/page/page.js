"use strict";

/* The page around the model: state in the address, one function for each of the six views.
 *
 * `state` holds everything that the reader chose. A view has `mount`, which makes its controls once, and `update`,
 * which draws what follows from the state. Text goes into the page as text nodes only. */
(() => {
  const models = Object.fromEntries(Object.entries(JSON.parse(document.getElementById("checkpoints").textContent))
    .map(([task, stored]) => [task, Model.load(stored)]));
  const TASKS = Object.keys(models);

  function modelOf(task) {
    if (!Object.hasOwn(models, task)) throw new RangeError(`there is no task ${String(task)}; there are ${TASKS.join(", ")}`);
    return models[task];
  }

  window.transformer = {
    tasks: TASKS,
    settings: (task) => ({ ...modelOf(task).settings }),
    run: (task, tokens, switches) => Model.run(modelOf(task), task, tokens, switches),
    score: (task, tokens, switches) => Model.score(modelOf(task), task, tokens, switches),
    leak: (task, tokens, switches) => Model.leak(modelOf(task), task, tokens, switches),
    positionalEncoding: Model.positionalEncoding,
  };

  // ------------------------------------------------------------------------------------------- state and address

  const { seq_len: SEQ_LEN, vocab_size: VOCABULARY, n_heads: HEADS, n_layers: LAYERS, d_model: WIDTH } =
    models[TASKS[0]].settings;
  const VIEWS = [["machine", "The machine"], ["sequence", "Your sequence"], ["attention", "Attention"],
                 ["switches", "Switches"], ["explorers", "Explorers"], ["backward", "Backward"]];
  const KINDS = { encoderSelfAttention: "Encoder self-attention", decoderSelfAttention: "Decoder self-attention",
                  crossAttention: "Cross-attention" };
  const SHORT = { encoderSelfAttention: "encoder self", decoderSelfAttention: "decoder self", crossAttention: "cross" };
  const SWITCHES = ["scale", "causalMask", "paddingMask", "positions", "residuals", "layerNorm"];

  const oneOf = (choices, start) => ({ start, read: (text) => (choices.includes(text) ? text : start) });
  const whole = (low, high, start) => ({ start, read: (text) => {
    const value = Number(text);
    return /^-?\d{1,9}$/.test(text) && value >= low && value <= high ? value : start;
  } });
  const decimal = (low, high, start) => ({ start, read: (text) => {
    const value = Number(text);
    return /^\d{1,3}(\.\d{1,4})?$/.test(text) && value >= low && value <= high ? value : start;
  } });
  const FIELDS = {
    view: oneOf(VIEWS.map(([name]) => name), "machine"),
    theme: oneOf(["auto", "light", "dark"], "auto"),
    task: oneOf(TASKS, TASKS[0]),
    tokens: { start: "5 3 9 7 4", read: (text) => text.slice(0, 200) },
    box: { start: "decoder_layers.0.cross_attention", read: (text) => text },
    kind: oneOf(Object.keys(KINDS), "crossAttention"),
    layer: whole(0, LAYERS - 1, LAYERS - 1),
    head: whole(0, HEADS - 1, 0),
    query: whole(0, SEQ_LEN, 0),
    key: whole(0, SEQ_LEN, 0),
    strategy: oneOf(["greedy", "temperature"], "greedy"),
    temperature: decimal(0.1, 5, 1.5),
    seed: whole(0, 999999, 1),
    shown: whole(0, SEQ_LEN + 1, 1),
    step: whole(0, SEQ_LEN, 0),
    off: { start: "", read: (text) => text.split(",").filter((name) => SWITCHES.includes(name)).join(",") },
    headsOff: { start: "", read: (text) => text.split(",").filter((id) => headOf(id) !== null).join(",") },
    width: whole(2, 128, 32),
    length: whole(2, 100, 50),
    wave: whole(0, 127, 8),
    first: whole(0, 99, 10),
    second: whole(0, 99, 14),
    d_k: whole(1, 256, 64),
    draw: whole(0, 999999, 1),
    gradientStep: whole(0, SEQ_LEN, 0),
    gradientToken: whole(-1, VOCABULARY - 1, -1),
  };

  function headOf(id) {                                          // "crossAttention.0.3" -> ["crossAttention", 0, 3]
    const [kind, layer, head, ...rest] = id.split(".");
    const there = (text, n) => /^\d+$/.test(text ?? "") && Number(text) < n;
    return Object.hasOwn(KINDS, kind) && there(layer, LAYERS) && there(head, HEADS) && !rest.length
      ? [kind, Number(layer), Number(head)] : null;
  }

  function stateFromAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    return Object.fromEntries(Object.entries(FIELDS).map(([name, field]) =>
      [name, given.has(name) ? field.read(given.get(name)) : field.start]));
  }

  function addressOf(values) {
    const query = new URLSearchParams();
    for (const [name, field] of Object.entries(FIELDS)) {
      if (values[name] !== field.start || name === "view") query.set(name, values[name]);
    }
    return `#${query}`;
  }

  let state = stateFromAddress();

  function set(change, { newPlace = false } = {}) {
    state = { ...state, ...change };
    history[newPlace ? "pushState" : "replaceState"](null, "", addressOf(state));
    refresh();
  }

  // ------------------------------------------------------------------------------------------------ tokens and runs

  function parseTokens(text) {
    const words = text.replaceAll(",", " ").split(/\s+/).filter(Boolean);
    const last = VOCABULARY - 1;
    const stranger = words.find((word) => !/^\d{1,9}$/.test(word) || Number(word) < Model.FIRST_DATA || Number(word) > last);
    if (stranger !== undefined) {
      return { error: `"${stranger}" is not a token of the vocabulary: numbers from ${Model.FIRST_DATA} to ${last}` };
    }
    if (words.length < 1) return { error: "the sequence is empty: give at least one token" };
    if (words.length > SEQ_LEN) return { error: `the model reads at most ${SEQ_LEN} tokens; these are ${words.length}` };
    return { tokens: words.map(Number) };
  }

  let lastGood = parseTokens(FIELDS.tokens.start).tokens;

  function tokensNow() {
    const { tokens } = parseTokens(state.tokens);
    if (tokens) lastGood = tokens;
    return lastGood;
  }

  function remember(compute) {                                               // the last few answers, by their question
    const known = new Map();
    return (...question) => {
      const key = JSON.stringify(question);
      if (!known.has(key)) {
        if (known.size > 40) known.delete(known.keys().next().value);
        known.set(key, compute(...question));
      }
      return known.get(key);
    };
  }
  const run = remember(window.transformer.run);
  const current = (switches) => run(state.task, tokensNow(), switches ?? {});

  const labelOf = (token) => ["pad", "start", "end"][token] ?? String(token);
  const isSpecial = (token) => token < Model.FIRST_DATA;

  // -------------------------------------------------------------------------------------------- making elements

  const SVG = new Set(["svg", "g", "rect", "path", "text", "line", "circle", "polyline"]);

  function el(tag, properties = {}, ...children) {
    const element = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value === undefined || value === false || value === null) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  const $ = (id) => document.getElementById(id);
  const range = (n) => Array.from({ length: n }, (_, i) => i);

  function number(x, digits = 4) {
    const text = Math.abs(x).toFixed(digits);
    return x < 0 && Number(text) !== 0 ? `\u2212${text}` : text;
  }

  function share(x) {                                                        // a weight in a small cell
    const text = x.toFixed(2);
    return text === "0.00" ? "0" : text === "1.00" ? "1" : text.slice(1);
  }

  const tokenText = (token) => el("span", { class: isSpecial(token) && "special" }, labelOf(token));
  const shapeText = (shape) => `(${shape.join(", ")})`;

  /* "W_{i}^Q" with subscripts and superscripts. */
  function formula(text) {
    const parts = text.split(/([_^](?:\{[^}]*\}|\w))/).map((part) => {
      if (!/^[_^]/.test(part)) return part;
      return el(part[0] === "_" ? "sub" : "sup", {}, part.slice(1).replace(/[{}]/g, ""));
    });
    return el("p", { class: "formula" }, parts);
  }

  const openTables = new Set();

  /* A table of values that is made when it is first opened. */
  function valuesTable(name, rows, columns, values, { hidden, digits = 4, corner = "" } = {}) {
    const place = el("div");
    const id = `${state.view} ${name}`;
    const details = el("details", { "data-key": id, ontoggle: fill, open: openTables.has(id) },
      el("summary", { "data-key": `summary ${id}` }, "Values", el("span", { class: "hidden-text" }, ` of ${name}`)), place);
    function fill() {
      openTables[details.open ? "add" : "delete"](id);
      if (!details.open || place.firstChild) return;
      const head = el("tr", {}, el("th", { scope: "col" }, corner || el("span", { class: "hidden-text" }, "row")),
        columns.map((column) => el("th", { scope: "col" }, column)));
      const body = values.map((row, i) => el("tr", {}, el("th", { scope: "row" }, rows[i]), row.map((x, j) =>
        el("td", {}, hidden?.[i][j] ? "masked" : number(x, digits)))));
      place.append(el("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `Values of ${name}` },
        el("table", {}, el("caption", { class: "hidden-text" }, name), el("thead", {}, head), el("tbody", {}, body))));
    }
    if (details.open) fill();
    return details;
  }

  // ------------------------------------------------------------------------------------------------------ colours

  /* The colours of the theme in force, as [red, green, blue]. */
  function colourOf(name) {
    const probe = el("span", { style: { color: `var(--${name})` } });
    document.body.append(probe);
    const parts = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
    probe.remove();
    return parts;
  }

  let palette;
  const readPalette = () => {
    palette = Object.fromEntries(["paper", "ink", "accent"].map((name) => [name, colourOf(name)]));
  };

  /* From the paper at 0 to the accent at 1; values below 0 go from the paper to the ink. */
  function shade(x) {
    const t = Math.min(Math.abs(x), 1);
    const end = x < 0 ? palette.ink : palette.accent;
    return palette.paper.map((from, i) => Math.round(from + (end[i] - from) * t * (x < 0 ? 0.75 : 1)));
  }

  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

  function luminance(colour) {
    const [r, g, b] = colour.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  const readableOn = (colour) => (luminance(colour) > 0.179 ? "#000" : "#fff");       // at least 4.5 to 1 on any colour

  /* One pixel for each value, stretched by the style sheet. */
  function pixels(name, values, { largest = 1, hidden, height, decorative } = {}) {
    const canvas = el("canvas", { width: values[0].length, height: values.length, style: height && { height },
                                  ...(decorative ? { "aria-hidden": "true" } : { role: "img", "aria-label": name }) });
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    values.flat().forEach((x, i) => {
      const masked = hidden?.[Math.floor(i / canvas.width)][i % canvas.width];
      const colour = masked ? palette.paper.map((p, c) => Math.round(p + (palette.ink[c] - p) * 0.12)) : shade(x / largest);
      image.data.set([...colour, 255], 4 * i);
    });
    context.putImageData(image, 0, 0);
    return canvas;
  }

  const largestOf = (values) => values.reduce((most, row) => row.reduce((m, x) => Math.max(m, Math.abs(x)), most), 0) || 1;

  /* A matrix as a picture with its table. Positive values are coloured, negative ones grey. */
  function picture(name, rows, columns, values, { shape, positive, height, hidden } = {}) {
    const largest = largestOf(values);
    return el("figure", {},
      el("figcaption", {}, el("span", {}, name), el("span", { class: "shape" }, shape ?? shapeText([values.length, values[0].length]))),
      pixels(`${name}: ${values.length} rows, ${values[0].length} columns, ${positive ? "0" : number(-largest, 3)} to ${number(largest, 3)}`,
        values, { largest, hidden, height: height ?? `${Math.min(11 * values.length, 280)}px` }),
      valuesTable(name, rows, columns, values, { hidden }));
  }

  const signLegend = () => el("p", { class: "legend" },
    "Colour is positive, grey negative, each picture in full strength at its largest value.");

  /* A matrix with its numbers in the cells, rows of queries and columns of keys. */
  function heatTable(name, rowTokens, columnTokens, values, { hidden, largest = 1, text = share, selected, onSelect, keep } = {}) {
    const cell = (x, i, j) => {
      const masked = hidden?.[i][j];
      const colour = shade(x / largest);
      const chosen = selected && selected[0] === i && selected[1] === j;
      return el("td", {
        class: masked && "masked",
        style: masked ? {} : { background: css(colour), color: readableOn(colour) },
        ...(onSelect && {
          role: "gridcell", tabindex: chosen ? 0 : -1, "aria-selected": chosen ? "true" : "false",
          "data-key": `${keep} ${i} ${j}`, onclick: () => onSelect(i, j, true),
        }),
      }, masked ? el("span", { class: "hidden-text" }, "masked") : text(x));
    };
    function onkeydown(event) {
      const [i, j] = selected;
      const to = { ArrowUp: [i - 1, j], ArrowDown: [i + 1, j], ArrowLeft: [i, j - 1], ArrowRight: [i, j + 1],
                   Home: [i, 0], End: [i, columnTokens.length - 1] }[event.key];
      if (!to || event.target.tagName !== "TD") return;
      event.preventDefault();
      onSelect(Math.min(Math.max(to[0], 0), rowTokens.length - 1), Math.min(Math.max(to[1], 0), columnTokens.length - 1), true);
    }
    const roles = onSelect ? { role: "grid", onkeydown } : {};
    const heading = (token, scope) => el("th", {
      scope, class: isSpecial(token) && "special", role: onSelect && (scope === "col" ? "columnheader" : "rowheader"),
    }, labelOf(token));
    const row = onSelect ? { role: "row" } : {};
    const group = onSelect ? { role: "rowgroup" } : {};
    return el("table", { class: "heat", "aria-label": name, ...roles },
      el("thead", group, el("tr", row, el("th", { scope: "col", role: onSelect && "columnheader" },
        el("span", { class: "hidden-text" }, "row")), columnTokens.map((token) => heading(token, "col")))),
      el("tbody", group, values.map((line, i) => el("tr", { ...row, class: selected && selected[0] === i && "chosen" },
        heading(rowTokens[i], "row"), line.map((x, j) => cell(x, i, j))))));
  }

  /* Probabilities or sizes as a table whose last column is a bar. */
  function bars(name, heads, lines) {
    return el("table", { class: "bars" }, el("caption", {}, name),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)),
        el("td", {}, el("span", { class: "hidden-text" }, "bar")))),
      el("tbody", {}, lines.map(({ label, cells, length, chosen }) => el("tr", { class: chosen && "chosen" },
        el("th", { scope: "row" }, label), cells.map((text) => el("td", {}, text)),
        el("td", { class: "bar-cell" }, el("span", { class: "bar", style: { width: `${100 * length}%` } }))))));
  }

  // ----------------------------------------------------------------------------------------------------- controls

  function slider(label, field, low, high, step = 1) {
    const shown = el("output");
    const input = el("input", { type: "range", id: `control-${field}`, min: low, max: high, step, "data-key": `slider ${field}`,
      oninput: () => set({ [field]: Number(input.value) }) });
    const control = el("div", { class: "control range" }, el("label", { for: input.id }, label, " ", shown), input);
    control.update = (max = high) => {
      input.max = max;
      input.value = state[field];
      shown.textContent = input.value;
    };
    return control;
  }

  function seedControl(label, field) {
    const input = el("input", { type: "number", id: `control-${field}`, min: 0, max: 999999, step: 1,
      oninput: () => { if (input.value !== "" && input.validity.valid) set({ [field]: Number(input.value) }); } });
    const control = el("div", { class: "control" }, el("label", { for: input.id }, label), input);
    control.update = () => { if (document.activeElement !== input) input.value = state[field]; };
    return control;
  }

  function segments(field, choices, onchange) {
    const inputs = choices.map(([value, text]) => {
      const input = el("input", { type: "radio", name: `choice-${field}`, value, onchange: () => onchange(value) });
      return { value, input, label: el("label", {}, input, text) };
    });
    const group = el("div", { class: "segments" }, inputs.map(({ label }) => label));
    group.update = () => inputs.forEach(({ value, input }) => { input.checked = state[field] === value; });
    return group;
  }

  function headThumbs(title, arrays, { largest, masks, onSelect }) {
    const lines = Object.keys(KINDS).flatMap((kind) => range(LAYERS).map((layer) => [
      el("span", { class: "caption" }, SHORT[kind], el("br"), `layer ${layer + 1}`),
      range(HEADS).map((head) => {
        const pressed = state.kind === kind && state.layer === layer && state.head === head;
        return el("button", {
          type: "button", "aria-pressed": String(pressed), "data-key": `thumb ${kind}.${layer}.${head}`,
          "aria-label": `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}`,
          onclick: () => onSelect({ kind, layer, head }),
        }, pixels("", arrays[kind][layer][head], { largest, hidden: masks[kind], decorative: true }));
      })]));
    return el("div", { class: "thumbs", role: "group", "aria-label": title, style: { "--heads": HEADS } },
      el("span"), range(HEADS).map((head) => el("span", { class: "caption top" }, `head ${head + 1}`)), lines);
  }

  const queriesOf = (result, kind) => (kind === "encoderSelfAttention" ? result.source : result.target);
  const keysOf = (result, kind) => (kind === "decoderSelfAttention" ? result.target : result.source);
  const headName = () => `${KINDS[state.kind]}, layer ${state.layer + 1}, head ${state.head + 1}`;

  // -------------------------------------------------------------------------------------------- 1. The machine

  /* Every box of figure 1: where it stands, what the paper says of it, the code that computes it, its tensors. */
  function boxes() {
    const attention = (id, title, section, words, block) => ({
      id, title, section, words, code: `${block}.forward, MultiHeadAttention.forward, ScaledDotProductAttention.forward`,
      formula: "head_i = softmax(Q_i K_i^T / \u221Ad_k) V_i,  Concat(head_1, \u2026, head_h) W^O",
      parts: ["Q", "K", "V", "scores", "weights", "heads", "concatenation", "output"] });
    const norm = (id, block) => ({
      id, title: "Add & Norm", section: "3.1, 5.4", code: `${block}.forward, AddNorm.forward`,
      formula: "LayerNorm(x + Sublayer(x))", parts: ["sum", "output"],
      words: "What the sublayer found is added to what came in; each position is then brought to mean 0 and variance 1, scaled by gamma and shifted by beta." });
    const feed = (id, block) => ({
      id, title: "Feed-forward", section: "3.3", code: `${block}.forward, FeedForward.forward`,
      formula: "max(0, x W_1 + b_1) W_2 + b_2", parts: ["hidden", "output"],
      words: "The same two matrices at every position, each position on its own; what is below 0 between them becomes 0." });
    const embedding = (id, title, side) => ({
      id, title, section: "3.4", code: "TokenEmbedding.forward", formula: "E[token] \u00B7 \u221Ad_{model}", parts: ["output"], side,
      words: "Each token takes its row of the table, times the square root of the width." });
    const positions = (id, side) => ({
      id, title: "Positions", section: "3.5", code: "PositionalEncoding.forward", parts: ["output"], side,
      formula: "x + PE,  PE(pos, 2i) = sin(pos / 10000^{2i/d}),  PE(pos, 2i+1) = cos(the same)",
      words: "Attention does not know order. A fixed pattern of waves, one for each position, is added to the embeddings." });
    const encoder = [embedding("src_embedding", "Input embedding", "source"), positions("positional_encoding", "source")];
    const decoder = [embedding("tgt_embedding", "Output embedding", "target"), positions("tgt_positional_encoding", "target")];
    for (const i of range(LAYERS)) {
      const [e, d] = [`encoder_layers.${i}`, `decoder_layers.${i}`];
      encoder.push(
        attention(`${e}.self_attention`, "Self-attention", "3.2.2, 3.2.3",
          "Every source position gathers what it needs from every other; padding is hidden.", "EncoderBlock"),
        norm(`${e}.norm1`, "EncoderBlock"), feed(`${e}.feed_forward`, "EncoderBlock"), norm(`${e}.norm2`, "EncoderBlock"));
      decoder.push(
        attention(`${d}.self_attention`, "Masked self-attention", "3.2.2, 3.2.3",
          "Every target position looks at itself and at those before it; the mask hides what is not written yet.", "DecoderBlock"),
        norm(`${d}.norm1`, "DecoderBlock"),
        attention(`${d}.cross_attention`, "Cross-attention", "3.2.2, 3.2.3",
          "The queries come from the decoder, keys and values from the encoder's output: here the target reads the source.", "DecoderBlock"),
        norm(`${d}.norm2`, "DecoderBlock"), feed(`${d}.feed_forward`, "DecoderBlock"), norm(`${d}.norm3`, "DecoderBlock"));
    }
    decoder.push(
      { id: "output_projection", title: "Linear", section: "3.4", code: "Transformer.forward", parts: ["logits"],
        formula: "logits = x W", words: "Each position becomes one score for each token of the vocabulary." },
      { id: "softmax", title: "Softmax", section: "3.4", code: "softmax", parts: ["probabilities"],
        formula: "p_i = exp(logit_i) / \u03A3_j exp(logit_j)", words: "The scores become probabilities; the largest is the next token." });
    return { encoder, decoder };
  }

  function layOut() {
    const columns = boxes();
    const place = (list, x) => {
      let y = 0, layer = "";
      return list.map((box) => {
        const here = box.id.match(/^\w+_layers\.\d+/)?.[0] ?? "";
        y += here !== layer ? 28 : box.title === "Add & Norm" ? 0 : 10;
        layer = here;
        const placed = { ...box, x, bottom: y, layer: here };
        y += box.title === "Add & Norm" ? 24 : 30;
        return placed;
      });
    };
    return { encoder: place(columns.encoder, LEFT), decoder: place(columns.decoder, RIGHT) };
  }

  const BOX_WIDTH = 132, LEFT = 32, RIGHT = 216;
  const PLACES = layOut();
  const BOXES = [...PLACES.encoder, ...PLACES.decoder].map((box) => ({
    ...box,
    side: box.side ?? (box.id.startsWith("encoder") ? "source" : "target"),
    height: box.title === "Add & Norm" ? 24 : 30,
  }));
  FIELDS.box.read = (text) => (BOXES.some((box) => box.id === text) ? text : FIELDS.box.start);
  state = stateFromAddress();

  const weightsOf = (model, id) => model.shapes.filter(([name]) => name === id || name.startsWith(`${id}.`));
  const sizeOf = (shape) => shape.reduce((a, b) => a * b, 1);
  const countOf = (model, id) => Model.sum(weightsOf(model, id).map(([, shape]) => sizeOf(shape)));

  function drawMachine(result) {
    const model = models[state.task];
    const W = BOX_WIDTH, TOP = 26;
    const tallest = Math.max(...BOXES.map((box) => box.bottom + box.height));
    const H = tallest + TOP + 48;
    const y = (box) => H - 48 - box.bottom - box.height;
    const most = Math.max(...BOXES.map((box) => countOf(model, box.id)));
    const wires = [], layers = [];
    for (const [name, list] of Object.entries({ encoder: "encoder", decoder: "decoder" })) {
      const column = BOXES.filter((box) => PLACES[name].some((placed) => placed.id === box.id));
      const centre = column[0].x + W / 2;
      const topOf = y(column.at(-1));
      wires.push(el("path", { class: "wire", d: `M${centre} ${H - 34}V${name === "decoder" ? topOf - 12 : topOf - 16}` }));
      const out = name === "encoder" ? -1 : 1;
      const edge = name === "encoder" ? column[0].x : column[0].x + W;
      column.forEach((box, i) => {                                                       // the residual connections
        if (box.title !== "Add & Norm") return;
        const from = y(column[i - 1]) + column[i - 1].height + 5;
        wires.push(el("path", { class: "wire", d: `M${centre} ${from}H${edge + out * 8}V${y(box) + box.height / 2}H${edge}` }));
      });
      for (const i of range(LAYERS)) {
        const inside = column.filter((box) => box.layer === `${list}_layers.${i}`);
        const top = y(inside.at(-1)) - 8, bottom = y(inside[0]) + inside[0].height + 11;
        layers.push(el("rect", { class: "layer", x: column[0].x - 15, y: top, width: W + 30, height: bottom - top, rx: 3 }),
          el("text", { class: "side", x: name === "encoder" ? 8 : 372, y: (top + bottom) / 2, "text-anchor": "middle",
            transform: `rotate(${name === "encoder" ? -90 : 90} ${name === "encoder" ? 8 : 372} ${(top + bottom) / 2})` },
          `${name} layer ${i + 1}`));
      }
    }
    const encoderTop = y(PLACES.encoder.map((p) => BOXES.find((box) => box.id === p.id)).at(-1)) - 16;
    const reads = BOXES.filter((box) => box.id.endsWith("cross_attention"));
    const bus = 189;
    const levels = reads.map((box) => y(box) + box.height / 2);
    wires.push(el("path", { class: "wire", d: `M${LEFT + W / 2} ${encoderTop}H${bus}` }),
      el("path", { class: "wire", d: `M${bus} ${Math.max(encoderTop, ...levels)}V${Math.min(encoderTop, ...levels)}` }),
      levels.map((level) => [el("path", { class: "wire", d: `M${bus} ${level}H${RIGHT - 4}` }),
        el("path", { class: "head", d: `M${RIGHT} ${level}l-7 -3.5v7z` })]));
    const drawn = BOXES.map((box) => {
      const chosen = state.box === box.id;
      const count = countOf(model, box.id);
      const where = box.layer ? `, ${box.layer.replace("_layers.", " layer ").replace(/\d+/, (n) => Number(n) + 1)}` : "";
      return el("g", { class: "box", role: "button", tabindex: chosen ? 0 : -1, "aria-pressed": String(chosen),
                       "data-key": `box ${box.id}`, "aria-label": `${box.title}${where}, ${count.toLocaleString("en")} weights`,
                       onclick: () => set({ box: box.id }) },
        el("rect", { x: box.x, y: y(box), width: W, height: box.height, rx: 2 }),
        el("rect", { class: "ring", x: box.x - 4, y: y(box) - 4, width: W + 8, height: box.height + 8, rx: 4 }),
        el("text", { x: box.x + W / 2, y: y(box) + box.height / 2 + 3.5, "text-anchor": "middle", "aria-hidden": "true" }, box.title),
        count > 0 && el("line", { class: "share", x1: box.x + 6, x2: box.x + 6 + (W - 12) * count / most,
                                  y1: y(box) + box.height - 4, y2: y(box) + box.height - 4 }));
    });
    const counted = (tokens) => {
      const pads = tokens.filter((token) => token === Model.PAD).length;
      return tokens.filter((token) => token !== Model.PAD).map(labelOf).join(" ") + (pads ? ` + ${pads} pad` : "");
    };
    const ends = [["source", LEFT, H - 20], [counted(result.source), LEFT, H - 4], ["target so far", RIGHT, H - 20],
                  [counted(result.target), RIGHT, H - 4], ["next token", RIGHT, y(BOXES.at(-1)) - 17]]
      .map(([text, x, level]) => el("text", { class: "side", x: x + W / 2, y: level, "text-anchor": "middle" }, text));

    function onkeydown(event) {
      const at = BOXES.find((box) => box.id === state.box);
      const column = BOXES.filter((box) => box.x === at.x), other = BOXES.filter((box) => box.x !== at.x);
      const i = column.indexOf(at);
      const across = () => other.reduce((best, box) => (Math.abs(y(box) - y(at)) < Math.abs(y(best) - y(at)) ? box : best));
      const to = { ArrowUp: () => column[i + 1], ArrowDown: () => column[i - 1], Home: () => column[0], End: () => column.at(-1),
                   ArrowLeft: () => at.x > LEFT && across(), ArrowRight: () => at.x === LEFT && across(),
                   Enter: () => at, " ": () => at }[event.key];
      if (!to) return;
      event.preventDefault();
      const box = to();
      if (!box) return;
      set({ box: box.id });
      document.querySelector(`[data-key="box ${box.id}"]`).focus();
    }
    return el("svg", { viewBox: `0 0 380 ${H}`, role: "group", "aria-label": "The architecture, figure 1 of the paper", onkeydown },
      layers, wires, ends, drawn);
  }

  const PART_NAMES = { Q: "Q, the queries", K: "K, the keys", V: "V, the values", scores: "Q K^T / \u221Ad_k, the scores",
    weights: "softmax of the scores, the attention weights", heads: "weights times V, the heads", concatenation: "heads side by side",
    sum: "x + Sublayer(x)", hidden: "max(0, x W1 + b1)", output: "output", logits: "logits", probabilities: "probabilities" };

  function boxTensors(box, result) {
    const id = box.id === "softmax" ? "output_projection" : box.id;
    const kind = id.endsWith("cross_attention") ? "crossAttention"
      : id.startsWith("encoder") ? "encoderSelfAttention" : "decoderSelfAttention";
    const positions = result[box.side].map(labelOf);
    return box.parts.map((part) => {
      const tensor = result.tensors[`${id}.${part}`];
      const name = PART_NAMES[part].replace("^T", "\u1D40");
      if (!Array.isArray(tensor[0][0])) {
        const columns = range(tensor[0].length).map((i) => (part === "logits" || part === "probabilities" ? labelOf(i) : String(i)));
        return picture(name, positions, columns, tensor, { positive: part === "probabilities" });
      }
      const rows = (part === "K" || part === "V" ? keysOf : queriesOf)(result, kind).map(labelOf);
      const square = part === "scores" || part === "weights";
      const columns = square ? keysOf(result, kind).map(labelOf) : range(tensor[0][0].length).map(String);
      return el("div", { role: "group", "aria-label": name }, el("p", { class: "axis" }, name, " ",
        el("span", { class: "mono" }, shapeText([tensor.length, tensor[0].length, tensor[0][0].length]))),
      el("div", { class: "head-row" }, tensor.map((head, i) => picture(`head ${i + 1}`, rows, columns, head, {
        positive: part === "weights", hidden: square ? result.masks[kind] : undefined, height: `${9 * rows.length}px` }))),
      el("br"));
    });
  }

  const machine = {
    mount() {},
    update() {
      const result = current();
      const model = models[state.task];
      const box = BOXES.find(({ id }) => id === state.box);
      const weights = weightsOf(model, box.id);
      const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
      $("machine-drawing").replaceChildren(drawMachine(result));
      $("machine-panel").replaceChildren(
        el("h3", {}, box.title), formula(box.formula), el("p", { class: "words" }, box.words),
        el("dl", { class: "facts" },
          fact("Paper", `section ${box.section}`),
          fact("Code", el("code", {}, box.code)),
          fact("Weights", weights.length === 0 ? "none" : weights.map(([name, shape]) =>
            `${name.split(".").at(-1)} ${shape.join("\u00D7")}`).join(", ")),
          weights.length > 0 && fact("Share", `${countOf(model, box.id).toLocaleString("en")} of ${model.facts.parameters.toLocaleString("en")} weights`)),
        ...boxTensors(box, result), box.parts.includes("probabilities") ? "" : signLegend());
    },
  };

  // ------------------------------------------------------------------------------------------ 2. Your sequence

  const written = remember((task, tokens, strategy, temperature, seed) => {
    const model = models[task];
    const random = Model.generator(seed);
    const choose = strategy === "greedy" ? Model.argmax : (logits) => Model.sample(logits, temperature, random.uniform());
    return [...Model.decodeSteps(model, Model.makeSource(model, tokens), Model.ALL_ON, choose)].map(({ token, logits }) =>
      ({ token, probabilities: Model.softmax(strategy === "greedy" ? logits : logits.map((x) => x / temperature)) }));
  });

  const sequence = {
    mount() {
      const strategy = segments("strategy", [["greedy", "Greedy"], ["temperature", "Temperature"]], (value) => set({ strategy: value }));
      const temperature = slider("Temperature", "temperature", 0.1, 5, 0.1);
      const seed = seedControl("Seed", "seed");
      const button = (text, primary, onclick) => el("button", { type: "button", class: primary && "primary", onclick }, text);
      this.next = button("Next token", true, () => set({ shown: state.shown + 1, step: state.shown }));
      this.all = button("All at once", false, () => {
        const { length } = this.steps();
        set({ shown: length, step: length - 1 });
      });
      this.again = button("Start again", false, () => set({ shown: 0, step: 0 }));
      this.parts = [strategy, temperature, seed];
      this.sampling = [temperature, seed];
      $("sequence-controls").append(
        el("fieldset", { class: "control" }, el("legend", {}, "Choose the next token"), strategy), temperature, seed,
        el("div", { class: "buttons" }, this.next, this.all, this.again));
    },
    steps: () => written(state.task, tokensNow(), state.strategy, state.temperature, state.seed),
    update() {
      const steps = this.steps();
      const shown = steps.slice(0, state.shown);
      const step = Math.min(state.step, shown.length - 1);
      this.parts.forEach((part) => part.update());
      this.sampling.forEach((part) => { part.hidden = state.strategy === "greedy"; });
      this.next.disabled = shown.length === steps.length;
      this.all.disabled = this.next.disabled;
      this.again.disabled = shown.length === 0;
      const line = el("div", { class: "line", role: "group", "aria-label": "What the decoder has written; choose a step" },
        el("span", { class: "token" }, tokenText(Model.START)),
        shown.map(({ token }, i) => el("button", { type: "button", "aria-pressed": String(i === step), "data-key": `step ${i}`,
          "aria-label": `step ${i + 1}: ${labelOf(token)}`, onclick: () => set({ step: i }) }, tokenText(token))),
        shown.length < steps.length && el("span", { class: "token", "aria-hidden": "true" }, "?"));
      const complete = shown.length === steps.length;
      const right = [...Model.answer(state.task, tokensNow()), Model.END];
      const same = complete && right.length === steps.length && right.every((token, i) => steps[i].token === token);
      const verdict = el("p", { class: "words", role: "status" }, complete
        ? same ? `Written in ${steps.length} steps, as it should be.` : `Written in ${steps.length} steps; it should read ${right.map(labelOf).join(" ")}.`
        : `${shown.length} written so far. The next step reads all of them again.`);
      $("sequence-body").replaceChildren(line, verdict, shown.length === 0 ? "" : el("div", { class: "two" },
        this.candidates(shown[step], step), this.sheet(shown)));
    },
    candidates({ token, probabilities }, step) {
      const order = range(VOCABULARY).sort((a, b) => probabilities[b] - probabilities[a]);
      return el("div", {}, el("h3", {}, `Candidates at step ${step + 1}`),
        bars(state.strategy === "greedy" ? "Greedy takes the first." : `At temperature ${state.temperature}, drawn with seed ${state.seed}.`,
          ["token", "probability"], order.map((candidate) => ({
            label: tokenText(candidate), cells: [number(probabilities[candidate], 6)],
            length: probabilities[candidate], chosen: candidate === token }))));
    },
    sheet(shown) {
      const values = range(VOCABULARY).map((token) => shown.map(({ probabilities }) => probabilities[token]));
      return el("div", {}, el("h3", {}, "All steps"), el("p", { class: "axis" }, "Rows are candidates, columns the steps and what each chose."),
        heatTable("Probability of each token at each step", range(VOCABULARY), shown.map(({ token }) => token), values));
    },
  };

  // ---------------------------------------------------------------------------------------------- 3. Attention

  const attention = {
    mount() {},
    update() {
      const result = current();
      const { kind, layer, head } = state;
      const queries = queriesOf(result, kind), keys = keysOf(result, kind);
      const i = Math.min(state.query, queries.length - 1), j = Math.min(state.key, keys.length - 1);
      const mask = result.masks[kind];
      $("attention-heads").replaceChildren(
        headThumbs("Every head; choose one to see its values", result, { largest: 1, masks: result.masks, onSelect: set }));
      $("attention-map").replaceChildren(
        el("h3", {}, headName()),
        el("p", { class: "axis" }, "Queries down, keys across; hatched cells are hidden by the mask."),
        heatTable(`Attention weights of ${headName()}`, queries, keys, result[kind][layer][head], {
          hidden: mask, selected: [i, j], keep: "cell",
          onSelect: (query, key, focus) => {
            set({ query, key });
            if (focus) document.querySelector(`[data-key="cell ${query} ${key}"]`)?.focus();
          } }),
        valuesTable(`attention weights of ${headName()}`, queries.map(labelOf), keys.map(labelOf), result[kind][layer][head],
          { hidden: mask, digits: 8, corner: "query" }));
      $("attention-steps").replaceChildren(...this.steps(result, queries, keys, i, j));
    },
    steps(result, queries, keys, i, j) {
      const { kind, layer, head } = state;
      const name = Model.attentionName(kind, layer);
      const part = (which) => result.tensors[`${name}.${which}`][head];
      const hidden = result.masks[kind][i];
      const q = part("Q")[i], k = part("K")[j], V = part("V");
      const dots = part("dots")[i], scores = part("scores")[i], weights = part("weights")[i], output = part("heads")[i];
      const dims = range(q.length);
      const peak = Math.max(...scores.filter((_, key) => !hidden[key]));
      const exps = scores.map((score, key) => (hidden[key] ? 0 : Math.exp(score - peak)));
      const total = Model.sum(exps);
      const who = (token, at) => [tokenText(token), ` at position ${at + 1}`];
      const step = (title, ...content) => el("section", { class: "step" }, el("h3", {}, title), content);
      const wide = (label, heads, lines) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
        el("table", {}, el("caption", { class: "hidden-text" }, label),
          el("thead", {}, el("tr", {}, heads.map((text) => el("th", { scope: "col" }, text || el("span", { class: "hidden-text" }, "vector"))))),
          el("tbody", {}, lines.map(({ heading, cells, mark }) => el("tr", { class: mark }, el("th", { scope: "row" }, heading),
            cells.map((text) => el("td", {}, text)))))));
      const keyLines = (cells) => keys.map((token, key) => ({ heading: tokenText(token), cells: cells(key), mark: key === j && "chosen" }));
      return [
        step("Query times key",
          el("p", {}, "The query is ", who(queries[i], i), ", the key ", who(keys[j], j), ". Multiply number by number and add up."),
          wide("Query times key", ["", ...dims.map((d) => String(d + 1)), "sum"], [
            { heading: "q", cells: [...q.map((x) => number(x)), ""] }, { heading: "k", cells: [...k.map((x) => number(x)), ""] },
            { heading: "q \u00B7 k", cells: [...dims.map((d) => number(q[d] * k[d])), number(dots[j])], mark: "total" }])),
        step("Scale",
          el("p", {}, `Divide by the square root of the head's width, ${q.length}.`),
          el("p", { class: "sum" }, `${number(dots[j])} / \u221A${q.length} = ${number(dots[j])} / ${number(Math.sqrt(q.length))} = ${number(scores[j])}`)),
        step("Mask",
          el("p", {}, hidden[j] ? ["The key ", who(keys[j], j), " is hidden: its score becomes \u2212\u221E, its weight 0."]
            : ["The key ", who(keys[j], j), " may be seen: its score stays."])),
        step("Softmax",
          el("p", {}, `Subtract the largest score, ${number(peak)}, take the exponential, divide by the sum.`),
          wide("Softmax over the keys", ["key", "score", "masked", "exp(score \u2212 largest)", "weight"], [
            ...keyLines((key) => [number(scores[key]), hidden[key] ? "\u2212\u221E" : number(scores[key]), number(exps[key]), number(weights[key])]),
            { heading: "sum", cells: ["", "", number(total), number(Model.sum(weights))], mark: "total" }])),
        step("Weighted sum of the values",
          el("p", {}, "Each key's value, a vector of ", String(q.length), ", times its weight; the sum is what this head hands on for ", who(queries[i], i), "."),
          wide("Weighted sum of the values", ["key", "weight", ...dims.map((d) => `v${d + 1}`)], [
            ...keyLines((key) => [number(weights[key]), ...V[key].map((x) => number(x))]),
            { heading: "sum", cells: ["", ...output.map((x) => number(x))], mark: "total" }]),
          el("p", { class: "note" }, "The table shows four decimals of numbers that have fifteen: a pocket calculator may differ in the last one.")),
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
    causalMask: "While it writes, the newest position has nothing later to see, but the earlier ones are computed again with a future that training never showed them. When it reads the whole right answer, every position but the last sees ahead.",
    paddingMask: "Attention now spreads over padding, whose vectors were never trained to be read.",
    positions: "Without positions equal tokens look alike, and the encoder sees a set instead of a sequence.",
    residuals: "Without the residual path each sublayer's output replaces what came in: tokens and positions are lost on the way.",
    layerNorm: "Without layer norm the sums grow from sublayer to sublayer and leave the range the next weights expect.",
  };
  const listOf = (text) => text.split(",").filter(Boolean);
  const switchesNow = () => ({
    ...Object.fromEntries(listOf(state.off).map((name) => [name, false])), heads: listOf(state.headsOff).map(headOf) });

  const SAMPLE = 40;
  const sampleSequences = range(SAMPLE).map(((random) => () =>
    range(random.integer(1, SEQ_LEN + 1)).map(() => random.integer(Model.FIRST_DATA, VOCABULARY)))(Model.generator(2017)));

  /* Scores on the sample, a few sequences at a time so that the page stays awake. */
  const measured = new Map();
  let measuring = 0;
  function measure(task, switches, done) {
    const key = JSON.stringify([task, switches]);
    if (measured.has(key)) return done(measured.get(key));
    const mine = measuring, found = [];
    const some = () => {
      if (mine !== measuring) return;
      const until = performance.now() + 30;
      while (found.length < SAMPLE && performance.now() < until) {
        found.push(Model.score(models[task], task, sampleSequences[found.length], switches));
      }
      if (found.length < SAMPLE) return setTimeout(some);
      measured.set(key, { teacherForced: Model.mean(found.map((x) => x.teacherForced)),
                          freeRunning: Model.mean(found.map((x) => Number(x.exactMatch))) });
      done(measured.get(key));
    };
    setTimeout(some);
  }

  const switches = {
    mount() {
      const toggle = (field, name, label, content) => {
        const input = el("input", { type: "checkbox", "aria-label": label, onchange: () => {
          const names = new Set(listOf(state[field]));
          names[input.checked ? "delete" : "add"](name);
          set({ [field]: [...names].join(",") });
        } });
        this.inputs.push(() => { input.checked = !listOf(state[field]).includes(name); });
        return el("label", {}, input, content);
      };
      this.inputs = [];
      this.reset = el("button", { type: "button", onclick: () => set({ off: "", headsOff: "" }) }, "Everything on");
      $("switches-controls").append(
        el("fieldset", {}, el("legend", {}, "Parts"), SWITCHES.map((name) =>
          toggle("off", name, undefined, el("span", {}, el("b", {}, SWITCH_WORDS[name][0]), el("small", {}, SWITCH_WORDS[name][1]))))),
        el("fieldset", {}, el("legend", {}, "Heads; one that is off hands on zeros"),
          el("div", { class: "head-switches", style: { "--heads": HEADS } },
            el("span"), range(HEADS).map((head) => el("span", { class: "caption", style: { "text-align": "center" } }, String(head + 1))),
            Object.keys(KINDS).flatMap((kind) => range(LAYERS).map((layer) => [
              el("span", { class: "caption" }, SHORT[kind], el("br"), `layer ${layer + 1}`),
              range(HEADS).map((head) => toggle("headsOff", `${kind}.${layer}.${head}`,
                `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}`))])))),
        this.reset);
    },
    update() {
      this.inputs.forEach((show) => show());
      const off = switchesNow();
      const whole = current(), broken = current(off);
      const nothingOff = !state.off && !state.headsOff;
      this.reset.disabled = nothingOff;
      const waiting = () => el("span", { class: "special" }, "measuring");
      const cells = Object.fromEntries(["taughtWhole", "taughtBroken", "freeWhole", "freeBroken"].map((name) => [name, el("td", {}, waiting())]));
      const words = (result) => el("td", {}, result.output.map((token, i) =>
        [i > 0 && " ", el("span", { class: token !== result.answer[i] && "wrong" }, tokenText(token),
          token !== result.answer[i] && el("span", { class: "hidden-text" }, " (wrong)"))]));
      const future = (result) => Model.mean(result.decoderSelfAttention.flat().map((head) =>
        Model.mean(head.map((row, i) => Model.sum(row.slice(i + 1))))));
      const onPadding = (result) => Model.mean(["encoderSelfAttention", "crossAttention"].flatMap((kind) => result[kind].flat().map((head) =>
        Model.mean(head.map((row) => Model.sum(row.filter((_, j) => result.source[j] === Model.PAD)))))));
      const percent = (x) => `${number(100 * x, 1)} %`;
      const leak = (given) => window.transformer.leak(state.task, tokensNow(), given);
      const line = (name, ...both) => el("tr", {}, el("th", { scope: "row" }, name), both.map((x) => (x instanceof Node ? x : el("td", {}, x))));
      const { kind, layer, head } = state;
      const map = (result, title) => el("div", {}, el("h4", {}, title), heatTable(`${title}: ${headName()}`, queriesOf(result, kind),
        keysOf(result, kind), result[kind][layer][head], { hidden: result.masks[kind] }));
      $("switches-body").replaceChildren(...[
        el("table", { class: "compare" }, el("caption", { class: "hidden-text" }, "The whole model beside the one with your switches"),
          el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "hidden-text" }, "what is compared")), el("th", { scope: "col" }, "Whole"),
            el("th", { scope: "col" }, nothingOff ? "Nothing switched off" : "With your switches"))),
          el("tbody", {},
            line("Writes", words(whole), words(broken)),
            line(`Free-running: whole sequences right, of ${SAMPLE}`, cells.freeWhole, cells.freeBroken),
            line("Teacher-forced: tokens right when it reads the right answer", cells.taughtWhole, cells.taughtBroken),
            line("Decoder attention that falls on later positions", percent(future(whole)), percent(future(broken))),
            line("Attention that falls on padding", percent(onPadding(whole)), percent(onPadding(broken))),
            line("Exchange the last target token: earlier logits move by at most", number(leak({})), number(leak(off))))),
        listOf(state.off).map((name) => el("p", { class: "words" }, SWITCH_NOTES[name])),
        el("h3", { class: "apart" }, headName()),
        el("p", { class: "note" }, "The head chosen in the view Attention. A wrong token above has a wavy line."),
        el("div", { class: "pair" }, map(whole, "Whole"), map(broken, "With your switches"))].flat());
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
    const y = (value) => 8 + (height - bottom - 8) * (high - value) / (high - low);
    return el("figure", {}, el("figcaption", {}, name),
      el("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}, from ${unit} 0 to ${values.length - 1}` },
        el("line", { class: "axis-line", x1: left, x2: width - 8, y1: y(Math.max(low, 0)), y2: y(Math.max(low, 0)) }),
        el("text", { x: left - 8, y: y(high) + 4, "text-anchor": "end" }, number(high, Math.abs(high) < 10 ? 1 : 0)),
        el("text", { x: left - 8, y: y(low) + 4, "text-anchor": "end" }, number(low, Math.abs(low) < 10 ? 1 : 0)),
        el("text", { x: left, y: height - 4 }, `${unit} 0`),
        el("text", { x: width - 8, y: height - 4, "text-anchor": "end" }, String(values.length - 1)),
        el("polyline", { class: "curve", points: values.map((value, i) => `${x(i).toFixed(2)},${y(value).toFixed(2)}`).join(" ") }),
        marks.map((i) => el("circle", { class: "mark", cx: x(i), cy: y(values[i]), r: 4 }))),
      valuesTable(name, values.map((_, i) => String(i)), ["value"], values.map((value) => [value]), { corner: unit }));
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
    for (const value of values) counts[Math.min(Math.max(Math.floor((value / reach + 1) * bins / 2), 0), bins - 1)] += 1;
    const most = Math.max(...counts);
    const step = (width - left - 8) / bins;
    const edge = (i) => (2 * i / bins - 1) * reach;
    return el("figure", {}, el("figcaption", {}, name),
      el("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}: histogram from ${number(-reach, 1)} to ${number(reach, 1)}` },
        counts.map((count, i) => el("rect", { class: "block", x: left + i * step + 0.5, width: step - 1,
          y: height - bottom - (height - bottom - 8) * count / most, height: (height - bottom - 8) * count / most })),
        el("line", { class: "axis-line", x1: left, x2: width - 8, y1: height - bottom, y2: height - bottom }),
        el("text", { x: left, y: height - 4 }, number(-reach, 1)),
        el("text", { x: (left + width - 8) / 2, y: height - 4, "text-anchor": "middle" }, "0"),
        el("text", { x: width - 8, y: height - 4, "text-anchor": "end" }, number(reach, 1))),
      valuesTable(name, counts.map((_, i) => `${number(edge(i), 2)} to ${number(edge(i + 1), 2)}`), ["count"], counts.map((count) => [count]), { digits: 0, corner: "q\u00B7k" }));
  }

  const explorers = {
    mount() {
      this.positionSliders = [slider("Width", "width", 2, 128), slider("Length", "length", 2, 100), slider("Dimension", "wave", 0, 127),
                              slider("First position", "first", 0, 99), slider("Second position", "second", 0, 99)];
      this.scaleSliders = [slider("Width of a head, d_k", "d_k", 1, 256)];
      this.seed = seedControl("Seed", "draw");
      this.positionBody = el("div");
      this.scaleBody = el("div");
      $("explorers-body").append(
        el("section", { class: "explorer", "aria-labelledby": "title-positions" }, el("div", {}, el("h3", { id: "title-positions" }, "Positions as waves"),
          el("p", { class: "note" }, "Section 3.5. Even dimensions are sines, odd ones cosines; the further right, the slower."), this.positionSliders), this.positionBody),
        el("section", { class: "explorer", "aria-labelledby": "title-root" }, el("div", {}, el("h3", { id: "title-root" }, "Why the square root"),
          el("p", { class: "note" }, "Section 3.2.1, footnote 4. A thousand pairs of random vectors, each number normal with variance 1."), this.scaleSliders, this.seed), this.scaleBody));
    },
    update() {
      const { width, length } = state;
      const at = { wave: Math.min(state.wave, width - 1), first: Math.min(state.first, length - 1), second: Math.min(state.second, length - 1) };
      this.positionSliders.forEach((part, i) => part.update([128, 100, width - 1, length - 1, length - 1][i]));
      this.scaleSliders.forEach((part) => part.update());
      this.seed.update();
      const pe = Model.positionalEncoding(length, width);
      const similar = pe.map((row) => Model.dot(pe[at.first], row));
      const distance = Math.abs(at.first - at.second);
      const period = 2 * Math.PI * 10000 ** ((at.wave - (at.wave % 2)) / width);
      this.positionBody.replaceChildren(
        picture("The table: a row for each position", range(length).map(String), range(width).map(String), pe, { height: `${Math.min(4 * length, 260)}px` }),
        signLegend(),
        curve(`Dimension ${at.wave}: ${at.wave % 2 ? "a cosine" : "a sine"} that repeats every ${number(period, period < 1000 ? 1 : 0)} positions`, pe.map((row) => row[at.wave])),
        el("p", { class: "big" }, `Positions ${at.first} and ${at.second}: dot product `, el("b", {}, number(similar[at.second], 3)), ` of ${number(similar[at.first], 3)}`),
        curve(`Dot product of position ${at.first} with every position`, similar,
          { marks: [at.first, at.second], low: Math.min(0, ...similar), high: Math.max(...similar) }),
        el("p", { class: "note" }, width % 2 ? "" : `It depends on the distance, ${distance}, alone: any other pair as far apart gives the same.`));
      const dots = draws(state.d_k, state.draw);
      const root = Math.sqrt(state.d_k);
      const centre = Model.mean(dots);
      const variance = Model.mean(dots.map((x) => (x - centre) ** 2));
      const eight = dots.slice(0, 8);
      const raw = Model.softmax(eight), scaled = Model.softmax(eight.map((x) => x / root));
      const groups = range(dots.length / 8).map((g) => dots.slice(8 * g, 8 * g + 8));
      const overGroups = (measureOne) => (divisor) => Model.mean(groups.map((group) => measureOne(Model.softmax(group.map((x) => x / divisor)))));
      const peak = overGroups((weights) => Math.max(...weights));
      const slope = overGroups((weights) => Model.sum(weights.map((p) => p * (1 - p))));
      const list = (name, scores, weights) => bars(name, ["score", "weight"], scores.map((x, i) => ({
        label: number(x, 2), cells: [number(weights[i])], length: weights[i], chosen: i === Model.argmax(weights) })));
      this.scaleBody.replaceChildren(
        el("p", { class: "big" }, "Variance of q\u00B7k: ", el("b", {}, number(variance, 1)), "; after the scale: ", el("b", {}, number(variance / state.d_k, 3))),
        histogram("q\u00B7k before the scale", dots, 3.5 * root),
        el("div", { class: "two" }, list("Softmax of the first eight, unscaled", eight, raw), list("The same eight, divided by \u221Ad_k", eight.map((x) => x / root), scaled)),
        el("p", { class: "note" }, `Over all ${groups.length} groups of eight, the largest weight is on average ${number(peak(1), 3)} unscaled and ${number(peak(root), 3)} scaled; the derivative p(1 \u2212 p), added over the eight, is ${number(slope(1), 3)} and ${number(slope(root), 3)}. A saturated softmax lets little gradient through.`));
    },
  };

  // ----------------------------------------------------------------------------------------------- 6. Backward

  const backward = {
    mount() {
      this.steps = el("div", { class: "line", role: "group", "aria-label": "Step of the output", style: { margin: 0 } });
      this.token = el("select", { id: "gradient-token", onchange: () => set({ gradientToken: Number(this.token.value) }) });
      $("backward-controls").append(el("div", { class: "control" }, el("span", { class: "label" }, "Step"), this.steps),
        el("div", { class: "control" }, el("label", { for: "gradient-token" }, "Logit of the token"), this.token));
    },
    update() {
      const plain = current();
      const step = Math.min(state.gradientStep, plain.output.length - 1);
      const token = state.gradientToken < 0 ? plain.output[step] : state.gradientToken;
      const result = current({ gradient: [step, token] });
      const { gradients } = result;
      this.steps.replaceChildren(...plain.output.map((written, i) => el("button", { type: "button", "aria-pressed": String(i === step),
        "aria-label": `step ${i + 1}: ${labelOf(written)}`, "data-key": `gradient step ${i}`,
        onclick: () => set({ gradientStep: i, gradientToken: -1 }) }, tokenText(written))));
      this.token.replaceChildren(...range(VOCABULARY).map((id) => el("option", { value: id, selected: id === token },
        `${labelOf(id)}${id === plain.output[step] ? " (written)" : ""}`)));
      const { kind, layer, head } = state;
      const arrays = gradients[kind][layer][head];
      const queries = queriesOf(result, kind), keys = keysOf(result, kind);
      const mostOf = Object.keys(KINDS).reduce((most, name) => Math.max(most, ...gradients[name].flat().map((matrix, h) =>
        largestOf(matrix.map((row, i) => row.map((x, j) => (result.masks[name][i][j] ? 0 : x)))))), 0);
      const largest = largestOf(arrays.map((row, i) => row.map((x, j) => (result.masks[kind][i][j] ? 0 : x))));
      const unit = Number(`1e${Math.floor(Math.log10(largest))}`);
      const dims = range(WIDTH).map(String);
      const lengths = (name, tokens, vectors) => {
        const norms = vectors.map((row) => Math.sqrt(Model.dot(row, row)));
        const most = Math.max(...norms) || 1;
        return bars(name, ["position", "length"], tokens.map((t, i) => ({ label: tokenText(t), cells: [number(norms[i])],
          length: norms[i] / most, chosen: norms[i] === most })));
      };
      $("backward-body").replaceChildren(
        el("p", { class: "big" }, "Logit of ", el("b", {}, labelOf(token)), ` at step ${step + 1}: ${number(result.logits[step][token])}`),
        el("div", { class: "two" },
          el("div", {}, lengths("Gradient at the source embeddings", result.source, gradients.sourceEmbeddings), el("br"),
            picture("Its numbers at each source position", result.source.map(labelOf), dims, gradients.sourceEmbeddings)),
          el("div", {}, lengths("Gradient at the target embeddings", result.target, gradients.targetEmbeddings), el("br"),
            picture("Its numbers at each target position", result.target.map(labelOf), dims, gradients.targetEmbeddings))),
        signLegend(),
        el("p", { class: "note" }, "An embedding here is the vector that enters the stack: the row of the table times the root of d_model. Later target positions get exactly 0: the causal mask stops the gradient as it stops the reading."),
        el("h3", { class: "apart" }, "Gradient at the attention weights"),
        el("div", { class: "split wide" },
          headThumbs("Gradient of every head; choose one to see its values", gradients, { largest: mostOf || 1, masks: result.masks, onSelect: set }),
          el("div", {}, el("h4", { style: { "margin-top": 0 } }, headName()),
            el("p", { class: "axis" }, `How fast the logit would rise with each weight, in units of ${unit}.`),
            heatTable(`Gradient at the attention weights of ${headName()}`, queries, keys, arrays, {
              hidden: result.masks[kind], largest, text: (x) => (Math.abs(x / unit) < 0.05 ? "0" : number(x / unit, 1)) }),
            valuesTable(`gradient at the weights of ${headName()}`, queries.map(labelOf), keys.map(labelOf), arrays,
              { hidden: result.masks[kind], digits: 8, corner: "query" }))));
    },
  };

  // ------------------------------------------------------------------------------------------ the page as a whole

  const views = { machine, sequence, attention, switches, explorers, backward };
  const taskControl = segments("task", TASKS.map((task) => [task, task[0].toUpperCase() + task.slice(1)]), (task) => set({ task }));

  function go(view) {
    set({ view }, { newPlace: true });
    $(`title-${view}`).focus();
  }

  function showInput() {
    const { error } = parseTokens(state.tokens);
    $("tokens-error").textContent = error ?? "";
    $("tokens").setAttribute("aria-invalid", error ? "true" : "false");
    if ($("tokens").value !== state.tokens) $("tokens").value = state.tokens;
    taskControl.update();
    $("written").replaceChildren(...current().output.map(tokenText));
    const { parameters, steps } = models[state.task].facts;
    $("weight-count").textContent = parameters.toLocaleString("en");
    $("tokens-hint").textContent = `1 to ${SEQ_LEN} numbers from ${Model.FIRST_DATA} to ${VOCABULARY - 1}`;
    return steps;
  }

  function refresh() {
    const focused = document.activeElement?.dataset?.key;
    const root = document.documentElement;
    if (state.theme === "auto") delete root.dataset.theme; else root.dataset.theme = state.theme;
    $("theme").textContent = `Theme: ${state.theme === "auto" ? "as the system" : state.theme}`;
    readPalette();
    showInput();
    for (const [name] of VIEWS) {
      $(`view-${name}`).hidden = name !== state.view;
      const link = $(`link-${name}`);
      link.href = addressOf({ ...state, view: name });
      if (name === state.view) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    measuring += 1;
    views[state.view].update();
    if (focused && document.activeElement?.dataset?.key !== focused) {
      document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
  }

  $("tasks").append(taskControl);
  $("tokens").addEventListener("input", () => set({ tokens: $("tokens").value, step: 0, gradientToken: -1 }));
  $("entry").addEventListener("submit", (event) => event.preventDefault());
  const another = Model.generator(1706);
  $("another").addEventListener("click", () => set({ gradientToken: -1,
    tokens: range(another.integer(3, SEQ_LEN + 1)).map(() => another.integer(Model.FIRST_DATA, VOCABULARY)).join(" ") }));
  $("theme").addEventListener("click", () => set({ theme: { auto: "light", light: "dark", dark: "auto" }[state.theme] }));
  $("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
  $("views").append(...VIEWS.map(([name, title], i) => el("li", {}, el("a", { id: `link-${name}`, onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(name);
  } }, el("span", { class: "number", "aria-hidden": "true" }, String(i + 1)), title))));
  addEventListener("hashchange", () => { state = stateFromAddress(); refresh(); });
  addEventListener("popstate", () => { state = stateFromAddress(); refresh(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
  Object.values(views).forEach((view) => view.mount());
  refresh();
})();
