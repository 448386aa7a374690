/* The first view. A view has `mount`, which makes its controls once, and `update`, which draws what follows from the
 * state. */

// -------------------------------------------------------------------------------------------- 1. The machine

/* Every box of figure 1: where it stands, what the paper says of it, the code that computes it, its tensors. */
function boxes() {
  const attention = (id, title, section, words, block) => ({
    id,
    title,
    section,
    words,
    code: `${block}.forward, MultiHeadAttention.forward, ScaledDotProductAttention.forward`,
    formula: "head_i = softmax(Q_i K_i^T / \u221Ad_k) V_i,  Concat(head_1, \u2026, head_h) W^O",
    parts: ["Q", "K", "V", "scores", "weights", "heads", "concatenation", "output"],
  });
  const norm = (id, block) => ({
    id,
    title: "Add & Norm",
    section: "3.1, 5.4",
    code: `${block}.forward, AddNorm.forward`,
    formula: "LayerNorm(x + Sublayer(x))",
    parts: ["sum", "output"],
    words:
      "What the sublayer found is added to what came in; each position is then brought to mean 0 and variance 1, " +
      "scaled by gamma and shifted by beta.",
  });
  const feed = (id, block) => ({
    id,
    title: "Feed-forward",
    section: "3.3",
    code: `${block}.forward, FeedForward.forward`,
    formula: "max(0, x W_1 + b_1) W_2 + b_2",
    parts: ["hidden", "output"],
    words: "The same two matrices at every position, each position on its own; what is below 0 between them becomes 0.",
  });
  const embedding = (id, title, side) => ({
    id,
    title,
    section: "3.4",
    code: "TokenEmbedding.forward",
    formula: "E[token] \u00B7 \u221Ad_{model}",
    parts: ["output"],
    side,
    words: "Each token takes its row of the table, times the square root of the width.",
  });
  const positions = (id, side) => ({
    id,
    title: "Positions",
    section: "3.5",
    code: "PositionalEncoding.forward",
    parts: ["output"],
    side,
    formula: "x + PE,  PE(pos, 2i) = sin(pos / 10000^{2i/d}),  PE(pos, 2i+1) = cos(the same)",
    words:
      "Attention does not know order. A fixed pattern of waves, one for each position, is added to the embeddings.",
  });
  const encoder = [embedding("src_embedding", "Input embedding", "source"), positions("positional_encoding", "source")];
  const decoder = [
    embedding("tgt_embedding", "Output embedding", "target"),
    positions("tgt_positional_encoding", "target"),
  ];
  for (const i of range(LAYERS)) {
    const [e, d] = [`encoder_layers.${i}`, `decoder_layers.${i}`];
    encoder.push(
      attention(
        `${e}.self_attention`,
        "Self-attention",
        "3.2.2, 3.2.3",
        "Every source position gathers what it needs from every other; padding is hidden.",
        "EncoderBlock",
      ),
      norm(`${e}.norm1`, "EncoderBlock"),
      feed(`${e}.feed_forward`, "EncoderBlock"),
      norm(`${e}.norm2`, "EncoderBlock"),
    );
    decoder.push(
      attention(
        `${d}.self_attention`,
        "Masked self-attention",
        "3.2.2, 3.2.3",
        "Every target position looks at itself and at those before it; the mask hides what is not written yet.",
        "DecoderBlock",
      ),
      norm(`${d}.norm1`, "DecoderBlock"),
      attention(
        `${d}.cross_attention`,
        "Cross-attention",
        "3.2.2, 3.2.3",
        "The queries come from the decoder, keys and values from the encoder's output: the target reads the source.",
        "DecoderBlock",
      ),
      norm(`${d}.norm2`, "DecoderBlock"),
      feed(`${d}.feed_forward`, "DecoderBlock"),
      norm(`${d}.norm3`, "DecoderBlock"),
    );
  }
  decoder.push(
    {
      id: "output_projection",
      title: "Linear",
      section: "3.4",
      code: "Transformer.forward",
      parts: ["logits"],
      formula: "logits = x W",
      words: "Each position becomes one score for each token of the vocabulary.",
    },
    {
      id: "softmax",
      title: "Softmax",
      section: "3.4",
      code: "softmax",
      parts: ["probabilities"],
      formula: "p_i = exp(logit_i) / \u03A3_j exp(logit_j)",
      words: "The scores become probabilities; the largest is the next token.",
    },
  );
  return { encoder, decoder };
}

