"use strict";

/* The page's model without the page: reads the built HTML, takes its model script and weights, and answers questions.
 *
 *     node page_model.js PAGE.html < questions.json > answers.json
 *
 * A question is {"call": "run" or "score", "task", "tokens", "switches"}. It may hold "nudge": [name, index, amount],
 * which adds amount to one number of one weight before the answer, and "only": a list of the parts to answer. */
const fs = require("node:fs");
const vm = require("node:vm");

const page = fs.readFileSync(process.argv[2], "utf8");
const script = (id) => page.match(new RegExp(`<script id="${id}"[^>]*>([\\s\\S]*?)</script>`))[1];
const Model = vm.runInNewContext(`${script("model")};Model`, { atob, Uint8Array, DataView });
const stored = JSON.parse(script("checkpoints"));
const models = Object.fromEntries(Object.entries(stored).map(([task, model]) => [task, Model.load(model)]));

function answer({ only, ...question }) {
  const whole = nudged(question);
  return only ? Object.fromEntries(only.map((part) => [part, whole[part]])) : whole;
}

function nudged({ call, task, tokens, switches, nudge }) {
  const model = models[task];
  if (!nudge) return Model[call](model, task, tokens, switches);
  const [name, index, amount] = nudge;
  const row = index.slice(0, -1).reduce((array, i) => array[i], model.weights[name]);
  const before = row[index.at(-1)];
  row[index.at(-1)] += amount;
  try {
    return Model[call](model, task, tokens, switches);
  } finally {
    row[index.at(-1)] = before;
  }
}

const questions = JSON.parse(fs.readFileSync(0, "utf8"));
fs.writeSync(1, JSON.stringify(questions.map(answer)));
