"use strict";

/* The Transformer of "Attention Is All You Need", section 3: the whole model, forward and backward, in float64.
 *
 * A matrix is an array of rows. Every part of the model is a function of its inputs that returns its output together
 * with `back`, which takes the gradient of the output and returns the gradient of the inputs. Names are those of
 * implementation.py, and a test compares the two number by number.
 *
 *     S  source positions     h    heads                       hidden[query][key]  true where the mask hides a key
 *     T  target positions     d_k  width of a head             dx                  gradient of x
 */
const Model = (() => {
  const PAD = 0, START = 1, END = 2, FIRST_DATA = 3, LAYER_NORM_EPS = 1e-5;
  const ATTENTION_KINDS = ["encoderSelfAttention", "decoderSelfAttention", "crossAttention"];

  // ------------------------------------------------------------------------------------------------ matrices

  const times = (a, factor) => a.map((row) => row.map((x) => x * factor));
  const add = (a, b) => a.map((row, i) => row.map((x, j) => x + b[i][j]));
  const transpose = (a) => a[0].map((_, j) => a.map((row) => row[j]));
  const zerosLike = (a) => a.map((row) => row.map(() => 0));
  const sum = (row) => row.reduce((total, x) => total + x, 0);
  const dot = (a, b) => sum(a.map((x, i) => x * b[i]));
  const mean = (row) => sum(row) / row.length;

  function product(a, b) {
    return a.map((row) => {
      const out = new Array(b[0].length).fill(0);
      for (let k = 0; k < row.length; k++) {
        for (let j = 0; j < out.length; j++) out[j] += row[k] * b[k][j];
      }
      return out;
    });
  }

  function linear(x, W, b) {                                                       // x W + b
    const y = product(x, W);
    return b ? y.map((row) => row.map((value, j) => value + b[j])) : y;
  }

  function argmax(row) {
    return row.reduce((best, x, i) => (x > row[best] ? i : best), 0);
  }

  // ------------------------------------------------------------------------------------ 3.2.1 one head's attention

  function softmax(row) {
    const peak = Math.max(...row);
    if (peak === -Infinity) return row.map(() => 0);                               // a query with nothing to see
    const e = row.map((x) => Math.exp(x - peak));
    const total = sum(e);
    return e.map((x) => x / total);
  }

  function softmaxBack(dy, y) {
    const shared = dot(dy, y);
    return y.map((p, i) => p * (dy[i] - shared));
  }

  function scaledDotProductAttention(Q, K, V, hidden, scaled) {                    // (T, d_k) (S, d_k) (S, d_k)
    const factor = scaled ? 1 / Math.sqrt(Q[0].length) : 1;
    const dots = product(Q, transpose(K));                                         // (T, S)
    const scores = times(dots, factor);
    const masked = scores.map((row, i) => row.map((score, j) => (hidden[i][j] ? -Infinity : score)));
    const weights = masked.map(softmax);
    const output = product(weights, V);                                            // (T, d_k)

    function back(dout) {
      const dweights = product(dout, transpose(V));
      const dV = product(transpose(weights), dout);
      const dscores = times(dweights.map((row, i) => softmaxBack(row, weights[i])), factor);
      return { dQ: product(dscores, K), dK: product(transpose(dscores), Q), dV, dweights };
    }
    return { dots, scores, weights, output, back };
  }

  // ------------------------------------------------------------------------------------ 3.2.2 multi-head attention

  function splitHeads(x, nHeads) {                                                 // (T, d_model) -> (h, T, d_k)
    const d_k = x[0].length / nHeads;
    return Array.from({ length: nHeads }, (_, i) => x.map((row) => row.slice(i * d_k, (i + 1) * d_k)));
  }

  const mergeHeads = (heads) => heads[0].map((_, t) => heads.flatMap((head) => head[t]));

  function multiHeadAttention(model, name, query, memory, hidden, keep) {
    const [W_Q, W_K, W_V, W_O] = ["W_Q", "W_K", "W_V", "W_O"].map((weight) => model.weights[`${name}.${weight}`]);
    const { n_heads } = model.settings;
    const Q = splitHeads(linear(query, W_Q), n_heads);
    const K = splitHeads(linear(memory, W_K), n_heads);
    const V = splitHeads(linear(memory, W_V), n_heads);
    const heads = Q.map((_, i) => scaledDotProductAttention(Q[i], K[i], V[i], hidden, keep.switches.scale));
    const off = heads.map((_, i) => keep.headsOff.has(`${name} ${i}`));
    const outputs = heads.map((head, i) => (off[i] ? zerosLike(head.output) : head.output));
    const concatenation = mergeHeads(outputs);                                     // (T, d_model)
    const output = linear(concatenation, W_O);
    keep.tensors(name, {
      Q, K, V, dots: heads.map((head) => head.dots), scores: heads.map((head) => head.scores),
      weights: heads.map((head) => head.weights), heads: outputs, concatenation, output,
    });

    function back(dout) {
      const dheads = splitHeads(linear(dout, transpose(W_O)), n_heads);
      const backs = heads.map((head, i) => head.back(off[i] ? zerosLike(dheads[i]) : dheads[i]));
      keep.gradients[name] = backs.map((b) => b.dweights);
      const [dQ, dK, dV] = ["dQ", "dK", "dV"].map((part) => mergeHeads(backs.map((b) => b[part])));
      return {
        dquery: linear(dQ, transpose(W_Q)),
        dmemory: add(linear(dK, transpose(W_K)), linear(dV, transpose(W_V))),
      };
    }
    return { output, back };
  }

  // ------------------------------------------------------------------------- 3.3 feed-forward, 3.1 Add & Norm

  function feedForward(model, name, x, keep) {                                     // max(0, x W1 + b1) W2 + b2
    const [W1, b1, W2, b2] = ["W1", "b1", "W2", "b2"].map((weight) => model.weights[`${name}.${weight}`]);
    const hidden = linear(x, W1, b1).map((row) => row.map((value) => Math.max(value, 0)));
    const output = linear(hidden, W2, b2);
    keep.tensors(name, { hidden, output });

    function back(dout) {
      const dhidden = linear(dout, transpose(W2));
      const dinner = dhidden.map((row, i) => row.map((d, j) => (hidden[i][j] > 0 ? d : 0)));
      return linear(dinner, transpose(W1));
    }
    return { output, back };
  }

  function layerNorm(x, gamma, beta) {
    const centred = x.map((row) => { const m = mean(row); return row.map((value) => value - m); });
    const rstd = centred.map((row) => 1 / Math.sqrt(mean(row.map((value) => value * value)) + LAYER_NORM_EPS));
    const x_hat = centred.map((row, i) => row.map((value) => value * rstd[i]));
    const output = x_hat.map((row) => row.map((value, j) => gamma[j] * value + beta[j]));

    function back(dout) {
      return dout.map((row, i) => {
        const dx_hat = row.map((d, j) => d * gamma[j]);
        const through_mean = mean(dx_hat);
        const through_variance = mean(dx_hat.map((d, j) => d * x_hat[i][j]));
        return dx_hat.map((d, j) => rstd[i] * (d - through_mean - x_hat[i][j] * through_variance));
      });
    }
    return { output, back };
  }

  function addNorm(model, name, x, sublayerOutput, keep) {                         // LayerNorm(x + Sublayer(x))
    const { residuals, layerNorm: normed } = keep.switches;
    const added = residuals ? add(x, sublayerOutput) : sublayerOutput;
    const norm = normed
      ? layerNorm(added, model.weights[`${name}.gamma`], model.weights[`${name}.beta`])
      : { output: added, back: (dout) => dout };
    keep.tensors(name, { sum: added, output: norm.output });

    function back(dout) {
      const dadded = norm.back(dout);
      return { dx: residuals ? dadded : zerosLike(dadded), dsublayer: dadded };
    }
    return { output: norm.output, back };
  }

  // ------------------------------------------------------------------------------------------------- 3.1 stacks

  function encoderBlock(model, name, x, hidden, keep) {
    const attention = multiHeadAttention(model, `${name}.self_attention`, x, x, hidden, keep);
    const norm1 = addNorm(model, `${name}.norm1`, x, attention.output, keep);
    const feed = feedForward(model, `${name}.feed_forward`, norm1.output, keep);
    const norm2 = addNorm(model, `${name}.norm2`, norm1.output, feed.output, keep);

    function back(dout) {
      const after = norm2.back(dout);
      const before = norm1.back(add(after.dx, feed.back(after.dsublayer)));
      const { dquery, dmemory } = attention.back(before.dsublayer);
      return add(add(before.dx, dquery), dmemory);
    }
    return { output: norm2.output, back };
  }

  function decoderBlock(model, name, x, encoderOutput, hiddenSelf, hiddenCross, keep) {
    const attention = multiHeadAttention(model, `${name}.self_attention`, x, x, hiddenSelf, keep);
    const norm1 = addNorm(model, `${name}.norm1`, x, attention.output, keep);
    const cross = multiHeadAttention(model, `${name}.cross_attention`, norm1.output, encoderOutput, hiddenCross, keep);
    const norm2 = addNorm(model, `${name}.norm2`, norm1.output, cross.output, keep);
    const feed = feedForward(model, `${name}.feed_forward`, norm2.output, keep);
    const norm3 = addNorm(model, `${name}.norm3`, norm2.output, feed.output, keep);

    function back(dout) {
      const third = norm3.back(dout);
      const second = norm2.back(add(third.dx, feed.back(third.dsublayer)));
      const read = cross.back(second.dsublayer);
      const first = norm1.back(add(second.dx, read.dquery));
      const { dquery, dmemory } = attention.back(first.dsublayer);
      return { dx: add(add(first.dx, dquery), dmemory), dencoderOutput: read.dmemory };
    }
    return { output: norm3.output, back };
  }

  // --------------------------------------------------------------------------- 3.4 embeddings, 3.5 positions

  function positionalEncoding(length, width) {
    return Array.from({ length }, (_, pos) => Array.from({ length: width }, (_, i) => {
      const angle = pos / 10000 ** ((i - (i % 2)) / width);
      return i % 2 === 0 ? Math.sin(angle) : Math.cos(angle);
    }));
  }

  function embed(model, side, tokens, keep) {
    const table = model.weights[`${side}_embedding.embedding`];
    const { d_model } = model.settings;
    const embedded = tokens.map((token) => table[token].map((value) => value * Math.sqrt(d_model)));
    if (keep.nudge?.side === side) embedded[keep.nudge.position][keep.nudge.dimension] += keep.nudge.amount;
    const summed = keep.switches.positions ? add(embedded, positionalEncoding(tokens.length, d_model)) : embedded;
    keep.tensors(`${side}_embedding`, { output: embedded });
    keep.tensors(side === "src" ? "positional_encoding" : "tgt_positional_encoding", { output: summed });
    return summed;
  }

  // --------------------------------------------------------------------------------------- figure 1: the model

  /* hidden[query][key]: the key is padding, or lies in the query's future. */
  function mask(queries, keys, { padding, causal }) {
    return queries.map((_, i) => keys.map((token, j) => (padding && token === PAD) || (causal && j > i)));
  }

  function encode(model, source, keep) {
    const hidden = mask(source, source, { padding: keep.switches.paddingMask, causal: false });
    let x = embed(model, "src", source, keep);
    const blocks = [];
    for (let i = 0; i < model.settings.n_layers; i++) {
      blocks.push(encoderBlock(model, `encoder_layers.${i}`, x, hidden, keep));
      x = blocks[i].output;
    }
    return { output: x, back: (dx) => blocks.reduceRight((d, block) => block.back(d), dx) };
  }

  function decode(model, source, target, encoderOutput, keep) {
    const { paddingMask: padding, causalMask: causal } = keep.switches;
    const hiddenSelf = mask(target, target, { padding, causal });
    const hiddenCross = mask(target, source, { padding, causal: false });
    let x = embed(model, "tgt", target, keep);
    const blocks = [];
    for (let i = 0; i < model.settings.n_layers; i++) {
      blocks.push(decoderBlock(model, `decoder_layers.${i}`, x, encoderOutput, hiddenSelf, hiddenCross, keep));
      x = blocks[i].output;
    }
    const W = model.weights.output_projection;
    const logits = linear(x, W);                                                   // (T, vocabulary)
    keep.tensors("output_projection", { logits, probabilities: logits.map(softmax) });

    function back(dlogits) {
      let dx = linear(dlogits, transpose(W));
      let dencoderOutput = zerosLike(encoderOutput);
      for (const block of [...blocks].reverse()) {
        const d = block.back(dx);
        dx = d.dx;
        dencoderOutput = add(dencoderOutput, d.dencoderOutput);                    // every block reads it
      }
      return { dx, dencoderOutput };
    }
    return { logits, back };
  }

  // --------------------------------------------------------------------------------------------------- switches

  /* What each switch takes away when it is false:
   *   scale        the scores stay q.k, without the factor 1 / sqrt(d_k)
   *   causalMask   a target position attends to later ones too
   *   paddingMask  padding is a key like any other, in all three kinds of attention
   *   positions    nothing is added to the embeddings
   *   residuals    Add & Norm forgets x: LayerNorm(Sublayer(x))
   *   layerNorm    Add & Norm only adds: x + Sublayer(x), without gamma and beta
   *   heads        a list of [kind, layer, head]; each head listed puts zeros into the concatenation */
  const ALL_ON = { scale: true, causalMask: true, paddingMask: true, positions: true, residuals: true,
                   layerNorm: true, heads: [] };

  function attentionName(kind, layer) {
    return { encoderSelfAttention: `encoder_layers.${layer}.self_attention`,
             decoderSelfAttention: `decoder_layers.${layer}.self_attention`,
             crossAttention: `decoder_layers.${layer}.cross_attention` }[kind];
  }

  function checkSwitches(model, given) {
    const { gradient, ...switches } = given;
    for (const [name, value] of Object.entries(switches)) {
      if (!Object.hasOwn(ALL_ON, name)) throw new TypeError(`there is no switch named ${name}`);
      if (name !== "heads" && typeof value !== "boolean") throw new TypeError(`${name} must be true or false`);
    }
    const { n_layers, n_heads } = model.settings;
    for (const [kind, layer, head] of switches.heads ?? []) {
      const there = (i, n) => Number.isInteger(i) && i >= 0 && i < n;
      if (!ATTENTION_KINDS.includes(kind) || !there(layer, n_layers) || !there(head, n_heads)) {
        throw new RangeError(`there is no head ${JSON.stringify([kind, layer, head])}`);
      }
    }
    return { ...ALL_ON, ...switches };
  }

  function keeper(model, switches, nudge) {
    const kept = {};
    return {
      switches, nudge, kept, gradients: {},
      headsOff: new Set(switches.heads.map(([kind, layer, head]) => `${attentionName(kind, layer)} ${head}`)),
      tensors(name, parts) { for (const [part, value] of Object.entries(parts)) kept[`${name}.${part}`] = value; },
    };
  }

  // ----------------------------------------------------------------------------------- decoding and whole passes

  function checkTokens(model, tokens) {
    const { vocab_size, seq_len } = model.settings;
    if (!Array.isArray(tokens) || tokens.length < 1 || tokens.length > seq_len) {
      throw new RangeError(`between 1 and ${seq_len} tokens are needed`);
    }
    for (const token of tokens) {
      if (!Number.isInteger(token) || token < FIRST_DATA || token >= vocab_size) {
        throw new RangeError(`${String(token)} is not a token from ${FIRST_DATA} to ${vocab_size - 1}`);
      }
    }
  }

  const padded = (tokens, length) => [...tokens, ...new Array(length - tokens.length).fill(PAD)];

  /* As in training: the tokens, the end token, and padding up to seq_len + 1. */
  const makeSource = (model, tokens) => padded([...tokens, END], model.settings.seq_len + 1);

  const answer = (task, tokens) => (task === "reverse" ? [...tokens].reverse() : [...tokens]);

  /* Write token by token until the end token or seq_len + 1 tokens. Each step computes the whole prefix anew, under
   * the switches, and `choose(logits, step)` picks the next token; greedy decoding picks the largest logit. */
  function* decodeSteps(model, source, switches, choose) {
    const memory = encode(model, source, keeper(model, switches)).output;
    const target = [START];
    for (let step = 0; step <= model.settings.seq_len; step++) {
      const logits = decode(model, source, target, memory, keeper(model, switches)).logits[step];
      const token = choose(logits, step);
      yield { token, logits };
      if (token === END) return;
      target.push(token);
    }
  }

  function pass(model, source, target, switches, nudge) {
    const keep = keeper(model, switches, nudge);
    const encoder = encode(model, source, keep);
    const decoder = decode(model, source, target, encoder.output, keep);

    /* The gradient of one logit, with respect to the embedded vectors (table row times sqrt(d_model)) of every
     * position and to every attention weight, each weight taken as a variable of its own. */
    function back(step, token) {
      const dlogits = zerosLike(decoder.logits);
      dlogits[step][token] = 1;
      const { dx, dencoderOutput } = decoder.back(dlogits);
      return { targetEmbeddings: dx, sourceEmbeddings: encoder.back(dencoderOutput), attention: keep.gradients };
    }
    return { encoderOutput: encoder.output, logits: decoder.logits, tensors: keep.kept, back };
  }

  const byKind = (model, arrays, suffix) => Object.fromEntries(ATTENTION_KINDS.map((kind) => [kind,
    Array.from({ length: model.settings.n_layers }, (_, layer) => arrays[attentionName(kind, layer) + suffix])]));

  function run(model, task, tokens, given = {}) {
    checkTokens(model, tokens);
    const switches = checkSwitches(model, given);
    const source = makeSource(model, tokens);
    const steps = [...decodeSteps(model, source, switches, argmax)];
    const output = steps.map((step) => step.token);
    const target = [START, ...output.slice(0, -1)];
    const { encoderOutput, logits, tensors, back } = pass(model, source, target, switches);
    const { paddingMask: padding, causalMask: causal } = switches;
    const result = {
      task, tokens: [...tokens], source, target, output, answer: [...answer(task, tokens), END],
      stepLogits: steps.map((step) => step.logits), logits, probabilities: logits.map(softmax), encoderOutput,
      ...byKind(model, tensors, ".weights"), tensors,
      masks: {
        encoderSelfAttention: mask(source, source, { padding, causal: false }),
        decoderSelfAttention: mask(target, target, { padding, causal }),
        crossAttention: mask(target, source, { padding, causal: false }),
      },
    };
    if (given.gradient !== undefined) {
      const [step, token] = given.gradient;
      if (!(logits[step] && token in logits[step])) throw new RangeError(`there is no logit [${step}, ${token}]`);
      const { attention, ...embeddings } = back(step, token);
      result.gradients = { ...embeddings, ...byKind(model, attention, "") };
    }
    return result;
  }

  /* How a sequence fares: teacher-forced, where the decoder reads the right answer as in training (padded, all
   * positions at once), and free-running, where it reads what it wrote itself. */
  function score(model, task, tokens, given = {}) {
    checkTokens(model, tokens);
    const switches = checkSwitches(model, given);
    const source = makeSource(model, tokens);
    const right = [...answer(task, tokens), END];
    const target = padded([START, ...right], model.settings.seq_len + 2).slice(0, -1);
    const { logits } = pass(model, source, target, switches);
    const taught = logits.map(argmax);
    const written = [...decodeSteps(model, source, switches, argmax)].map((step) => step.token);
    return {
      logits,
      teacherForced: mean(right.map((token, i) => (taught[i] === token ? 1 : 0))),
      exactMatch: written.length === right.length && right.every((token, i) => written[i] === token),
    };
  }

  /* The leak itself: how far the logits of all earlier positions move when the last target token is exchanged. */
  function leak(model, task, tokens, given = {}) {
    const switches = checkSwitches(model, given);
    const source = makeSource(model, tokens);
    const target = [START, ...answer(task, tokens)];
    const last = target.length - 1;
    const other = target[last] === FIRST_DATA ? FIRST_DATA + 1 : FIRST_DATA;
    const before = pass(model, source, target, switches).logits;
    const after = pass(model, source, [...target.slice(0, last), other], switches).logits;
    return Math.max(...before.slice(0, last).flatMap((row, i) => row.map((x, j) => Math.abs(x - after[i][j]))));
  }

  /* A derivative without any backward: the rate at which a logit moves when one number of one embedded vector (side
   * "src" or "tgt") is raised and lowered by 1e-4. */
  function slope(model, { source, target }, [step, token], side, position, dimension) {
    const logit = (amount) =>
      pass(model, source, target, ALL_ON, { side, position, dimension, amount }).logits[step][token];
    return (logit(1e-4) - logit(-1e-4)) / 2e-4;
  }

  // ---------------------------------------------------------------------------------------------------- weights

  /* A stored model: its settings, the shape of each weight, and all float32 values, little-endian, as base64. */
  function load(stored) {
    const bytes = Uint8Array.from(atob(stored.base64), (character) => character.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    let at = 0;
    const read = (count) => Array.from({ length: count }, () => view.getFloat32(4 * at++, true));
    const weights = {};
    for (const [name, shape] of stored.shapes) {
      weights[name] = shape.length === 1 ? read(shape[0]) : Array.from({ length: shape[0] }, () => read(shape[1]));
    }
    return { settings: stored.settings, facts: stored.facts, shapes: stored.shapes, weights };
  }

  // --------------------------------------------------------------------------------------------- random numbers

  /* mulberry32: the same seed gives the same numbers in every browser. */
  function generator(seed) {
    let state = seed >>> 0;
    function uniform() {
      state = (state + 0x6d2b79f5) >>> 0;
      let t = state;
      t = Math.imul(t ^ (t >>> 15), t | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    }
    const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
    const integer = (low, high) => low + Math.floor(uniform() * (high - low));
    return { uniform, normal, integer };
  }

  function sample(logits, temperature, u) {
    const probabilities = softmax(logits.map((x) => x / temperature));
    let passed = 0;
    for (let token = 0; token < probabilities.length; token++) {
      passed += probabilities[token];
      if (u < passed) return token;
    }
    return argmax(probabilities);
  }

  return { PAD, START, END, FIRST_DATA, ATTENTION_KINDS, ALL_ON, attentionName, load, run, score, leak, slope,
           decodeSteps, makeSource, answer, positionalEncoding, softmax, argmax, sample, generator, dot, mean, sum };
})();
