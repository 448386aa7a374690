"""The mistakes that people make here, each as a small difference to the text of ``implementation.py``.

An entry holds an id, the exercise, a sentence ("Your output is exactly what you get when ..."), why it matters, where
it was seen (a public report, or "planted"), and one or more spellings: lists of (where, old text, new text), in which
None as old text stands for the beginning of the function.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    id: str
    exercise: int
    says: str
    why: str
    source: str
    spellings: tuple


CATALOGUE = {}


def mistake(id, exercise, says, why, source, *spellings):
    assert id not in CATALOGUE, id
    CATALOGUE[id] = Mistake(id, exercise, says, why, source, tuple(tuple(s) for s in spellings))


def candidates(exercise, code):
    """The (mistake, changes) pairs of an exercise that sit in the given code of the library."""
    return [(m, changes) for m in CATALOGUE.values() if m.exercise == exercise
            for changes in m.spellings if all(where in code for where, _, _ in changes)]


# ------------------------------------------------------------------------- exercise 1: scaled dot-product attention

SOFTMAX, ATTENTION = "softmax", "ScaledDotProductAttention.forward"
ATTENTION_BACK, SOFTMAX_BACK = "ScaledDotProductAttention.backward", "softmax_backward"

DIVIDE = (SOFTMAX, "e /= np.maximum(row_sum(e), 1)", "e /= row_sum(e)")
SOFTMAX_GRADIENT = "y * (dout - row_sum(dout * y))"
SCALE = "scores *= 1 / math.sqrt(Q.shape[-1])"
MASK = "np.copyto(scores, -np.inf, where=check_mask(mask, scores.shape))"
WEIGHTS = "A = self.attention_weights = softmax(scores)"

mistake("softmax_overflows", 1, "softmax does not take the largest score away before exp",
        "exp(1000) is infinite, and infinite divided by infinite is NaN. Taking the maximum away changes no share.",
        "planted", [(SOFTMAX, "np.exp(x - peak)", "np.exp(x)"), DIVIDE])
mistake("softmax_one_maximum", 1, "softmax takes the maximum of the whole array away from every row",
        "Where a row lies far below the largest one, all its exponentials become 0, and 0 divided by 0 is NaN: each "
        "row needs its own maximum (axis and keepdims).", "planted", [(SOFTMAX, "row_max(x)", "x.max()"), DIVIDE])
mistake("softmax_wrong_axis", 1, "softmax sums along the wrong axis",
        "The shares of one query over its keys must sum to 1: that is the axis asked for, by default the last.",
        "FudanNLP/fastNLP#254; zyy-2001/DisKT#6", [(SOFTMAX, None, "axis = 0")], [(SOFTMAX, None, "axis = -2")],
        [(SOFTMAX, "np.maximum(row_sum(e), 1)", "e.sum(axis=0, keepdims=True)")])
mistake("softmax_axis_ignored", 1, "softmax always works along the last axis, whatever axis it is asked for",
        "axis is an argument so that the same function serves every layout.", "planted", [(SOFTMAX, None, "axis = -1")])
mistake("softmax_over_everything", 1, "softmax divides by the sum over the whole array",
        "Every slice along axis is a distribution of its own: without axis and keepdims all of them share a single 1.",
        "planted", [(SOFTMAX, "row_max(x)", "x.max()"), (SOFTMAX, "np.maximum(row_sum(e), 1)", "e.sum()")])
mistake("softmax_not_divided", 1, "softmax returns exp(x - max) without dividing by the sum",
        "Only after the division do the shares sum to 1.", "planted",
        [(SOFTMAX, "e /= np.maximum(row_sum(e), 1)", "pass")])
mistake("softmax_without_exp", 1, "softmax divides x by its sum, without exp",
        "Scores may be negative; exp makes every share positive.", "planted",
        [(SOFTMAX, "np.exp(x - peak)", "x.copy()"), DIVIDE])

mistake("softmax_over_queries", 1, "attention applies softmax over the queries (axis -2) instead of the keys (axis -1)",
        "Each query shares out one unit of attention among the keys, so rows must sum to 1, not columns. A model "
        "trained like this looks perfect under teacher forcing and cannot write a word alone.",
        "FudanNLP/fastNLP#254; comment in jadore801120/attention-is-all-you-need-pytorch#19",
        [(ATTENTION, WEIGHTS, WEIGHTS.replace("(scores)", "(scores, axis=-2)"))],
        [(ATTENTION, WEIGHTS, WEIGHTS.replace("(scores)", "(scores, axis=1)"))])
mistake("double_softmax", 1, "softmax is applied twice",
        "A second softmax flattens the shares: between 0 and 1 there is little left to tell keys apart.",
        "ooples/AiDotNet#1208", [(ATTENTION, WEIGHTS, WEIGHTS.replace("(scores)", "(softmax(scores))"))])
mistake("no_scaling", 1, "the scores are not divided by sqrt(d_k)",
        "The dot product of two random vectors of width d_k has variance d_k. Unscaled, softmax turns into a hard "
        "choice and its gradient vanishes (3.2.1).",
        "chelsea0x3b/dfdx#171; delzac/cntkx#10", [(ATTENTION, SCALE, "pass")])
mistake("scale_d_k", 1, "the scores are divided by d_k instead of sqrt(d_k)",
        "The variance of the scores is d_k, so their size is its root. Divided by d_k they are too flat.",
        "FareedKhan-dev/train-llm-from-scratch PR 3",
        [(ATTENTION, SCALE, "scores /= Q.shape[-1]")])
mistake("scale_d_model", 1, "the scores are divided by sqrt(d_model), the width of all heads together",
        "Each head has its own dot products, of width d_k.", "lucidrains/vit-pytorch#65",
        [(ATTENTION, SCALE, "scores /= math.sqrt(Q.shape[1] * Q.shape[-1])")])
mistake("scale_length", 1, "the scores are divided by the root of a sequence's length",
        "What makes dot products large is the number of features in them, d_k, not the number of keys.", "planted",
        [(ATTENTION, SCALE, "scores /= math.sqrt(K.shape[-2])")],
        [(ATTENTION, SCALE, "scores /= math.sqrt(Q.shape[-2])")])
mistake("scale_d_v", 1, "the scores are divided by sqrt(d_v), the width of the values",
        "The scores are dot products of queries and keys; the values are not in them.", "planted",
        [(ATTENTION, SCALE, "scores /= math.sqrt(V.shape[-1])")])
mistake("scale_inverted", 1, "the scores are multiplied by sqrt(d_k)",
        "Scaling is there to make the scores smaller.", "esceptico/perceiver-io#9",
        [(ATTENTION, SCALE, "scores *= math.sqrt(Q.shape[-1])")])
mistake("scale_after_softmax", 1, "the weights, not the scores, are divided by sqrt(d_k)",
        "After softmax the scaling no longer softens anything: it only makes all weights smaller.", "planted",
        [(ATTENTION, SCALE, "pass"), (ATTENTION, WEIGHTS, f"{WEIGHTS} / math.sqrt(Q.shape[-1])")])
mistake("mask_ignored", 1, "the mask is not used",
        "What is hidden must have weight 0. A result of np.where that is not assigned is thrown away.",
        "pytorch/pytorch#117939; opendilab/DI-engine#333", [(ATTENTION, MASK, "pass")])
mistake("mask_inverted", 1, "the mask is read the wrong way round: True is kept and False hidden",
        "Here True means hidden. Libraries differ, and even one library has both.",
        "rasbt/LLMs-from-scratch#1061; NVIDIA/TransformerEngine#614",
        [(ATTENTION, MASK, MASK.replace("where=", "where=~"))],
        [(ATTENTION, MASK, MASK.replace("-np.inf", "-1e9").replace("where=", "where=~"))])
mistake("mask_added_as_number", 1, "the mask is added to the scores as 0 and 1",
        "A hidden key then gets a higher score. It needs minus infinity.", "pytorch/pytorch#109072",
        [(ATTENTION, MASK, "scores += mask")])
mistake("mask_makes_score_zero", 1, "hidden scores are set to 0 before softmax",
        "exp(0) is 1, so a score of 0 is an ordinary score. Only minus infinity gives weight 0.", "planted",
        [(ATTENTION, MASK, MASK.replace("-np.inf", "0"))])
mistake("mask_too_weak", 1, "hidden scores get a number that is not low enough to outweigh large scores",
        "-10 or -1e4 hides nothing once the scores themselves are that large. Minus infinity always does.", "planted",
        *([(ATTENTION, MASK, change)] for c in (1, 5, 10, 20, 50, 100, 1000, 10000, 100000)
          for change in (MASK.replace("-np.inf", f"-{c}.0"), f"scores += -{c}.0 * mask")))
mistake("mask_after_softmax", 1, "the mask is applied after softmax",
        "The hidden keys took their share before they were zeroed, so the rest no longer sums to 1; and through the "
        "sum the future still leaks.", "huggingface/pytorch-image-models#2236",
        [(ATTENTION, MASK, "pass"),
         (ATTENTION, WEIGHTS, "A = self.attention_weights = softmax(scores) * (1 if mask is None else ~mask)")])
mistake("hidden_row_uniform", 1, "a query with nothing to see gets ordinary weights instead of zeros",
        "With -1e9 in every place there is still something to share out: softmax looks at differences only. Such a "
        "query's weights and output are exactly 0.",
        "pytorch/pytorch#41508; lsdefine/attention-is-all-you-need-keras#16",
        [(ATTENTION, MASK, MASK.replace("-np.inf", "-1e9"))],
        [(ATTENTION, MASK, "scores = scores + np.where(mask, -1e9, 0)")],         # in float64, which keeps the scores
        *([(ATTENTION, MASK, f"scores += np.where(mask, -{c}, 0).astype(scores.dtype)")]
          for c in ("1e6", "1e7", "1e8", "1e9")))                                 # float32 keeps less and less of them
mistake("hidden_row_nan", 1, "a query with nothing to see gets NaN",
        "Its scores are all minus infinity: 0 divided by 0. One NaN then spreads to every gradient of the batch.",
        "pytorch/pytorch#103963; d2l-ai/d2l-en PR 2423",
        [(ATTENTION, WEIGHTS, "A = softmax(scores)\nA = self.attention_weights = A / (A.sum(-1, keepdims=True) > 0)")])
mistake("key_reshaped", 1, "the keys are reshaped to (B, h, d_k, S) instead of transposed",
        "reshape keeps the order of the numbers, so columns are no longer keys. Swap the last two axes.",
        "chelsea0x3b/dfdx#158",
        [(ATTENTION, "Q @ K.swapaxes(-1, -2)", "Q @ K.reshape(*K.shape[:2], K.shape[3], K.shape[2])")])
mistake("key_not_transposed", 1, "the scores are Q K, without transposing K",
        "A score is the dot product of a query row with a key row: Q K^T.", "planted",
        [(ATTENTION, "Q @ K.swapaxes(-1, -2)", "Q @ K")])
mistake("queries_and_keys_swapped", 1, "the scores are K Q^T: queries and keys have changed places",
        "Rows belong to queries. With swapped places each key asks and each query answers.", "planted",
        [(ATTENTION, "Q @ K.swapaxes(-1, -2)", "K @ Q.swapaxes(-1, -2)")])
mistake("values_transposed", 1, "the values are transposed before they are averaged",
        "The weights (T, S) meet values (S, d_v): one row of V for each key.", "planted",
        [(ATTENTION, "heads_product(A_dropped, V)", "A_dropped @ V.swapaxes(-1, -2)")])
mistake("weights_transposed", 1, "the weights are transposed before they meet the values",
        "Row t holds the shares of query t. Transposed, a query would collect what others gave to it.", "planted",
        [(ATTENTION, "heads_product(A_dropped, V)", "A_dropped.swapaxes(-1, -2) @ V")])
mistake("keys_for_values", 1, "the keys are averaged instead of the values",
        "K decides where to look, V is what is found there.", "planted",
        [(ATTENTION, "heads_product(A_dropped, V)", "A_dropped @ K")])
mistake("weights_after_dropout", 1, "attention_weights are stored after dropout",
        "Some of them are 0 and the rest too large: the rows no longer sum to 1, and heat maps show numbers above 1.",
        "harvardnlp/annotated-transformer#138; pytorch/pytorch#42929",
        [(ATTENTION, "A_dropped = self.dropout(A)", "A_dropped = self.attention_weights = self.dropout(A)")])
mistake("weights_are_scores", 1, "attention_weights hold the scores from before softmax",
        "Weights are the shares that softmax makes of the scores.", "planted",
        [(ATTENTION, WEIGHTS, f"self.attention_weights = scores\n{WEIGHTS.replace('self.attention_weights = ', '')}")])
mistake("caller_array_changed", 1, "an array of the caller is changed in place (Q *= ..., K /= ...)",
        "The same array may be in use elsewhere, and here is query, key and value at once. Make a new one.",
        "planted", [(ATTENTION, SCALE, "Q *= 1 / math.sqrt(Q.shape[-1])\nscores = Q @ K.swapaxes(-1, -2)")])

mistake("softmax_backward_diagonal", 1, "softmax backward uses the diagonal of the Jacobian only",
        "Raising one score lowers every other share: dscores = A * (dA - sum(dA * A)).", "planted",
        [(SOFTMAX_BACK, SOFTMAX_GRADIENT, "y * (1 - y) * dout")],
        [(SOFTMAX_BACK, SOFTMAX_GRADIENT, "y * dout")])
mistake("softmax_backward_no_weight", 1, "softmax backward forgets to multiply by the weights",
        "dscores = A * (dA - sum(dA * A)): a key that is hardly seen has hardly a gradient.", "planted",
        [(SOFTMAX_BACK, SOFTMAX_GRADIENT,
          "dout - row_sum(dout * y)")])
mistake("softmax_backward_skipped", 1, "backward goes past softmax as if it were the identity",
        "The gradient of the weights is not yet the gradient of the scores.", "planted",
        [(SOFTMAX_BACK, SOFTMAX_GRADIENT, "1 * dout")])
mistake("dk_without_transpose", 1, "dK is dscores Q, without transposing dscores",
        "Row s of dK collects from every query that looked at key s: dscores^T Q.", "planted",
        [(ATTENTION_BACK, "heads_product(dscores.swapaxes(-1, -2), Q)", "dscores @ Q")])
mistake("scale_missing_in_backward", 1, "backward leaves the factor 1 / sqrt(d_k) out",
        "forward scaled the scores, so their gradient is scaled by the same number, in dQ and in dK.", "planted",
        [(ATTENTION_BACK, SCALE.replace("scores", "dscores"), "pass")],
        [(ATTENTION_BACK, "heads_product(dscores, K)", "heads_product(dscores, K) * math.sqrt(Q.shape[-1])")],
        [(ATTENTION_BACK, "heads_product(dscores.swapaxes(-1, -2), Q)",
          "heads_product(dscores.swapaxes(-1, -2), Q) * math.sqrt(Q.shape[-1])")])
mistake("dv_without_transpose", 1, "dV is A dout, without transposing the weights",
        "Row s of dV collects from every query, by the share it gave to key s: A^T dout.", "planted",
        [(ATTENTION_BACK, "heads_product(A_dropped.swapaxes(-1, -2), dout)", "A_dropped @ dout")])
mistake("dq_dk_swapped", 1, "dQ and dK are returned in the wrong order",
        "backward returns the gradients in the order of forward's arguments.", "planted",
        [(ATTENTION_BACK, "return heads_product(dscores, K), heads_product(dscores.swapaxes(-1, -2), Q), dV",
          "return heads_product(dscores.swapaxes(-1, -2), Q), heads_product(dscores, K), dV")])

# ------------------------------------------------------------------------------- exercise 2: multi-head attention

MHA = "MultiHeadAttention"
SPLIT, MERGE, PROJECT, ATTEND, MHA_FORWARD, MHA_BACK = (f"{MHA}.{method}" for method in (
    "split_heads", "merge_heads", "project", "attend", "forward", "backward"))
SPLIT_LINE = "x.reshape(*x.shape[:2], self.n_heads, self.d_k).swapaxes(1, 2)"
MERGE_LINE = "x.swapaxes(1, 2).reshape(B, T, h * d_k)"
KEYS, VALUES = "self.split_heads(linear(key, self.W_K))", "self.split_heads(linear(value, self.W_V))"
QUERIES = "self.split_heads(linear(query, self.W_Q))"
OUT = "linear(context, self.W_O)"

mistake("split_without_transpose", 2, "split_heads reshapes straight to (B, h, T, d_k), without a transpose",
        "reshape never moves a number: head 0 gets the first positions with all their features, instead of the first "
        "d_k features of every position. Copying can still be learned like this, with the future leaking between "
        "heads.",
        "jsbaan/transformer-from-scratch PR 6; reczoo/FuxiCTR#30; 649453932/Chinese-Text-Classification-Pytorch#10",
        [(SPLIT, SPLIT_LINE, "x.reshape(x.shape[0], self.n_heads, x.shape[1], self.d_k)")])
mistake("merge_without_transpose", 2, "merge_heads reshapes straight to (B, T, d_model), without a transpose",
        "In memory the heads still come before the positions, so one output row mixes several positions of one head.",
        "jsbaan/transformer-from-scratch#4; ajhalthor/Transformer-Neural-Network#8",
        [(MERGE, MERGE_LINE, "x.reshape(B, T, h * d_k)")])
mistake("heads_interleaved", 2, "the heads are interleaved: head i takes features i, i + h, i + 2h, ...",
        "A legal convention elsewhere, but weights of this library put head i in columns i d_k to (i + 1) d_k: the "
        "paper concatenates whole heads.", "planted: a legal convention, named rather than failed without a word",
        [(SPLIT, SPLIT_LINE, "x.reshape(*x.shape[:2], self.d_k, self.n_heads).transpose(0, 3, 1, 2)")],
        [(MERGE, MERGE_LINE, "x.transpose(0, 2, 3, 1).reshape(B, T, h * d_k)")])
mistake("heads_after_positions", 2, "the heads stay behind the positions: (B, T, h, d_k)",
        "Attention works on the last two axes, so those must be (T, d_k), with the heads in front like a second batch.",
        "planted", [(SPLIT, SPLIT_LINE, SPLIT_LINE.replace(".swapaxes(1, 2)", ""))])
mistake("split_axes_confused", 2, "split_heads swaps features and positions: the last two axes come out as (d_k, T) "
        "in disguise",
        "Cut the last axis into (h, d_k) first, then move h in front of T. Any other order of axes mixes positions.",
        "planted", [(SPLIT, SPLIT_LINE, "x.swapaxes(1, 2).reshape(x.shape[0], self.n_heads, x.shape[1], self.d_k)")])
mistake("merge_axes_confused", 2, "merge_heads puts the features of a head in front of the heads",
        "Undo split_heads step by step: move the heads behind the positions, then let (h, d_k) flow into d_model.",
        "planted", [(MERGE, MERGE_LINE, "x.transpose(0, 3, 1, 2).reshape(B, T, h * d_k)")])
mistake("heads_averaged", 2, "merge_heads averages or adds the heads instead of concatenating them",
        "The heads stand side by side; W_O mixes them.", "planted",
        [(MERGE, MERGE_LINE, "np.tile(x.mean(axis=1), (1, 1, h))")], [(MERGE, MERGE_LINE, "x.mean(axis=1)")],
        [(MERGE, MERGE_LINE, "x.sum(axis=1)")])
mistake("no_output_projection", 2, "the output projection W_O is missing",
        "Without it the heads never meet: feature 0 of the output comes from head 0 alone.", "planted",
        [(ATTEND, OUT, "context")])
mistake("output_projection_transposed", 2, "W_O is transposed",
        "Weights are (d_in, d_out) here: context W_O.", "planted", [(ATTEND, OUT, "linear(context, self.W_O.T)")])
mistake("projections_transposed", 2, "the projections are transposed, x W^T",
        "Weights are (d_in, d_out) here: x W. Libraries that store (d_out, d_in) need the transpose.", "planted",
        [(PROJECT, KEYS, KEYS.replace("W_K", "W_K.T")), (PROJECT, VALUES, VALUES.replace("W_V", "W_V.T")),
         (ATTEND, QUERIES, QUERIES.replace("W_Q", "W_Q.T"))],
        [(PROJECT, KEYS, KEYS.replace("W_K", "W_K.T")), (PROJECT, VALUES, VALUES.replace("W_V", "W_V.T")),
         (ATTEND, QUERIES, QUERIES.replace("W_Q", "W_Q.T")), (ATTEND, OUT, OUT.replace("W_O", "W_O.T"))])
mistake("key_with_w_q", 2, "the keys are projected by W_Q",
        "Asking and being asked are two roles; with one matrix for both, a position finds above all itself.", "planted",
        [(PROJECT, KEYS, KEYS.replace("W_K", "W_Q"))])
mistake("query_with_w_k", 2, "the queries are projected by W_K",
        "Asking and being asked are two roles with a matrix each.", "planted",
        [(ATTEND, QUERIES, QUERIES.replace("W_Q", "W_K"))])
mistake("one_projection_for_k_and_v", 2, "keys and values share one projection",
        "What a position is found by (W_K) and what it then hands over (W_V) are learned apart.",
        "MarcoMeter/episodic-transformer-memory-ppo#22",
        [(PROJECT, VALUES, VALUES.replace("W_V", "W_K"))], [(PROJECT, KEYS, KEYS.replace("W_K", "W_V"))])
mistake("one_projection_for_all", 2, "query, key and value share one projection",
        "Three roles, three matrices.", "MarcoMeter/episodic-transformer-memory-ppo#22",
        *([(PROJECT, KEYS, KEYS.replace("W_K", W)), (PROJECT, VALUES, VALUES.replace("W_V", W)),
           (ATTEND, QUERIES, QUERIES.replace("W_Q", W))] for W in ("W_Q", "W_K", "W_V")))
mistake("projections_for_k_and_v_swapped", 2, "W_K and W_V have changed places",
        "Keys are key W_K, values are value W_V.", "planted",
        [(PROJECT, KEYS, KEYS.replace("W_K", "W_V")), (PROJECT, VALUES, VALUES.replace("W_V", "W_K"))])
mistake("value_not_projected", 2, "the values are not projected by W_V",
        "Each head is to choose what it hands over.", "planted", [(PROJECT, VALUES, "self.split_heads(value)")])
mistake("query_for_key", 2, "keys and values are made from the query: the layer always attends to its own input",
        "In cross-attention query and key come from two sequences.", "planted",
        [(MHA_FORWARD, "self.project(key, value)", "self.project(query, query)")])
mistake("value_from_key", 2, "the values are made from key, and the argument value is not used",
        "The layer takes three arguments because they may be three things.", "planted",
        [(MHA_FORWARD, "self.project(key, value)", "self.project(key, key)")])
mistake("keys_and_values_swapped", 2, "keys and values reach the attention in the wrong order",
        "attention(Q, K, V): K decides where to look, V is what is found.", "planted",
        [(ATTEND, "self.attention(Q, K, V, mask)", "self.attention(Q, V, K, mask)")])
mistake("mask_not_passed_on", 2, "the mask never reaches the attention",
        "A default of None hides the omission.", "pytorch/pytorch#109072",
        [(ATTEND, "self.attention(Q, K, V, mask)", "self.attention(Q, K, V)")])
mistake("scaled_twice", 2, "the queries are divided by sqrt(d_k) although the attention does that too",
        "Twice the root is a division by d_k.", "planted",
        [(ATTEND, QUERIES, f"{QUERIES} / math.sqrt(self.d_k)")])
mistake("one_single_head", 2, "attention runs once over the full width, not once for each head",
        "split_heads has to come before the attention, merge_heads after it.", "planted",
        [(ATTEND, "self.merge_heads(self.attention(Q, K, V, mask))",
          "self.attention(*(self.merge_heads(x)[:, None] for x in (Q, K, V)), mask)[:, 0]")])
mistake("query_added_to_output", 2, "the query is added to the output",
        "The residual path belongs to Add & Norm, outside this layer.", "planted",
        [(ATTEND, "return linear(context, self.W_O)", "return query + linear(context, self.W_O)")])

mistake("mha_dout_past_w_o", 2, "backward hands dout to the heads without taking it through W_O",
        "context W_O was the last line of forward, so dout W_O^T is the first of backward.", "planted",
        [(MHA_BACK, "dcontext = linear_backward(dout, context, self.W_O, self.dW_O)",
          "linear_backward(dout, context, self.W_O, self.dW_O)\ndcontext = dout")])
mistake("mha_w_o_not_transposed", 2, "backward multiplies by W_O instead of its transpose",
        "For y = x W the gradient is dx = dy W^T.", "planted",
        [(MHA_BACK, "dcontext = linear_backward(dout, context, self.W_O, self.dW_O)",
          "linear_backward(dout, context, self.W_O, self.dW_O)\ndcontext = linear(dout, self.W_O)")])
mistake("mha_inputs_not_transposed", 2, "dquery, dkey and dvalue are made with W instead of W^T",
        "For y = x W the gradient is dx = dy W^T.", "planted",
        [(MHA_BACK, f"linear_backward(self.merge_heads(d{A}), {x}, self.W_{A}, self.dW_{A})",
          f"(linear_backward(self.merge_heads(d{A}), {x}, self.W_{A}, self.dW_{A}), "
          f"linear(self.merge_heads(d{A}), self.W_{A}))[1]") for A, x in (("Q", "query"), ("K", "key"),
          ("V", "value"))])
mistake("mha_gradient_not_projected", 2, "dquery, dkey and dvalue are returned before they go through the projections",
        "dQ is the gradient of query W_Q; query itself gets dQ W_Q^T.", "planted",
        [(MHA_BACK, f"linear_backward(self.merge_heads(d{A}), {x}, self.W_{A}, self.dW_{A})",
          f"(linear_backward(self.merge_heads(d{A}), {x}, self.W_{A}, self.dW_{A}), self.merge_heads(d{A}))[1]")
         for A, x in (("Q", "query"), ("K", "key"), ("V", "value"))])
mistake("mha_gradients_overwritten", 2, "gradients of weights are set (=) instead of added (+=)",
        "A weight used twice collects two gradients; only zero_grad clears.", "TrenTorch/TrenTorch PR 189",
        [(MHA_BACK, None, "self.zero_grad()")])
mistake("mha_dw_transposed", 2, "the gradients of the weights are transposed, dy^T x",
        "dW has the shape and the order of W: x^T dy.", "planted",
        [(MHA_BACK, "return (linear_backward(self.merge_heads(dQ), query, self.W_Q, self.dW_Q),",
          "return (linear_backward(self.merge_heads(dQ), query, self.W_Q, self.dW_Q.T),"),
         (MHA_BACK, "self.dW_K)", "self.dW_K.T)"), (MHA_BACK, "self.dW_V)", "self.dW_V.T)"),
         (MHA_BACK, "self.dW_O)", "self.dW_O.T)")],
        [(MHA_BACK, "self.dW_O)", "self.dW_O.T)")])
mistake("mha_backward_merge_forgotten", 2, "backward reshapes the heads' gradients without the transpose",
        "The gradient of a rearrangement is the rearrangement backwards: merge_heads.", "planted",
        [(MHA_BACK, f"self.merge_heads(d{A})", f"d{A}.reshape({x}.shape)")
         for A, x in (("Q", "query"), ("K", "key"), ("V", "value"))])
mistake("mha_dw_o_from_query", 2, "dW_O is made from the query instead of the merged heads",
        "W_O was multiplied with the merged heads, so these stand in its gradient.", "planted",
        [(MHA_BACK, "dcontext = linear_backward(dout, context, self.W_O, self.dW_O)",
          "dcontext = linear_backward(dout, query, self.W_O, self.dW_O)")])

# --------------------------------------------------------------- exercise 3: embeddings and positional encoding

TABLE, ADD_POSITIONS = "PositionalEncoding.__init__", "PositionalEncoding.forward"
EMBED_INIT, EMBED, EMBED_BACK = "TokenEmbedding.__init__", "TokenEmbedding.forward", "TokenEmbedding.backward"
POSITIONS_BACK = "PositionalEncoding.backward"
ANGLES = "np.arange(max_len)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)"
SIN, COS = "self.pe[:, 0::2] = np.sin(angles)", "self.pe[:, 1::2] = np.cos(angles[:, :d_model // 2])"
SCATTER = "np.add.at(self.dembedding.reshape(-1), places.reshape(-1), (dout * self.scale).reshape(-1))"
SUMMED = "x + self.pe[start:end]"

mistake("sin_cos_halves", 3, "all sines come first and all cosines after them",
        "The paper alternates: sine in even columns, cosine in odd ones. Halves are another legal layout, with other "
        "numbers.",
        "tensorflow/text#1122; tensorflow/tensorflow#37191; Open-Deep-ML/DML-OpenProblem#495",
        [(TABLE, SIN, "half = angles.shape[1]\nself.pe[:, :half] = np.sin(angles)"),
         (TABLE, COS, "self.pe[:, half:] = np.cos(angles[:, :d_model // 2])")])
mistake("sin_cos_swapped", 3, "cosines stand in the even columns and sines in the odd ones",
        "PE(pos, 2i) is the sine. Position 0 begins 0, 1, 0, 1.", "planted",
        [(TABLE, SIN, SIN.replace("sin", "cos")), (TABLE, COS, COS.replace("cos", "sin"))])
mistake("all_sines", 3, "the odd columns hold sines too",
        "Sine and cosine of one angle together make a shift by k positions a rotation.", "planted",
        [(TABLE, COS, COS.replace("cos", "sin"))])
mistake("exponent_doubled", 3, "the exponent is doubled: 4i / d_model in column 2i",
        "A loop over 0, 2, 4, ... already counts 2i. Doubled again, the waves grow too fast.",
        "SamLynnEvans/Transformer#25",
        [(TABLE, "(np.arange(0, d_model, 2) / d_model)", "(2 * np.arange(0, d_model, 2) / d_model)")])
mistake("exponent_halved", 3, "the exponent is i / d_model instead of 2i / d_model",
        "The 2 in the exponent lets the last wave reach nearly 10000 times 2 pi.", "planted",
        [(TABLE, "(np.arange(0, d_model, 2) / d_model)", "(np.arange(0, d_model, 2) / 2 / d_model)")])
mistake("exponent_positive", 3, "the angle is multiplied by 10000^(2i / d_model) instead of divided",
        "The waves should become longer from column to column; these become shorter than one position.", "planted",
        [(TABLE, "np.arange(max_len)[:, None] / 10000", "np.arange(max_len)[:, None] * 10000")])
mistake("cosine_own_index", 3, "each column uses its own index as exponent, so a cosine has another angle than its "
        "sine",
        "Columns 2i and 2i + 1 share the exponent 2i / d_model.", "SamLynnEvans/Transformer#25; LLMForEverybody#106",
        *([(TABLE, COS, f"own = {ANGLES.replace('np.arange(0, d_model, 2)', index)}\nself.pe[:, 1::2] = np.cos(own)")]
          for index in ("np.arange(1, d_model, 2)", "(np.arange(1, d_model, 2) + 1)")))
mistake("exponent_to_the_end", 3, "the exponents run from 0 to 1 inclusive, divided by the number of pairs less one",
        "In the paper the last exponent is (d_model - 2) / d_model.", "the timing signal of tensor2tensor",
        [(TABLE, "(np.arange(0, d_model, 2) / d_model)",
          "(np.arange(0, d_model, 2) / max(2 * (-(-d_model // 2) - 1), 1))")])
mistake("wrong_base", 3, "the base is not 10000",
        "The base sets the longest wave; the paper takes 10000.", "planted",
        *([(TABLE, "/ 10000 **", f"/ {base} **")] for base in ("1000", "100000", "math.e")))
mistake("degrees", 3, "the angles are taken as degrees",
        "np.sin counts in radians, and so does the paper.", "planted",
        [(TABLE, SIN, SIN.replace("angles", "np.radians(angles)")),
         (TABLE, COS, COS.replace("angles[:, :d_model // 2]", "np.radians(angles[:, :d_model // 2])"))],
        [(TABLE, SIN, SIN.replace("angles", "np.degrees(angles)")),
         (TABLE, COS, COS.replace("angles[:, :d_model // 2]", "np.degrees(angles[:, :d_model // 2])"))])
mistake("positions_from_one", 3, "positions count from 1",
        "The first position is 0: its row is 0, 1, 0, 1, ...", "stanford-cs336/assignment1-basics#4",
        [(TABLE, "np.arange(max_len)[:, None]", "np.arange(1, max_len + 1)[:, None]")])
mistake("odd_width_cut", 3, "with an odd width the last column stays 0",
        "An odd width has one sine more than cosines: the last column is a sine.", "codertimo/BERT-pytorch#78",
        [(TABLE, SIN, "self.pe[:] = 0\nself.pe[:, 0:d_model - 1:2] = np.sin(angles[:, :d_model // 2])")])
mistake("odd_width_does_not_fit", 3, "an odd width gets as many cosines as sines",
        "An odd width has one odd column fewer: the last angle has a sine and no cosine.",
        "codertimo/BERT-pytorch#78", [(TABLE, COS, COS.replace("angles[:, :d_model // 2]", "angles"))],
        [(TABLE, "(np.arange(0, d_model, 2) / d_model)", "(np.arange(d_model // 2) * 2 / d_model)")])
mistake("angles_of_whole_numbers", 3, "the angles are divided as whole numbers",
        "With // the angles become 0, 1, 2, ..., and the slow waves stand still.", "OpenNMT/OpenNMT-py PR 884",
        [(TABLE, "[:, None] / 10000", "[:, None] // 10000")])
mistake("embedding_not_scaled", 3, "the embeddings are not multiplied by sqrt(d_model)",
        "The rows are drawn small. Unscaled, the sines and cosines of the position drown the word (3.4).",
        "SamLynnEvans/Transformer#10; ml-explore/mlx-examples PR 591",
        [(EMBED, "self.embedding[tokens] * self.scale", "self.embedding[tokens]")])
mistake("embedding_divided", 3, "the embeddings are divided by sqrt(d_model)",
        "3.4 multiplies. It is attention that divides, by sqrt(d_k).", "pytorch/tutorials#2849",
        [(EMBED, "* self.scale", "/ self.scale")])
mistake("embedding_times_d_model", 3, "the embeddings are multiplied by d_model, without the root",
        "The rows have entries of about 1 / sqrt(d_model); the root brings them to about 1.", "planted",
        [(EMBED, "* self.scale", "* self.scale ** 2")])
mistake("embedding_scaled_by_vocabulary", 3, "the embeddings are multiplied by the root of the vocabulary's size",
        "What counts is the width of a row, d_model.", "planted",
        [(EMBED, "* self.scale", "* math.sqrt(len(self.embedding))")])
mistake("positions_concatenated", 3, "the positions are concatenated to the embeddings instead of added",
        "The width has to stay d_model.", "ml-explore/mlx#321",
        [(ADD_POSITIONS, SUMMED, "np.concatenate([x, np.broadcast_to(self.pe[start:end], x.shape)], axis=-1)")])
mistake("positions_on_batch_axis", 3, "the rows of the table are added along the batch axis",
        "All sequences get the same rows, each position its own: pe[:T] broadcasts over the batch.", "planted",
        [(ADD_POSITIONS, "end = start + x.shape[1]", "end = start + x.shape[0]"),
         (ADD_POSITIONS, SUMMED, "x + self.pe[start:end, None]")])
mistake("positions_not_added", 3, "the positions are not added",
        "Without them attention cannot tell first from last.", "planted", [(ADD_POSITIONS, SUMMED, "x + 0")])
mistake("same_position_everywhere", 3, "every position gets the row of one position",
        "Position t gets row t.", "planted",
        [(ADD_POSITIONS, SUMMED, "x + self.pe[start]")], [(ADD_POSITIONS, SUMMED, "x + self.pe[end - 1]")])
mistake("positions_multiplied", 3, "the positions are multiplied with the embeddings",
        "3.5 adds them: a factor of 0 would delete a word.", "planted",
        [(ADD_POSITIONS, SUMMED, "x * self.pe[start:end]")])
mistake("start_ignored", 3, "start is not used: every call begins at position 0",
        "While decoding, the token that is written fifth arrives alone and is still at position 4.", "planted",
        [(ADD_POSITIONS, SUMMED, "x + self.pe[:x.shape[1]]")])
mistake("end_not_checked", 3, "a sequence that passes the end of the table raises no ValueError",
        "A slice that passes the end is short, and where one row is left, NumPy adds it to every position without a "
        "word. Compare start + T with the length of the table.", "planted",
        [(ADD_POSITIONS, "if end > len(self.pe)", "if False")])
mistake("scaled_in_positions_too", 3, "x is multiplied by sqrt(d_model) a second time before the positions are added",
        "TokenEmbedding has done that.", "harvardnlp/annotated-transformer#60",
        [(ADD_POSITIONS, SUMMED, "x * math.sqrt(x.shape[-1]) + self.pe[start:end]")])
mistake("first_row_skipped", 3, "forward begins at row 1 of the table",
        "The first token stands at position 0.", "planted", [(ADD_POSITIONS, SUMMED, "x + self.pe[start + 1:end + 1]")])
mistake("no_dropout_on_the_sum", 3, "the sum does not go through dropout",
        "5.4: dropout acts on the sums of the embeddings and the positional encodings.", "planted",
        [(ADD_POSITIONS, "return self.dropout(", "return (")])
mistake("dropout_before_the_sum", 3, "dropout acts on x or on the table, not on their sum",
        "5.4: dropout acts on the sums of the embeddings and the positional encodings.", "planted",
        [(ADD_POSITIONS, "self.dropout(x ", "(self.dropout(x) ")])

mistake("repeated_tokens_lost", 3, "a token that stands at several places keeps the gradient of one of them",
        "dembedding[tokens] += ... reads each row once before it adds. np.add.at adds every time.",
        "HIPS/autograd#39; numpy/numpy#16790",
        [(EMBED_BACK, SCATTER, "self.dembedding[tokens] += dout * self.scale")])
mistake("repeated_tokens_averaged", 3, "the gradients of a repeated token are averaged",
        "A gradient is a sum: a word seen three times has three reasons to move.", "planted",
        [(EMBED_BACK, "* self.scale",
          "* self.scale / (tokens[..., None] == tokens.reshape(-1)).sum(-1, keepdims=True)")])
mistake("embedding_gradient_not_scaled", 3, "backward leaves the factor sqrt(d_model) out",
        "forward multiplied by it, so the gradient is multiplied by it.", "harvardnlp/annotated-transformer#121",
        [(EMBED_BACK, " * self.scale", "")], [(EMBED_BACK, "* self.scale", "/ self.scale")])
mistake("embedding_gradient_overwritten", 3, "dembedding is set (=) instead of added to (+=)",
        "Gradients add up until zero_grad.", "planted",
        [(EMBED_BACK, None, "self.dembedding[...] = 0")])
mistake("dropout_missing_in_backward", 3, "the gradient does not go back through dropout",
        "What forward hid has no gradient, and what it kept was scaled.", "ddbourgin/numpy-ml#94",
        [(POSITIONS_BACK, "self.dropout.backward(dout)", "dout")])

# -------------------------------------------------------------------------------- exercise 4: the encoder block

NORM, NORM_BACK, ADD_NORM, ADD_NORM_BACK = ("LayerNorm.forward", "LayerNorm.backward", "AddNorm.forward",
                                            "AddNorm.backward")
FFN, FFN_BACK, ENCODER, ENCODER_BACK = ("FeedForward.forward", "FeedForward.backward", "EncoderBlock.forward",
                                        "EncoderBlock.backward")
MEAN, VARIANCE = "row_mean(x)", "row_mean_of_product(centred, centred)"
ROOT = f"np.sqrt({VARIANCE} + self.eps)"
MEAN_PATH, VARIANCE_PATH = "- row_mean(dx_hat)", "- x_hat * row_mean_of_product(dx_hat, x_hat)"
RELU = "np.maximum(hidden, np.zeros_like(self.b1), out=hidden)"
LAYER_1, LAYER_2 = "linear(x, self.W1, self.b1)", "linear(hidden, self.W2, self.b2)"
FF_RESIDUAL = ("dx = dx + self.feed_forward.backward(dsublayer)", "dx = self.feed_forward.backward(dsublayer)")
FIRST, SECOND = "x = self.norm1(x, self.self_attention(x, x, x, mask))", "return self.norm2(x, self.feed_forward(x))"
POST = "super().forward(x + self.dropout(sublayer_output))"

mistake("eps_outside_root", 4, "eps is added outside the root",
        "For tiny variances the root of eps, 0.003, and eps itself, 0.00001, are far apart.",
        "harvardnlp/annotated-transformer#122; codertimo/BERT-pytorch#30",
        [(NORM, ROOT, f"(np.sqrt({VARIANCE}) + self.eps)")])
mistake("eps_missing", 4, "eps is missing",
        "A constant vector would be divided by 0.", "planted", [(NORM, " + self.eps", "")])
mistake("variance_n_minus_1", 4, "the variance divides by d_model - 1",
        "Layer norm describes these features, it estimates nothing: divide by d_model (np.var does).",
        "hyunwoongko/transformer#7; hkproj/pytorch-transformer PR 31",
        [(NORM, VARIANCE, "row_sum(centred * centred) / (x.shape[-1] - 1)")])
mistake("norm_over_wrong_axis", 4, "layer norm takes mean and variance over the wrong axis",
        "Each position is normalised over its own features, the last axis; other positions and sequences do not "
        "matter.",
        "planted",
        *([(NORM, MEAN, f"x.mean({axis}, keepdims=True)"),
            (NORM, VARIANCE, f"(centred ** 2).mean({axis}, keepdims=True)")]
          for axis in ("axis=1", "axis=0", "axis=(0, 1)")))
mistake("norm_over_everything", 4, "layer norm takes one mean and one variance over more than the last axis",
        "Each position is normalised on its own.", "planted",
        *([(NORM, MEAN, f"x.mean({axis}, keepdims=True)"),
            (NORM, VARIANCE, f"(centred ** 2).mean({axis}, keepdims=True)")]
          for axis in ("axis=(-2, -1)", "axis=None")))
mistake("norm_changes_its_input", 4, "layer norm changes x in place (x -= ...)",
        "The caller still needs x, for the residual path. Make a new array.", "planted",
        [(NORM, f"centred = x - {MEAN}", f"x -= {MEAN}\ncentred = x")])
mistake("gamma_missing", 4, "gamma is missing",
        "The learned scale lets a layer undo the norm where that helps.", "planted",
        [(NORM, "self.gamma * x_hat + self.beta", "x_hat + self.beta")])
mistake("beta_missing", 4, "beta is missing",
        "The learned shift stands beside the learned scale.", "planted",
        [(NORM, "self.gamma * x_hat + self.beta", "self.gamma * x_hat")])
mistake("gamma_and_beta_missing", 4, "gamma and beta are missing",
        "Fresh from the constructor they are 1 and 0, and the omission cannot be seen; trained, they are not.",
        "planted",
        [(NORM, "self.gamma * x_hat + self.beta", "x_hat")])
mistake("gamma_and_beta_swapped", 4, "gamma and beta have changed places",
        "gamma scales, beta shifts.", "planted",
        [(NORM, "self.gamma * x_hat + self.beta", "self.beta * x_hat + self.gamma")])
mistake("divided_by_variance", 4, "layer norm divides by the variance instead of its root",
        "After the division by the root the variance is 1.", "131250208/TPlinker-joint-extraction#37",
        [(NORM, ROOT, f"({VARIANCE} + self.eps)")])
mistake("mean_not_subtracted", 4, "the mean is not taken away",
        "That is another layer (RMS norm, when the variance leaves it out too).", "planted",
        [(NORM, "centred * rstd", "x * rstd")], [(NORM, f"x - {MEAN}", "x")])
mistake("norm_is_identity", 4, "layer norm returns x as it is",
        "Sums of many layers would grow from block to block.", "planted", [(NORM, None, "return x")])
mistake("variance_not_divided", 4, "layer norm centres x and does not divide by its spread",
        "Half of the norm: sums of many layers would still grow.", "planted", [(NORM, ROOT, "1")])
mistake("norm_without_residual", 4, "the residual is missing: only the sublayer's output is normalised",
        "x + Sublayer(x): the path round the sublayer lets gradients reach the first block.", "planted",
        [(ADD_NORM, "x + self.dropout(sublayer_output)", "self.dropout(sublayer_output)")])
mistake("norm_before_sum", 4, "the sublayer's output is normalised before x is added",
        "LayerNorm(x + Sublayer(x)): the norm takes the sum.", "harvardnlp/annotated-transformer#1",
        [(ADD_NORM, POST, "x + super().forward(self.dropout(sublayer_output))")])
mistake("x_normed_before_sum", 4, "x is normalised before the sublayer's output is added",
        "LayerNorm(x + Sublayer(x)): the norm takes the sum.", "planted",
        [(ADD_NORM, POST, "super().forward(x) + self.dropout(sublayer_output)")])
mistake("add_without_norm", 4, "the sum is not normalised",
        "Add & Norm: the sum of x and the sublayer's output goes through layer norm.", "planted",
        [(ADD_NORM, POST, "x + self.dropout(sublayer_output)")])
mistake("no_dropout_in_add_norm", 4, "Add & Norm applies no dropout",
        "5.4: dropout acts on the output of each sublayer, before it is added.", "planted",
        [(ADD_NORM, "self.dropout(sublayer_output)", "sublayer_output")])
mistake("dropout_in_wrong_place", 4, "dropout acts on the sum, on x or on the result of the norm",
        "5.4: on the sublayer's output, before it is added. On the sum it would cut the residual path.", "planted",
        [(ADD_NORM, "x + self.dropout(sublayer_output)", "self.dropout(x + sublayer_output)")],
        [(ADD_NORM, "x + self.dropout(sublayer_output)", "self.dropout(x) + sublayer_output")],
        [(ADD_NORM, POST, "self.dropout(super().forward(x + sublayer_output))")])
mistake("relu_missing", 4, "the ReLU is missing",
        "Without it, two linear layers are one.", "planted", [(FFN, RELU, "pass")])
mistake("relu_after_second", 4, "the ReLU comes after the second layer",
        "max(0, x W1 + b1) W2 + b2: it stands between the two. After them it would forbid negative outputs.", "planted",
        [(FFN, RELU, "pass"), (FFN, LAYER_2, f"np.maximum({LAYER_2}, 0)")])
mistake("relu_after_both", 4, "there is a ReLU after the second layer too",
        "The sublayer's output is added to x: it must be able to be negative.", "planted",
        [(FFN, LAYER_2, f"np.maximum({LAYER_2}, 0)")])
mistake("another_activation", 4, "the activation is not a ReLU",
        "3.3 takes max(0, x). Absolute value, sigmoid, tanh and GELU are other choices.", "planted",
        *([(FFN, RELU, f"hidden = {f}")]
          for f in ("np.abs(hidden)", "1 / (1 + np.exp(-hidden))", "np.tanh(hidden)", "-np.minimum(hidden, 0)",
                    "np.where(hidden > 0, hidden, 0.01 * hidden)", "hidden / (1 + np.exp(-hidden))",
                    "0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden ** 3)))",
                    "0.5 * hidden * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))")))
mistake("first_bias_missing", 4, "b1 is missing", "max(0, x W1 + b1): it decides where each unit begins to act.",
        "planted",
        [(FFN, LAYER_1, "linear(x, self.W1)")])
mistake("second_bias_missing", 4, "b2 is missing", "max(0, x W1 + b1) W2 + b2.", "planted",
        [(FFN, LAYER_2, "linear(hidden, self.W2)")])
mistake("biases_missing", 4, "both biases are missing", "max(0, x W1 + b1) W2 + b2.", "planted",
        [(FFN, LAYER_1, "linear(x, self.W1)"),
         (FFN, LAYER_2, "linear(hidden, self.W2)")])
mistake("bias_after_relu", 4, "b1 is added after the ReLU",
        "The bias moves the point at which a unit begins to act, so it belongs inside max(0, ...).", "planted",
        [(FFN, LAYER_1, "linear(x, self.W1)"),
         (FFN, RELU, f"{RELU}\nhidden += self.b1")])
mistake("residual_in_feed_forward", 4, "the feed-forward layer adds x to its output",
        "The residual path belongs to Add & Norm, outside.", "planted",
        [(FFN, f"return {LAYER_2}", f"return x + {LAYER_2}")])
PRE_NORM = ("h = LayerNorm.forward(self.norm1, x)\nx = x + self.self_attention(h, h, h, mask)",
            "return x + self.feed_forward(LayerNorm.forward(self.norm2, x))")
mistake("pre_norm", 4, "the norm comes before each sublayer (pre-norm)",
        "The paper norms after the sum. Pre-norm came later; it trains without warm-up and needs a last norm.",
        "harvardnlp/annotated-transformer#1; pytorch/pytorch#50086",
        [(ENCODER, FIRST, PRE_NORM[0]), (ENCODER, SECOND, PRE_NORM[1])])
mistake("residual_from_wrong_point", 4, "the second residual starts from the block's input instead of the first "
        "norm's output",
        "x moves on: what the second sublayer reads is what is added to its output.",
        "SHI-Labs/Compact-Transformers#25",
        [(ENCODER, None, "first = x"), (ENCODER, "norm2(x,", "norm2(first,")])
mistake("feed_forward_reads_input", 4, "the feed-forward layer reads the block's input instead of the first norm's "
        "output",
        "The sublayers follow one another: feed-forward works on what attention has gathered.", "planted",
        [(ENCODER, None, "first = x"), (ENCODER, "self.feed_forward(x)", "self.feed_forward(first)")])
mistake("norm1_twice", 4, "norm1 is used in both places",
        "Each norm has its own gamma and beta. Fresh from the constructor they are equal, which hides it.",
        "ml-explore/mlx#1636", [(ENCODER, "self.norm2(", "self.norm1(")])
mistake("norms_swapped", 4, "norm1 and norm2 have changed places",
        "norm1 follows attention, norm2 follows feed-forward: their weights are not the same.", "ml-explore/mlx#1636",
        [(ENCODER, FIRST, FIRST.replace("norm1", "norm2")), (ENCODER, SECOND, SECOND.replace("norm2", "norm1"))])
mistake("feed_forward_first", 4, "feed-forward comes before attention",
        "Figure 1: attention below, feed-forward above.", "planted",
        [(ENCODER, FIRST, "x = self.norm1(x, self.feed_forward(x))"),
         (ENCODER, SECOND, "return self.norm2(x, self.self_attention(x, x, x, mask))")],
        [(ENCODER, FIRST, "x = self.norm2(x, self.feed_forward(x))"),
         (ENCODER, SECOND, "return self.norm1(x, self.self_attention(x, x, x, mask))")])
mistake("feed_forward_missing", 4, "the feed-forward sublayer is left out",
        "A block has two sublayers.", "planted", [(ENCODER, SECOND, "return x")])
mistake("attention_missing", 4, "the attention sublayer is left out",
        "Without it no position ever hears of another.", "planted", [(ENCODER, FIRST, "pass")])
mistake("block_mask_not_passed", 4, "the mask never reaches self-attention",
        "A default of None hides the omission.", "pytorch/pytorch#109072",
        [(ENCODER, ", mask))", "))")])
mistake("residual_twice", 4, "x is added once more outside Add & Norm",
        "AddNorm(x, sublayer_output) adds x itself.", "planted",
        [(ENCODER, FIRST, "x = self.norm1(x, x + self.self_attention(x, x, x, mask))"),
         (ENCODER, SECOND, "return self.norm2(x, x + self.feed_forward(x))")],
        [(ENCODER, FIRST, "x = x + self.norm1(x, self.self_attention(x, x, x, mask))"),
         (ENCODER, SECOND, "return x + self.norm2(x, self.feed_forward(x))")])

mistake("norm_backward_no_variance_path", 4, "layer norm's backward forgets that the variance depends on x",
        "x reaches the output by three paths: directly, through the mean, through the variance.", "planted",
        [(NORM_BACK, VARIANCE_PATH, "")])
mistake("norm_backward_no_mean_path", 4, "layer norm's backward forgets that the mean depends on x",
        "x reaches the output by three paths: directly, through the mean, through the variance.", "planted",
        [(NORM_BACK, MEAN_PATH, "")])
mistake("norm_backward_direct_path_only", 4, "layer norm's backward treats mean and variance as constants",
        "Both depend on x, and each adds a term.", "planted",
        [(NORM_BACK, MEAN_PATH, ""),
         (NORM_BACK, VARIANCE_PATH, "")])
mistake("norm_backward_no_gamma", 4, "layer norm's backward leaves gamma out of dx",
        "x_hat was multiplied by gamma, so its gradient is dout * gamma.", "planted",
        [(NORM_BACK, "dx_hat = dout * self.gamma", "dx_hat = dout")])
mistake("norm_backward_no_rstd", 4, "layer norm's backward does not divide by the root of the variance",
        "x_hat = (x - mean) * rstd, so rstd stands in front of dx.", "planted",
        [(NORM_BACK, "return rstd * (", "return (")])
mistake("dgamma_without_x_hat", 4, "dgamma sums dout instead of dout * x_hat",
        "gamma multiplies x_hat: that is what stands beside dout in its gradient.", "planted",
        [(NORM_BACK, "column_sum(dout * x_hat)", "column_sum(dout)")])
mistake("add_norm_backward_residual_dropped", 4, "Add & Norm hands the gradient back to one side of the sum only",
        "A sum passes its gradient on to both sides.", "planted",
        [(ADD_NORM_BACK, "return dx, self.dropout.backward(dx)", "return 0 * dx, self.dropout.backward(dx)")],
        [(ADD_NORM_BACK, "return dx, self.dropout.backward(dx)", "return dx, 0 * self.dropout.backward(dx)")])
mistake("add_norm_backward_no_dropout", 4, "the sublayer's gradient does not go back through dropout",
        "What forward hid has no gradient, and what it kept was scaled.", "ddbourgin/numpy-ml#94",
        [(ADD_NORM_BACK, "self.dropout.backward(dx)", "dx")])
mistake("relu_missing_in_backward", 4, "backward goes past the ReLU",
        "Where ReLU gave 0, the gradient is 0.", "planted", [(FFN_BACK, "dhidden * (hidden > 0)", "dhidden")])
mistake("bias_gradient_averaged", 4, "the gradients of the biases are averaged over the positions",
        "A bias was added at every position; its gradient is the sum over them.", "planted",
        [(FFN_BACK, "return linear_backward(dhidden * (hidden > 0), x, self.W1, self.dW1, self.db1)",
          "self.db2 /= len(rows(x))\n"
          "dx = linear_backward(dhidden * (hidden > 0), x, self.W1, self.dW1, self.db1)\nself.db1 /= "
          "len(rows(x))\nreturn dx")])
mistake("block_backward_residual_dropped", 4, "the block's backward drops a residual path",
        "Where x went two ways, two gradients come back and add up.", "planted",
        [(ENCODER_BACK, *FF_RESIDUAL)],
        [(ENCODER_BACK, "return dx + dquery + dkey + dvalue", "return dquery + dkey + dvalue")],
        [(ENCODER_BACK, *FF_RESIDUAL),
         (ENCODER_BACK, "return dx + dquery + dkey + dvalue", "return dquery + dkey + dvalue")])
mistake("block_backward_query_only", 4, "the block's backward drops some of dquery, dkey and dvalue",
        "In self-attention the same x was query, key and value: three gradients come back.", "planted",
        *([(ENCODER_BACK, "return dx + dquery + dkey + dvalue", f"return dx + {kept}")]
          for kept in ("dquery", "dkey", "dvalue", "dquery + dkey", "dquery + dvalue", "dkey + dvalue")))

# ------------------------------------------------------------- exercise 5: masks, decoder block, Transformer

PADDING, CAUSAL, SHIFT = "create_padding_mask", "create_causal_mask", "shift_target"
DECODER, DECODER_BACK = "DecoderBlock.forward", "DecoderBlock.backward"
ENCODE, DECODE, WHOLE = "Transformer.encode", "Transformer.decode", "Transformer.forward"
IS_PAD = "(tokens == pad_token)[:, None, None, :]"
TRIU = "np.triu(np.ones((1, 1, seq_len, seq_len), dtype=bool), k=1)"
SHIFTED = "return tgt[:, :-1], tgt[:, 1:]"
SELF = "x = self.norm1(x, self.self_attention(x, x, x, self_mask))"
CROSS = "x = self.norm2(x, self.cross_attention(x, encoder_output, encoder_output, cross_mask))"
READS = "(x, encoder_output, encoder_output,"
LAST = "return self.norm3(x, self.feed_forward(x))"
ENCODED = "x = self.positional_encoding(self.src_embedding(src))"
DECODED = "x = self.tgt_positional_encoding(self.tgt_embedding(tgt))"
ENCODER_STEP, DECODER_STEP = "x = block(x, src_mask)", "x = block(x, encoder_output, tgt_mask, cross_mask)"
MASKS = ", tgt_mask, cross_mask)"
THREE = "return dx + dquery + dkey + dvalue, dencoder_output"
TWO_MASKS = ", tgt_mask, src_mask)"

mistake("padding_inverted", 5, "the padding mask is True at real tokens",
        "True means hidden: it belongs on the padding.", "rasbt/LLMs-from-scratch#1061; facebookresearch/detr#96",
        [(PADDING, "tokens == pad_token", "tokens != pad_token")])
mistake("mask_of_numbers", 5, "the mask holds numbers instead of True and False",
        "0 and 1 could be added, multiplied or inverted by mistake, and nothing would say so. A comparison gives "
        "booleans; np.ones takes dtype=bool.", "planted",
        [(PADDING, "tokens == pad_token", "1.0 * (tokens == pad_token)")], [(CAUSAL, ", dtype=bool", "")])
mistake("padding_on_query_axis", 5, "the padding mask lies on the query axis, (B, 1, S, 1)",
        "It blinds the padding instead of hiding it: real queries still see it.",
        "hyunwoongko/transformer PR 40; lsdefine/attention-is-all-you-need-keras#16",
        [(PADDING, IS_PAD, "(tokens == pad_token)[:, None, :, None]")])
mistake("padding_axes_missing", 5, "the padding mask lacks axes: it should be (B, 1, 1, S)",
        "Two axes of length 1 make it broadcast over heads and queries. Without them it meets the wrong axes, "
        "silently when sizes agree.", "hyunwoongko/transformer#32",
        [(PADDING, IS_PAD, "tokens == pad_token")], [(PADDING, IS_PAD, "(tokens == pad_token)[:, None, :]")])
mistake("padding_ignores_pad_token", 5, "the padding mask compares with 0 and ignores pad_token",
        "Vocabularies differ in what stands for padding.", "planted", [(PADDING, "tokens == pad_token", "tokens == 0")])
mistake("padding_everything_below", 5, "the padding mask hides every token up to pad_token, or only those above 0",
        "Only the token that equals pad_token is padding.", "planted",
        [(PADDING, "tokens == pad_token", "tokens <= pad_token")],
        [(PADDING, "tokens == pad_token", "tokens > pad_token")])
mistake("causal_hides_itself", 5, "the causal mask hides the diagonal: a position cannot see itself",
        "Position t may see 0 to t. Hidden from itself, position 0 would see nothing at all.", "planted",
        [(CAUSAL, "k=1", "k=0")])
mistake("causal_sees_next", 5, "the causal mask is off by one: each position sees the next one",
        "The next token is what is to be predicted.", "karpathy/minGPT#75", [(CAUSAL, "k=1", "k=2")])
mistake("causal_wrong_triangle", 5, "the causal mask hides the past and shows the future",
        "Row t is a query, column s a key: the future is where s > t, above the diagonal.",
        "jadore801120/attention-is-all-you-need-pytorch#19",
        [(CAUSAL, TRIU, TRIU.replace("triu", "tril").replace("k=1", "k=-1"))])
mistake("causal_inverted", 5, "the causal mask is True where a position may look",
        "True means hidden.", "rasbt/LLMs-from-scratch#1061; lucidrains/x-transformers#164",
        [(CAUSAL, TRIU, TRIU.replace("triu", "tril").replace("k=1", "k=0"))])
mistake("causal_hides_everything_else", 5, "the causal mask hides the past and the future and shows the diagonal alone",
        "The past is what attention is for.", "planted", [(CAUSAL, TRIU, "~np.eye(seq_len, dtype=bool)[None, None]")])
mistake("causal_hides_nothing", 5, "the causal mask hides nothing",
        "The decoder would copy the answer from its own input: perfect under teacher forcing, lost when it writes "
        "alone.",
        "jadore801120/attention-is-all-you-need-pytorch#19; karpathy/minGPT#75",
        [(CAUSAL, TRIU, "np.zeros((1, 1, seq_len, seq_len), dtype=bool)")])
mistake("causal_axes_missing", 5, "the causal mask lacks axes: it should be (1, 1, T, T)",
        "Masks here are 4-D, so that no axis is matched by accident.", "planted",
        *([(CAUSAL, "np.ones((1, 1, seq_len, seq_len)", f"np.ones(({axes}seq_len, seq_len)")] for axes in ("", "1, ")))
mistake("target_not_shifted", 5, "the target is not shifted: the decoder reads the very token it is to predict",
        "At position t it reads tokens 0 to t and predicts t + 1. Unshifted it learns to repeat its input.",
        "huggingface/transformers#48745",
        [(SHIFT, SHIFTED, "return tgt[:, :-1], tgt[:, :-1]")], [(SHIFT, SHIFTED, "return tgt, tgt")],
        [(SHIFT, SHIFTED, "return tgt[:, 1:], tgt[:, 1:]")])
mistake("target_shifted_twice", 5, "the target is shifted twice: every position predicts the token after the next",
        "One step is enough: inputs without the last token, answers without the first.", "planted",
        [(SHIFT, SHIFTED, "return tgt[:, :-2], tgt[:, 2:]")])
mistake("target_shifted_backwards", 5, "the target is shifted backwards: every position predicts the token before it",
        "The decoder reads everything but the last token and predicts everything but the first.", "planted",
        [(SHIFT, SHIFTED, "return tgt[:, 1:], tgt[:, :-1]")])
mistake("target_only_one_side", 5, "only one side of the target is shifted, so that the two have different lengths",
        "The same T positions read and predict: both are (B, T).", "planted",
        [(SHIFT, SHIFTED, "return tgt, tgt[:, 1:]")], [(SHIFT, SHIFTED, "return tgt[:, :-1], tgt")])
mistake("target_rolled", 5, "the target is rolled, so that its first token comes back at the end",
        "What falls out at one end must not come in at the other.", "planted",
        [(SHIFT, SHIFTED, "return tgt, np.roll(tgt, -1, axis=1)")])
mistake("cross_keys_from_decoder", 5, "cross-attention takes its keys from the decoder",
        "Keys and values both describe the source; the query alone comes from the decoder.", "planted",
        [(DECODER, READS, "(x, x, encoder_output,")])
mistake("cross_values_from_decoder", 5, "cross-attention takes its values from the decoder",
        "Then nothing of the source ever enters the decoder.", "planted",
        [(DECODER, READS, "(x, encoder_output, x,")])
mistake("cross_query_from_encoder", 5, "in cross-attention the encoder asks and the decoder answers",
        "The decoder asks: query from x, keys and values from encoder_output.", "planted",
        [(DECODER, READS, "(encoder_output, x, x,")])
mistake("memory_ignored", 5, "the encoder's output is not used in the decoder block",
        "Without it the decoder invents: it has never seen the source.", "planted",
        [(DECODER, READS, "(x, x, x,")],
        [(DECODER, CROSS, "pass")])
mistake("self_attention_reads_memory", 5, "the first attention already reads the encoder's output",
        "First the decoder attends to itself, then to the source.", "planted",
        [(DECODER, SELF, SELF.replace("(x, x, x, self_mask)", "(x, encoder_output, encoder_output, cross_mask)"))])
mistake("decoder_self_mask_missing", 5, "self_mask does not reach the decoder's self-attention",
        "Without it every position sees the answer.", "karpathy/minGPT#75",
        [(DECODER, ", self_mask))", "))")])
mistake("decoder_cross_mask_missing", 5, "cross_mask does not reach cross-attention",
        "The same sentence with more padding would be translated differently.",
        "keras-team/keras-io PR 1046; facebookresearch/fairseq#318",
        [(DECODER, ", cross_mask))", "))")])
mistake("decoder_masks_swapped", 5, "self_mask and cross_mask have changed places",
        "The causal mask belongs to self-attention, the source's padding to cross-attention.", "planted",
        [(DECODER, None, "self_mask, cross_mask = cross_mask, self_mask")])
mistake("cross_uses_self_mask", 5, "cross-attention uses self_mask",
        "The target's mask says nothing about the source.", "NVIDIA/FasterTransformer#270",
        [(DECODER, ", cross_mask))", ", self_mask))")])
mistake("cross_attention_first", 5, "cross-attention comes before self-attention",
        "Figure 1: masked self-attention, then attention to the source.", "planted",
        [(DECODER, f"{SELF}\n        {CROSS}", f"{CROSS}\n{SELF}")],
        [(DECODER, SELF, CROSS.replace("norm2", "norm1")), (DECODER, CROSS, SELF.replace("norm1", "norm2"))])
mistake("decoder_norm_reused", 5, "one norm of the decoder block serves in two places",
        "Three sublayers, three norms, each with its own gamma and beta.", "ml-explore/mlx#1636",
        [(DECODER, "self.norm3(", "self.norm2(")], [(DECODER, "self.norm3(", "self.norm1(")],
        [(DECODER, "self.norm2(", "self.norm1(")],
        [(DECODER, "self.norm2(", "self.norm1("), (DECODER, "self.norm3(", "self.norm1(")])
mistake("decoder_same_attention_twice", 5, "self_attention is used for cross-attention too",
        "They are two layers with weights of their own.", "planted",
        [(DECODER, "self.cross_attention(", "self.self_attention(")])
mistake("decoder_residual_from_wrong_point", 5, "a residual starts from the block's input instead of the norm before",
        "x moves on from sublayer to sublayer.", "SHI-Labs/Compact-Transformers#25",
        [(DECODER, None, "first = x"), (DECODER, "norm2(x,", "norm2(first,")],
        [(DECODER, None, "first = x"), (DECODER, "norm3(x,", "norm3(first,")],
        [(DECODER, None, "first = x"), (DECODER, "norm2(x,", "norm2(first,"), (DECODER, "norm3(x,", "norm3(first,")])
mistake("decoder_feed_forward_missing", 5, "the decoder block ends before its feed-forward sublayer",
        "Three sublayers: self-attention, attention to the source, feed-forward.", "planted",
        [(DECODER, LAST, "return x")])
mistake("decoder_pre_norm", 5, "the norms come before the sublayers (pre-norm)",
        "The paper norms after each sum. Pre-norm came later.", "harvardnlp/annotated-transformer#1",
        [(DECODER, SELF, "h = LayerNorm.forward(self.norm1, x)\n"
                         "x = x + self.self_attention(h, h, h, self_mask)"),
         (DECODER, CROSS, "h = LayerNorm.forward(self.norm2, x)\n"
                          "x = x + self.cross_attention(h, encoder_output, encoder_output, cross_mask)"),
         (DECODER, LAST, "return x + self.feed_forward(LayerNorm.forward(self.norm3, x))")])
mistake("encoder_without_positions", 5, "encode adds no positions", "The encoder would see a bag of words.", "planted",
        [(ENCODE, ENCODED, "x = self.src_embedding(src)")])
mistake("decoder_without_positions", 5, "decode adds no positions", "The decoder would not know how far it has come.",
        "planted", [(DECODE, DECODED, "x = self.tgt_embedding(tgt)")])
mistake("encoder_scaled_twice", 5, "encode scales the embeddings once more",
        "src_embedding multiplies by sqrt(d_model) itself.", "harvardnlp/annotated-transformer#60",
        [(ENCODE, ENCODED, "x = self.src_embedding(src)\nx = self.positional_encoding(x * math.sqrt(x.shape[-1]))")])
mistake("encoder_first_layer_only", 5, "encode returns the output of its first block",
        "The decoder reads the last block's output.", "planted", [(ENCODE, ENCODER_STEP, f"return {ENCODER_STEP[4:]}")])
mistake("encoder_blocks_not_chained", 5, "every encoder block reads the embeddings, and the last one wins",
        "Each block reads what the block before it wrote.", "planted",
        [(ENCODE, ENCODED, f"{ENCODED}\nfirst = x"), (ENCODE, "block(x", "block(first")])
mistake("encoder_mask_missing", 5, "src_mask does not reach the encoder's blocks",
        "Padding would take its share of attention.", "pytorch/pytorch#109072",
        [(ENCODE, ", src_mask)", ")")])
mistake("decoder_first_layer_only", 5, "decode returns the output of its first block",
        "All blocks of the stack take part.", "planted", [(DECODE, DECODER_STEP, f"return {DECODER_STEP[4:]}")])
mistake("decoder_blocks_not_chained", 5, "every decoder block reads the embeddings, and the last one wins",
        "Each block reads what the block before it wrote.", "planted",
        [(DECODE, DECODED, f"{DECODED}\nfirst = x"),
         (DECODE, "block(x", "block(first")])
mistake("decoder_masks_missing", 5, "a mask does not reach the decoder's blocks",
        "tgt_mask keeps the future hidden, cross_mask the source's padding.", "karpathy/minGPT#75",
        *([(DECODE, MASKS, masks)] for masks in (")", ", tgt_mask)", ", None, cross_mask)")))
mistake("decode_masks_swapped", 5, "tgt_mask and cross_mask reach the decoder's blocks in the wrong order",
        "block(x, encoder_output, self_mask, cross_mask).", "planted",
        [(DECODE, MASKS, ", cross_mask, tgt_mask)")])
mistake("decoder_memory_updated", 5, "decoder blocks read the decoder's own output as if it were the encoder's",
        "Every block reads the encoder's last output; only x moves on.", "planted",
        [(DECODE, DECODER_STEP, f"{DECODER_STEP}\nencoder_output = x")])
mistake("decoder_embeds_with_source", 5, "decode looks target tokens up in the source's table",
        "Two vocabularies, two tables (one only when they are tied).", "planted",
        [(DECODE, "self.tgt_embedding(", "self.src_embedding(")])
mistake("encoder_fed_target", 5, "the encoder is fed the target",
        "It then knows the answer, and in use there is none to feed it.", "planted",
        [(WHOLE, "encode(src", "encode(tgt")])
mistake("decoder_fed_source", 5, "the decoder is fed the source instead of the target",
        "It continues the target, and reads the source through cross-attention.", "planted",
        [(WHOLE, "decode(tgt", "decode(src")])
mistake("probabilities_for_logits", 5, "forward returns probabilities instead of logits",
        "The loss applies the softmax; applied twice, it hardly learns.", "ooples/AiDotNet#1208",
        [(WHOLE, "return linear(decoder_output, self.output_projection)",
          "return softmax(linear(decoder_output, self.output_projection))")],
        [(WHOLE, "return linear(decoder_output, self.output_projection)",
          "return np.log(softmax(linear(decoder_output, self.output_projection)))")])
mistake("no_logits", 5, "the output projection is missing",
        "The loss needs one score for each word of the vocabulary.", "planted",
        [(WHOLE, "return linear(decoder_output, self.output_projection)", "return decoder_output")])
mistake("source_mask_not_in_cross", 5, "forward does not pass src_mask to the decoder's cross-attention",
        "Source padding must be hidden there as well.", "keras-team/keras-io PR 1046; facebookresearch/fairseq#318",
        [(WHOLE, TWO_MASKS, ", tgt_mask)")])
mistake("source_mask_not_in_encoder", 5, "forward does not pass src_mask to the encoder",
        "Source padding must be hidden from the source itself too.", "planted",
        [(WHOLE, ", src_mask),", "),")])
mistake("target_mask_not_passed", 5, "forward does not pass tgt_mask to decode",
        "Without it every position sees the answer.", "karpathy/minGPT#75",
        [(WHOLE, TWO_MASKS, ", None, src_mask)")])
mistake("target_mask_in_cross", 5, "forward passes tgt_mask to cross-attention",
        "The target's mask says nothing about the source.", "NVIDIA/FasterTransformer#270",
        [(WHOLE, TWO_MASKS, ", tgt_mask, tgt_mask)")])
mistake("masks_not_passed", 5, "forward passes no masks on",
        "A default of None hides the omission.", "pytorch/pytorch#109072",
        [(WHOLE, ", src_mask),", "),"), (WHOLE, TWO_MASKS, ")")])

mistake("dmemory_without_values", 5, "dencoder_output lacks the share of the values, or of the keys",
        "The encoder's output was both key and value: dkey + dvalue.", "planted",
        [(DECODER_BACK, "dencoder_output = dkey + dvalue", "dencoder_output = dkey")],
        [(DECODER_BACK, "dencoder_output = dkey + dvalue", "dencoder_output = dvalue")])
mistake("decoder_backward_residual_dropped", 5, "the decoder block's backward drops a residual path",
        "Where x went two ways, two gradients come back and add up.", "planted",
        [(DECODER_BACK, *FF_RESIDUAL)],
        [(DECODER_BACK, "self.norm1.backward(dx + dquery)", "self.norm1.backward(dquery)")],
        [(DECODER_BACK, THREE, "return dquery + dkey + dvalue, dencoder_output")])
mistake("decoder_backward_cross_query_dropped", 5, "the gradient of the cross-attention's query is dropped",
        "The decoder asked with x: what the question could do better comes back as dquery.", "planted",
        [(DECODER_BACK, "self.norm1.backward(dx + dquery)", "self.norm1.backward(dx)")])
mistake("decoder_backward_query_only", 5, "self-attention's backward drops some of dquery, dkey and dvalue",
        "The same x was query, key and value: three gradients come back.", "planted",
        *([(DECODER_BACK, THREE, f"return dx + {kept}, dencoder_output")]
          for kept in ("dquery", "dkey", "dvalue", "dquery + dkey", "dquery + dvalue", "dkey + dvalue")))
mistake("dmemory_in_dx", 5, "the gradient of the encoder's output is added to dx as well",
        "dkey and dvalue of cross-attention belong to the encoder alone.", "planted",
        [(DECODER_BACK, "self.norm1.backward(dx + dquery)", "self.norm1.backward(dx + dquery + dkey + dvalue)")])
