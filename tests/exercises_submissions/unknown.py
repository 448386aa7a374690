# Wrong answers that are no known mistake, to be rejected without a name: "#: name | exercise". The rest is the solution's.

#: softmax_base_two | 1
def softmax(x, axis=-1):
    e = 2.0 ** (x - np.max(x, axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)

#: softmax_of_squares | 1
def softmax(x, axis=-1):
    e = np.square(x) + 1e-9
    return e / e.sum(axis=axis, keepdims=True)

#: random_weights | 1
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        self.attention_weights = np.random.default_rng(0).dirichlet(np.ones(K.shape[2]), Q.shape[:3])
        return self.attention_weights @ V

#: zeros_of_the_right_shape | 1
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        self.attention_weights = np.zeros((*Q.shape[:3], K.shape[2]))
        return np.zeros((*Q.shape[:3], V.shape[3]))

#: cosine_similarity | 1
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        Q, K = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (Q, K))
        z = Q @ K.swapaxes(-1, -2) / math.sqrt(Q.shape[-1])
        self.attention_weights = softmax(z if mask is None else np.where(mask, -np.inf, z))
        return self.attention_weights @ V

#: mask_of_the_first_sequence | 1
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = Q @ K.swapaxes(-1, -2) / math.sqrt(Q.shape[-1])
        self.attention_weights = softmax(z if mask is None else np.where(mask[:1], -np.inf, z))
        return self.attention_weights @ V

#: heads_reversed | 2
class MultiHeadAttention:
    def split_heads(self, x):
        return x.reshape(*x.shape[:2], self.n_heads, self.d_k).swapaxes(1, 2)[:, ::-1]

#: features_rolled | 2
class MultiHeadAttention:
    def merge_heads(self, x):
        B, h, T, d_k = x.shape
        return np.roll(x.swapaxes(1, 2).reshape(B, T, h * d_k), 1, axis=-1)

#: a_relu_too_many | 2
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        Q, K, V = (self.split_heads(x @ W) for x, W in ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        return np.maximum(self.merge_heads(self.attention(Q, K, V, mask)), 0) @ self.W_O

#: half_of_w_o | 2
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        Q, K, V = (self.split_heads(x @ W) for x, W in ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        return self.merge_heads(self.attention(Q, K, V, mask)) @ self.W_O / 2

#: random_table | 3
def sinusoidal_table(max_len, d_model):
    return np.random.default_rng(1).normal(size=(max_len, d_model))

#: squared_positions | 3
def sinusoidal_table(max_len, d_model):
    angles = np.arange(max_len)[:, None] ** 2 / 10000 ** (np.arange(d_model) // 2 * 2 / d_model)
    return np.where(np.arange(d_model) % 2, np.cos(angles), np.sin(angles))

#: normalised_rows | 3
class TokenEmbedding:
    def forward(self, tokens):
        rows = self.embedding[tokens]
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True) * math.sqrt(self.d_model)

#: no_vector_for_padding | 3
class TokenEmbedding:
    def forward(self, tokens):
        return np.where(tokens[..., None] == 0, 0, self.embedding[tokens] * math.sqrt(self.d_model))

#: averaged_with_positions | 3
class PositionalEncoding:
    def forward(self, x, start=0):
        if start + x.shape[1] > len(self.pe):
            raise ValueError("too long")
        return self.dropout((x + self.pe[start:start + x.shape[1]]) / 2)

#: median_norm | 4
class LayerNorm:
    def forward(self, x):
        z = x - np.median(x, axis=-1, keepdims=True)
        return self.gamma * z / np.sqrt((z ** 2).mean(-1, keepdims=True) + self.eps) + self.beta

#: mean_deviation | 4
class LayerNorm:
    def forward(self, x):
        z = x - x.mean(-1, keepdims=True)
        return self.gamma * z / (np.abs(z).mean(-1, keepdims=True) + self.eps) + self.beta

#: half_a_residual | 4
class AddNorm:
    def forward(self, x, sublayer_output):
        return super().forward(x / 2 + self.dropout(sublayer_output))

#: squared_relu | 4
class FeedForward:
    def forward(self, x):
        return np.maximum(x @ self.W1 + self.b1, 0) ** 2 @ self.W2 + self.b2

#: window_of_two | 5
def create_causal_mask(seq_len):
    t = np.arange(seq_len)
    return ((t[None] > t[:, None]) | (t[None] < t[:, None] - 1))[None, None]

#: padding_and_start_hidden | 5
def create_padding_mask(tokens, pad_token=0):
    return ((tokens == pad_token) | (tokens == 1))[:, None, None, :]

#: padding_at_the_end_only | 5
def create_padding_mask(tokens, pad_token=0):
    lengths = (tokens != pad_token).sum(axis=1, keepdims=True)
    return (np.arange(tokens.shape[1]) >= lengths)[:, None, None, :]

#: everything_after_padding_hidden | 5
def create_padding_mask(tokens, pad_token=0):
    return np.maximum.accumulate(tokens == pad_token, axis=1)[:, None, None, :]

#: padding_and_end_hidden | 5
def create_padding_mask(tokens, pad_token=0):
    return np.isin(tokens, [pad_token, 2])[:, None, None, :]

#: end_token_not_read | 5
def shift_target(tgt):
    return np.where(tgt == 2, 0, tgt)[:, :-1], tgt[:, 1:]

#: start_token_predicted | 5
def shift_target(tgt):
    return tgt[:, :-1], np.where(tgt[:, 1:] == 0, 1, tgt[:, 1:])

#: both_attentions_added | 5
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        both = self.self_attention(x, x, x, self_mask) + self.cross_attention(x, encoder_output, encoder_output, cross_mask)
        x = self.norm2(x, both)
        return self.norm3(x, self.feed_forward(x))

#: averaged_layers | 5
class Transformer:
    def encode(self, src, src_mask=None):
        x = self.positional_encoding(self.src_embedding(src))
        seen = [x]
        for block in self.encoder_layers:
            seen.append(block(seen[-1], src_mask))
        return sum(seen) / len(seen)

#: random_logits | 5
class Transformer:
    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        return np.random.default_rng(2).normal(size=(*tgt.shape, self.output_projection.shape[1]))
