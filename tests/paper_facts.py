"""What the texts quote and no block can compute: the paper's figures, names that belong to others, equations.

A number of the prose that is neither printed by a block of its page nor listed here makes test_documents.py fail.
"""

QUOTED = {
    # sections and footnotes of the paper, where a text names them
    **dict.fromkeys("3.1 3.2 3.2.1 3.2.2 3.2.3 3.3 3.4 3.5 5.1 5.2 5.3 5.4 6.1 6.2 6.3".split(), "a section"),
    # abstract, 6.1, table 2
    "28.4": "EN-DE, big: abstract, 6.1, table 2", "41.8": "EN-FR, big: abstract, table 2",
    "41.0": "EN-FR: first abstract, 6.1", "27.3": "EN-DE, base: table 2", "38.1": "EN-FR, base: table 2",
    "26.36": "EN-DE, ConvS2S ensemble: table 2", "41.29": "EN-FR, ConvS2S ensemble: table 2",
    "26.03": "EN-DE, MoE: table 2", "40.56": "EN-FR, MoE: table 2",
    "2.0": "operations of MoE, EN-DE, and the lead in 6.1", "1.2": "operations of MoE, EN-FR: table 2",
    "7.7": "operations of the ConvS2S ensemble: table 2", "3.3": "operations, base: table 2",
    "2.3": "operations, big: table 2", "9.5": "TFLOPS of a P100: footnote 5",
    # 3 and 5
    "512": "d_model: 3.1", "2048": "d_ff: 3.3", "1024": "d_model, big: table 3",
    "4.5": "million sentence pairs: 5.1", "37000": "vocabulary: 5.1", "32000": "word pieces, EN-FR: 5.1",
    "25000": "tokens in a batch: 5.1", "3.5": "days, big: 5.2", "0.4": "seconds a step, base: 5.2",
    "1.0": "seconds a step, big: 5.2", "100000": "steps, base: 5.2", "300000": "steps, big: 5.2",
    "4000": "warm-up steps: 5.3", "0.9": "beta_1: 5.3", "0.98": "beta_2: 5.3", "1e-9": "epsilon: 5.3",
    "0.1": "dropout, label smoothing: 5.4", "0.3": "dropout, big: table 3; alpha for parsing: 6.3",
    "0.6": "alpha: 6.1", "213": "million weights, big: table 3", "24.6": "BLEU without dropout: table 3 D",
    "25.8": "BLEU, base, development set: table 3",
    # 6.3, table 4
    "91.3": "WSJ only: table 4", "92.7": "semi-supervised: table 4", "93.3": "Dyer et al.: table 4",
    "91.7": "Dyer et al., WSJ only: table 4",
    "93.0": "Luong et al. 2015: table 4",
    "40000": "training sentences: 6.3", "300": "longer output: 6.3",
    # other people's
    "0.999": "Adam's usual beta_2: Kingma & Ba 2015", "1.8": "BLEU by tokenization: Post 2018",
    "3.14": "GPT-3's operations: Brown et al. 2020", "1.65": "3.3e18 / 2e10, five years",
    "9.21": "ln 10000", "0.036": "9.21 * 2 / 512", "1.0027": "a slip in circulation",
    "0.84": "the same slip", "0.55": "the same slip", "62832": "10000 * 2 pi",
    "1706.03762": "the paper's number", "4.1": "He et al. 2015, the section", "3.11": "the oldest Python",
    "1000": "held-out sequences", "0.5": "an exponent", "63.0": "table3.py, million",
    "214.2": "table3.py, million", "10000": "train_minimal.MAX_STEPS, and the base of the positions",
    "0.91": "0.9 + 0.1 / 12: what label smoothing asks for at 12 tokens",
    "6000": "train_minimal.py --warmup", "0.54": "cos(1/1.0027)", "25.7": "BLEU, learned positions: table 3 E",
    "92.6": "newest weights, copy, one seed", "97.8": "newest weights, reverse, one seed",
    "1.4": "a loss near the least possible one", "3072": "6 * 512",
    # of two digits, or an exponent
    "12": "hours, base: 5.2; token ids of a task", "36": "million sentence pairs, EN-FR: 5.1",
    "21": "beam for parsing: 6.3",
    "30": "no warm-up: 4.5 to 29.2 with seeds 0 to 4", "50": "longer output: 6.1; tokens in an example", "20": "checkpoints, big: 6.1",
    "17": "million sentences, semi-supervised: 6.3", "23": "GPT-3: 3.14e23 operations", "19": "table 2, 1e19",
    "65": "million weights, base: table 3", "255": "the last i of d_model 512", "1e-5": "LayerNorm.eps",
    "1e-6": "eps of the authors' layer norm", "1e9": "a finite mask", "15": "minutes", "45": "minutes; a token id",
    "91": "percent: 0.9 + 0.1 / 12", "11": "a token of the picture", "90.8": "percent: 0.9 + 0.1 / 12",
    "24": "maps: 2 * 4 and 2 * 4 * 2", "32": "d_model of the committed checkpoints", "10": "submission.TIME_LIMIT",
    "100": "float32 below a hundredth of the tolerance", "1e-4": "reference.TOLERANCE",
}

FOREIGN_NAMES = {
    "nn.MultiheadAttention": "PyTorch", "F.scaled_dot_product_attention": "PyTorch", "nn.Embedding": "PyTorch",
    "torch.nn.Transformer": "PyTorch", "ada_exercise_02.py": "a student's file, for example",
    "pydoc_data.topics": "the standard library",
    "transformer_base_v1": "the authors' code", "transformer_base_v2": "the authors' code",
}

