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
    "512": "d_model: 3.1", "2048": "d_ff: 3.3", "1024": "d_model, big: table 3", "4096": "d_ff, big: table 3",
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
