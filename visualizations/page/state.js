/* What the reader has chosen, kept in the address of the page, and the runs of the model that follow from it. */

const models = Object.fromEntries(
  Object.entries(JSON.parse(document.getElementById("checkpoints").textContent)).map(([task, stored]) => [
    task,
    Model.load(stored),
  ]),
);
const TASKS = Object.keys(models);

function modelOf(task) {
  if (!Object.hasOwn(models, task))
    throw new RangeError(`there is no task ${String(task)}; there are ${TASKS.join(", ")}`);
  return models[task];
}

/* For tests, and for the curious in the console.
 *
 * `run(task, tokens, switches)` decodes greedily under the switches (see ALL_ON in the model script), then makes one
 * pass over the source and what was written, and returns every tensor of it as nested arrays: `output` (tokens after
 * start), `source`, `target` (what the decoder read), `logits` and `probabilities` [step][token], `stepLogits` (those
 * from which each token was chosen), the three kinds of attention [layer][head][query][key], `encoderOutput`, `masks`,
 * and all others in `tensors` under their names in implementation.py. `switches.gradient = [step, token]` adds
 * `gradients` of that one logit: of `sourceEmbeddings` and `targetEmbeddings` [position][dimension], the vectors before
 * positions are added, and of each attention array.
 *
 * `score` returns { logits, teacherForced, exactMatch }, the first two of a pass that reads the right answer, and
 * `leak` how far an exchanged last token moves earlier logits. */
window.transformer = {
  tasks: TASKS,
  settings: (task) => ({ ...modelOf(task).settings }),
  run: (task, tokens, switches) => Model.run(modelOf(task), task, tokens, switches),
  score: (task, tokens, switches) => Model.score(modelOf(task), task, tokens, switches),
  leak: (task, tokens, switches) => Model.leak(modelOf(task), task, tokens, switches),
  positionalEncoding: Model.positionalEncoding,
};

// ------------------------------------------------------------------------------------------- state and address

const {
  seq_len: SEQ_LEN,
  vocab_size: VOCABULARY,
  n_heads: HEADS,
  n_layers: LAYERS,
  d_model: WIDTH,
} = models[TASKS[0]].settings;
const VIEWS = [
  ["machine", "The machine"],
  ["sequence", "Your sequence"],
  ["attention", "Attention"],
  ["switches", "Switches"],
  ["explorers", "Explorers"],
  ["backward", "Backward"],
];
const KINDS = {
  encoderSelfAttention: "Encoder self-attention",
  decoderSelfAttention: "Decoder self-attention",
  crossAttention: "Cross-attention",
};
const SHORT = { encoderSelfAttention: "encoder self", decoderSelfAttention: "decoder self", crossAttention: "cross" };
const SWITCHES = ["scale", "causalMask", "paddingMask", "positions", "residuals", "layerNorm"];

const oneOf = (choices, start) => ({ start, read: (text) => (choices.includes(text) ? text : start) });
const whole = (low, high, start) => ({
  start,
  read: (text) => {
    const value = Number(text);
    return /^-?\d{1,9}$/.test(text) && value >= low && value <= high ? value : start;
  },
});
const decimal = (low, high, start) => ({
  start,
  read: (text) => {
    const value = Number(text);
    return /^\d{1,3}(\.\d{1,4})?$/.test(text) && value >= low && value <= high ? value : start;
  },
});
const FIELDS = {
  view: oneOf(
    VIEWS.map(([name]) => name),
    "machine",
  ),
  theme: oneOf(["auto", "light", "dark"], "auto"),
  task: oneOf(TASKS, TASKS[0]),
  tokens: { start: "5 3 9 7 4", read: (text) => text.slice(0, 200) },
  box: {
    start: "decoder_layers.0.cross_attention",
    read: (text) => (BOXES.some((box) => box.id === text) ? text : FIELDS.box.start),
  },
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
  off: {
    start: "",
    read: (text) =>
      text
        .split(",")
        .filter((name) => SWITCHES.includes(name))
        .join(","),
  },
  headsOff: {
    start: "",
    read: (text) =>
      text
        .split(",")
        .filter((id) => headOf(id) !== null)
        .join(","),
  },
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

function headOf(id) {
  // "crossAttention.0.3" -> ["crossAttention", 0, 3]
  const [kind, layer, head, ...rest] = id.split(".");
  const there = (text, n) => /^\d+$/.test(text ?? "") && Number(text) < n;
  return Object.hasOwn(KINDS, kind) && there(layer, LAYERS) && there(head, HEADS) && !rest.length
    ? [kind, Number(layer), Number(head)]
    : null;
}

function stateFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(
    Object.entries(FIELDS).map(([name, field]) => [name, given.has(name) ? field.read(given.get(name)) : field.start]),
  );
}

function addressOf(values) {
  const query = new URLSearchParams();
  for (const [name, field] of Object.entries(FIELDS)) {
    if (values[name] !== field.start || name === "view") query.set(name, values[name]);
  }
  return `#${query}`;
}

let state = {};

/* Browsers refuse too many changes of the address in a row, as a slider makes them: at most ten a second. */
const address = { timer: 0, written: -Infinity };

function writeAddress() {
  clearTimeout(address.timer);
  Object.assign(address, { timer: 0, written: performance.now() });
  history.replaceState(null, "", addressOf(state));
}

function set(change, { newPlace = false } = {}) {
  if (newPlace && address.timer) writeAddress();
  state = { ...state, ...change };
  const wait = address.written + 100 - performance.now();
  if (newPlace) history.pushState(null, "", addressOf(state));
  else if (wait <= 0) writeAddress();
  else address.timer ||= setTimeout(writeAddress, wait);
  refresh();
}

// ------------------------------------------------------------------------------------------------ tokens and runs

function parseTokens(text) {
  const words = text.replaceAll(",", " ").split(/\s+/).filter(Boolean);
  const last = VOCABULARY - 1;
  const stranger = words.find(
    (word) => !/^\d{1,9}$/.test(word) || Number(word) < Model.FIRST_DATA || Number(word) > last,
  );
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

function remember(compute) {
  // the last few answers, by their question
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