EQUATIONS = [                                            # as the pages show them, with their place in the paper
    # 1, in words
    r"h_t = f(h_{t-1}, x_t)",
    # 2: Bahdanau et al. 2014, eq. of a_ij; and eq. 1
    r"\text{additive: } v^T \tanh(W s + U h_j) \qquad \text{dot product: } \frac{q \cdot k_j}{\sqrt{d_k}}",
    # 3, in words
    r"p(y_{t+1} \mid y_1, \dots, y_t, z)",
    # 3.1
    r"\text{LayerNorm}(x + \text{Sublayer}(x))",
    # eq. 1
    r"\text{Attention}(Q, K, V) = \text{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V",
    # 3.2.2
    r"\text{MultiHead}(Q, K, V) = \text{Concat}(\text{head}_1, \dots, \text{head}_h)W^O \qquad "
    r"\text{head}_i = \text{Attention}(QW_i^Q, KW_i^K, VW_i^V)",
    # 3.2.3, in words
    r"\text{softmax}(s + m), \quad m = 0 \text{ if visible}, \quad m = -\infty \text{ if hidden}",
    # eq. 2
    r"\text{FFN}(x) = \max(0, xW_1 + b_1)W_2 + b_2",
    # 3.4, in words
    r"x = \sqrt{d_{model}} \cdot E[\text{token}] \qquad p = \text{softmax}(y E^T)",
    # 3.5
    r"PE_{(pos, 2i)} = \sin(pos / 10000^{2i/d_{model}}) \qquad PE_{(pos, 2i+1)} = \cos(pos / 10000^{2i/d_{model}})",
    # Sennrich et al. 2015
    r"(a, b) = \arg\max_{(a, b)} \text{count}(ab)",
    # eq. 3
    r"lrate = d_{model}^{-0.5} \cdot \min(step^{-0.5}, step \cdot warmup^{-1.5})",
    # 5.4; Szegedy et al. 2015
    r"q_v = (1 - \epsilon_{ls}) \cdot [v = \text{target}] + \epsilon_{ls} / V",
    # Wu et al. 2016, eq. 14
    r"\text{score}(y) = \frac{\log p(y)}{((5 + n)/6)^{\alpha}}",
    # 6.2: our count
    r"V d + N (4 d^2 + 2 d d_{ff} + d_{ff} + 5 d) + N (8 d^2 + 2 d d_{ff} + d_{ff} + 7 d)",
]

FORMULAS = [                                             # above the blocks of the cheat sheet, which compute them
    "**Softmax.** y = exp(x) / Σ exp(x), so dx = y (dy − Σ dy y). No Jacobian needed.",
    "**A product.** y = x W + b, so dx = dy W<sup>T</sup>, dW = x<sup>T</sup> dy, db = Σ dy.",
    "**Attention** (eq. 1). A = softmax(S), S = Q K<sup>T</sup> / √d_k + mask, out = A V. Then dV = "
    "A<sup>T</sup> dout, dA = dout V<sup>T</sup>, dS = A (dA − Σ dA A), dQ = dS K / √d_k, dK = dS<sup>T</sup> "
    "Q / √d_k. The mask needs no line in the gradient: where A is 0, so is dS.",
    "**Multi-head attention.** head<sub>i</sub> = Attention(x W_Q<sub>i</sub>, m W_K<sub>i</sub>, m "
    "W_V<sub>i</sub>), out = Concat(heads) W_O. The gradient passes four products and an attention. In "
    "self-attention x is query, key and value: its gradient is the sum of the three.",
    "**Feed-forward** (eq. 2). out = H W2 + b2, H = max(0, x W1 + b1). The gradient passes where the ReLU was "
    "positive: dH = dout W2<sup>T</sup> where H > 0, else 0; dx = dH W1<sup>T</sup>.",
    "**Layer norm.** x̂ = (x − mean) r, r = 1 / √(var + eps), out = γ x̂ + β, with the biased variance. Three "
    "paths lead from x to x̂: direct, mean, variance. With d = γ dout, dx = r (d − mean(d) − x̂ mean(d x̂)); "
    "dγ = Σ x̂ dout, dβ = Σ dout.",
    "**Add & Norm.** out = LayerNorm(x + Dropout(sublayer)). The sum hands its gradient to both.",
    "**Dropout.** out = m x / (1 − p), dx = m dout / (1 − p) with the same m: 1 with probability 1 − p, else "
    "0. Off when decoding.",
    "**Embedding** (3.4). x = √d E[token], so dE[token] is the sum of √d dx over all places where the token "
    "stands.",
    "**Positions** (3.5). PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same). Added, so the "
    "gradient passes unchanged.",
    "**Loss** (5.4). q = (1 − eps) on the target + eps/V on each; loss = −Σ q log p, p = softmax(logits), "
    "mean over the N scored positions. dlogits = (p − q) / N.",
    "**Adam** (5.3). m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g², and w loses rate · (m / (1 − "
    "β₁<sup>t</sup>)) / (√(v / (1 − β₂<sup>t</sup>)) + ε). β₁ 0.9, β₂ 0.98, ε 1e-9.",
    "**Learning rate** (eq. 3). rate = d_model<sup>−0.5</sup> · min(step<sup>−0.5</sup>, step · "
    "warmup<sup>−1.5</sup>).",
    "**Beam search** (6.1). score = log p / ((5 + n) / 6)^α, n tokens with the end; beam 4, α 0.6. Average "
    "the last 5 checkpoints (base) or 20 (big).",
]

TABLE_1 = [                                              # work, steps in a row, longest path; without spaces
    ["O(n²·d)", "O(1)", "O(1)"],
    ["O(n·d²)", "O(n)", "O(n)"],
    ["O(k·n·d²)", "O(1)", "O(log<sub>k</sub>n)"],
    ["O(r·n·d)", "O(1)", "O(n/r)"],
]