function layOut() {
  const columns = boxes();
  const place = (list, x) => {
    let y = 0,
      layer = "";
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

const BOX_WIDTH = 132,
  LEFT = 32,
  RIGHT = 216;
const PLACES = layOut();
const BOXES = [...PLACES.encoder, ...PLACES.decoder].map((box) => ({
  ...box,
  side: box.side ?? (box.id.startsWith("encoder") ? "source" : "target"),
  height: box.title === "Add & Norm" ? 24 : 30,
}));

const weightsOf = (model, id) => model.shapes.filter(([name]) => name === id || name.startsWith(`${id}.`));
const sizeOf = (shape) => shape.reduce((a, b) => a * b, 1);
const countOf = (model, id) => Model.sum(weightsOf(model, id).map(([, shape]) => sizeOf(shape)));

const whereIs = ({ layer }) =>
  layer ? `, ${layer.replace("_layers.", " layer ").replace(/\d+/, (n) => Number(n) + 1)}` : "";

function drawMachine(result) {
  const model = models[state.task];
  const W = BOX_WIDTH,
    TOP = 26;
  const tallest = Math.max(...BOXES.map((box) => box.bottom + box.height));
  const H = tallest + TOP + 48;
  const y = (box) => H - 48 - box.bottom - box.height;
  const most = Math.max(...BOXES.map((box) => countOf(model, box.id)));
  const wires = [],
    layers = [];
  for (const [name, list] of Object.entries({ encoder: "encoder", decoder: "decoder" })) {
    const column = BOXES.filter((box) => PLACES[name].some((placed) => placed.id === box.id));
    const centre = column[0].x + W / 2;
    const topOf = y(column.at(-1));
    wires.push(
      el("path", { class: "wire", d: `M${centre} ${H - 34}V${name === "decoder" ? topOf - 12 : topOf - 16}` }),
    );
    const out = name === "encoder" ? -1 : 1;
    const edge = name === "encoder" ? column[0].x : column[0].x + W;
    column.forEach((box, i) => {
      // the residual connections
      if (box.title !== "Add & Norm") return;
      const from = y(column[i - 1]) + column[i - 1].height + 5;
      wires.push(
        el("path", { class: "wire", d: `M${centre} ${from}H${edge + out * 8}V${y(box) + box.height / 2}H${edge}` }),
      );
    });
    for (const i of range(LAYERS)) {
      const inside = column.filter((box) => box.layer === `${list}_layers.${i}`);
      const top = y(inside.at(-1)) - 8,
        bottom = y(inside[0]) + inside[0].height + 11;
      layers.push(
        el("rect", { class: "layer", x: column[0].x - 15, y: top, width: W + 30, height: bottom - top, rx: 3 }),
        el(
          "text",
          {
            class: "side",
            x: name === "encoder" ? 8 : 372,
            y: (top + bottom) / 2,
            "text-anchor": "middle",
            transform: `rotate(${name === "encoder" ? -90 : 90} ${name === "encoder" ? 8 : 372} ${(top + bottom) / 2})`,
          },
          `${name} layer ${i + 1}`,
        ),
      );
    }
  }
  const encoderTop = y(PLACES.encoder.map((p) => BOXES.find((box) => box.id === p.id)).at(-1)) - 16;
  const reads = BOXES.filter((box) => box.id.endsWith("cross_attention"));
  const bus = 189;
  const levels = reads.map((box) => y(box) + box.height / 2);
  wires.push(
    el("path", { class: "wire", d: `M${LEFT + W / 2} ${encoderTop}H${bus}` }),
    el("path", { class: "wire", d: `M${bus} ${Math.max(encoderTop, ...levels)}V${Math.min(encoderTop, ...levels)}` }),
    levels.map((level) => [
      el("path", { class: "wire", d: `M${bus} ${level}H${RIGHT - 4}` }),
      el("path", { class: "head", d: `M${RIGHT} ${level}l-7 -3.5v7z` }),
    ]),
  );
  const drawn = BOXES.map((box) => {
    const chosen = state.box === box.id;
    const count = countOf(model, box.id);
    return el(
      "g",
      {
        class: "box",
        role: "button",
        tabindex: chosen ? 0 : -1,
        "aria-pressed": String(chosen),
        "data-key": `box ${box.id}`,
        "aria-label": `${box.title}${whereIs(box)}, ${count.toLocaleString("en")} weights`,
        onclick: () => set({ box: box.id }),
      },
      el("rect", { x: box.x, y: y(box), width: W, height: box.height, rx: 2 }),
      el("rect", { class: "ring", x: box.x - 4, y: y(box) - 4, width: W + 8, height: box.height + 8, rx: 4 }),
      el(
        "text",
        { x: box.x + W / 2, y: y(box) + box.height / 2 + 3.5, "text-anchor": "middle", "aria-hidden": "true" },
        box.title,
      ),
      count > 0 &&
        el("line", {
          class: "share",
          x1: box.x + 6,
          x2: box.x + 6 + ((W - 12) * count) / most,
          y1: y(box) + box.height - 4,
          y2: y(box) + box.height - 4,
        }),
    );
  });
  const counted = (tokens) => {
    const pads = tokens.filter((token) => token === Model.PAD).length;
    return (
      tokens
        .filter((token) => token !== Model.PAD)
        .map(labelOf)
        .join(" ") + (pads ? ` + ${pads} pad` : "")
    );
  };
  const ends = [
    ["source", LEFT, H - 20],
    [counted(result.source), LEFT, H - 4],
    ["target so far", RIGHT, H - 20],
    [counted(result.target), RIGHT, H - 4],
    ["next token", RIGHT, y(BOXES.at(-1)) - 17],
  ].map(([text, x, level]) => el("text", { class: "side", x: x + W / 2, y: level, "text-anchor": "middle" }, text));

  function onkeydown(event) {
    const at = BOXES.find((box) => box.id === state.box);
    const column = BOXES.filter((box) => box.x === at.x),
      other = BOXES.filter((box) => box.x !== at.x);
    const i = column.indexOf(at);
    const across = () =>
      other.reduce((best, box) => (Math.abs(y(box) - y(at)) < Math.abs(y(best) - y(at)) ? box : best));
    const to = {
      ArrowUp: () => column[i + 1],
      ArrowDown: () => column[i - 1],
      Home: () => column[0],
      End: () => column.at(-1),
      ArrowLeft: () => at.x > LEFT && across(),
      ArrowRight: () => at.x === LEFT && across(),
      Enter: () => at,
      " ": () => at,
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const box = to();
    if (!box) return;
    set({ box: box.id });
    document.querySelector(`[data-key="box ${box.id}"]`).focus();
  }
  return el(
    "svg",
    { viewBox: `0 0 380 ${H}`, role: "group", "aria-label": "The architecture, figure 1 of the paper", onkeydown },
    layers,
    wires,
    ends,
    drawn,
  );
}

const PART_NAMES = {
  Q: "Q, the queries",
  K: "K, the keys",
  V: "V, the values",
  scores: "Q K^T / \u221Ad_k, the scores",
  weights: "softmax of the scores, the attention weights",
  heads: "weights times V, the heads",
  concatenation: "heads side by side",
  sum: "x + Sublayer(x)",
  hidden: "max(0, x W1 + b1)",
  output: "output",
  logits: "logits",
  probabilities: "probabilities",
};

const HATCHED = "Hatched cells are hidden by the mask.";
const cellsOf = ({ parts }) =>
  "A row is a position, a column " +
  (parts.includes("weights")
    ? "a dimension, or a key in scores and weights."
    : parts.includes("logits") || parts.includes("probabilities")
      ? "a token of the vocabulary."
      : "a dimension.");

function boxTensors(box, result) {
  const id = box.id === "softmax" ? "output_projection" : box.id;
  const kind = id.endsWith("cross_attention")
    ? "crossAttention"
    : id.startsWith("encoder")
      ? "encoderSelfAttention"
      : "decoderSelfAttention";
  const positions = result[box.side].map(labelOf);
  return box.parts.map((part) => {
    const tensor = result.tensors[`${id}.${part}`];
    const name = PART_NAMES[part].replace("^T", "\u1D40");
    if (!Array.isArray(tensor[0][0])) {
      const columns = range(tensor[0].length).map((i) =>
        part === "logits" || part === "probabilities" ? labelOf(i) : String(i),
      );
      return picture(name, positions, columns, tensor, { positive: part === "probabilities" });
    }
    const rows = (part === "K" || part === "V" ? keysOf : queriesOf)(result, kind).map(labelOf);
    const square = part === "scores" || part === "weights";
    const columns = square ? keysOf(result, kind).map(labelOf) : range(tensor[0][0].length).map(String);
    return el(
      "div",
      { role: "group", "aria-label": name },
      el(
        "p",
        { class: "axis" },
        name,
        " ",
        el("span", { class: "mono" }, shapeText([tensor.length, tensor[0].length, tensor[0][0].length])),
      ),
      el(
        "div",
        { class: "head-row" },
        tensor.map((head, i) =>
          picture(`head ${i + 1}`, rows, columns, head, {
            positive: part === "weights",
            hidden: square ? result.masks[kind] : undefined,
            height: `${9 * rows.length}px`,
          }),
        ),
      ),
      el("br"),
    );
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
    $("machine-drawing").replaceChildren(
      drawMachine(result),
      valuesTable(
        "the drawing: the weights of every box",
        BOXES.map((each) => each.title + whereIs(each)),
        ["weights"],
        BOXES.map((each) => [countOf(model, each.id)]),
        { digits: 0, corner: "box" },
      ),
    );
    $("machine-panel").replaceChildren(
      el("h3", {}, box.title + whereIs(box)),
      formula(box.formula),
      el("p", { class: "words" }, box.words),
      el(
        "dl",
        { class: "facts" },
        fact("Paper", `section ${box.section}`),
        fact("Code", el("code", {}, box.code)),
        fact(
          "Weights",
          weights.length === 0
            ? "none"
            : weights.map(([name, shape]) => `${name.split(".").at(-1)} ${shape.join("\u00D7")}`).join(", "),
        ),
        weights.length > 0 &&
          fact(
            "Share",
            `${countOf(model, box.id).toLocaleString("en")} of ${model.facts.parameters.toLocaleString("en")} weights`,
          ),
      ),
      legend(cellsOf(box), !box.parts.includes("probabilities") && SIGNS, box.parts.includes("weights") && HATCHED),
      ...boxTensors(box, result),
    );
  },
};
