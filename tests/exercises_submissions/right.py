# Right answers in other words; all of them must get full marks. "#: name | exercise"; the rest is the solution's.

#: loops | 1
def softmax(x, axis=-1):
    moved = np.moveaxis(np.array(x, dtype=np.float64), axis, -1)
    out = np.empty_like(moved)
    for index in np.ndindex(moved.shape[:-1]):
        weights = [math.exp(v - max(moved[index])) for v in moved[index]]
        out[index] = [w / sum(weights) for w in weights]
    return np.moveaxis(out, -1, axis)

class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        B, h, T, d_k = Q.shape
        S = K.shape[2]
        hide = np.zeros((B, h, T, S), bool) if mask is None else np.broadcast_to(mask, (B, h, T, S))
        A = np.zeros((B, h, T, S))
        for b, i, t in np.ndindex(B, h, T):
            seen = np.flatnonzero(~hide[b, i, t])
            if len(seen):
                scores = np.array([Q[b, i, t] @ K[b, i, s] for s in seen], dtype=float) / d_k ** 0.5
                A[b, i, t, seen] = softmax(scores)
        self.attention_weights = A
        dropped = self.dropout(A)
        self.mine = Q, K, V, A, dropped
        out = np.zeros((B, h, T, V.shape[-1]))
        for b, i in np.ndindex(B, h):
            out[b, i] = dropped[b, i] @ V[b, i]
        return out

    def backward(self, dout):
        Q, K, V, A, dropped = self.mine
        dQ, dK, dV = np.zeros(Q.shape), np.zeros(K.shape), np.zeros(V.shape)
        dA = self.dropout.backward(np.einsum("bhtv,bhsv->bhts", dout, V))
        for b, i, t in np.ndindex(*A.shape[:3]):
            a = A[b, i, t]
            g = (np.diag(a) - np.outer(a, a)) @ dA[b, i, t] / Q.shape[-1] ** 0.5
            dQ[b, i, t] = g @ K[b, i]
            dK[b, i] += np.outer(g, Q[b, i, t])
            dV[b, i] += np.outer(dropped[b, i, t], dout[b, i, t])
        return dQ, dK, dV

#: einsum_minus_a_billion | 1
def softmax(x, axis=-1):
    e = np.exp(x - np.max(x, axis, keepdims=True))
    return e / np.sum(e, axis, keepdims=True)

class ScaledDotProductAttention:
    def shares(self, scores, mask):
        if mask is None:
            return softmax(scores)
        filled = np.where(mask, scores.dtype.type(-1e9), scores)
        return softmax(filled) * ~mask.all(axis=-1, keepdims=True)

    def forward(self, Q, K, V, mask=None):
        scores = np.einsum("bhid,bhjd->bhij", Q * Q.shape[-1] ** -0.5, K)
        self.attention_weights = w = self.shares(scores, mask)
        p = self.dropout(w)
        self.keep(Q, K, V, w, p)
        return np.einsum("bhij,bhjd->bhid", p, V)

    def backward(self, dout):
        Q, K, V, w, p = self.take()
        dw = self.dropout.backward(np.einsum("bhid,bhjd->bhij", dout, V))
        ds = w * dw - w * np.einsum("bhij,bhij->bhi", w, dw)[..., None]
        ds *= Q.shape[-1] ** -0.5
        return (np.einsum("bhij,bhjd->bhid", ds, K), np.einsum("bhij,bhid->bhjd", ds, Q),
                np.einsum("bhij,bhid->bhjd", p, dout))

#: float32_throughout | 1
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        q, k, v = np.float32(Q), np.float32(K), np.float32(V)
        s = q @ np.transpose(k, (0, 1, 3, 2)) / np.float32(np.sqrt(q.shape[-1]))
        e = np.exp(s - np.max(s, axis=-1, keepdims=True, where=True if mask is None else ~mask, initial=-3e38))
        e = e if mask is None else np.where(mask, np.float32(0), e)
        total = np.sum(e, axis=-1, keepdims=True)
        self.attention_weights = e / np.where(total == 0, np.float32(1), total)
        kept = self.dropout(self.attention_weights)
        self.keep(q, k, v, self.attention_weights, kept)
        return kept @ v

#: float64_and_minus_a_million | 1
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        hide = np.zeros((1, 1, 1, 1), bool) if mask is None else mask
        logits = np.einsum("bhid,bhjd->bhij", Q.astype(np.float64), K) / np.sqrt(K.shape[-1])
        e = np.exp(logits - 1e6 * hide - np.amax(logits - 1e6 * hide, axis=3, keepdims=True)) * ~hide
        self.attention_weights = e / np.maximum(e.sum(axis=3, keepdims=True), 1e-300)
        kept = self.dropout(self.attention_weights)
        self.keep(Q, K, V, self.attention_weights, kept)
        return kept @ V

#: heads_one_by_one | 2
class MultiHeadAttention:
    def split_heads(self, x):
        return np.stack([x[..., i * self.d_k:(i + 1) * self.d_k] for i in range(self.n_heads)], axis=1)

    def merge_heads(self, x):
        return np.concatenate([x[:, i] for i in range(x.shape[1])], axis=-1)

    def forward(self, query, key, value, mask=None):
        part = [slice(i * self.d_k, (i + 1) * self.d_k) for i in range(self.n_heads)]
        q, k, v = (np.stack([x @ W[:, p] for p in part], axis=1) for x, W in
                   ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        heads = self.attention(q, k, v, mask)
        self.remembered = query, key, value, heads
        return sum(heads[:, i] @ self.W_O[p] for i, p in enumerate(part))

    def backward(self, dout):
        query, key, value, heads = self.remembered
        joined = np.concatenate(list(heads.swapaxes(0, 1)), axis=-1)
        self.dW_O += np.einsum("btd,bte->de", joined, dout)
        grads = self.attention.backward(np.stack(np.split(dout @ self.W_O.T, self.n_heads, axis=-1), axis=1))
        result = []
        for name, x, g in zip("QKV", (query, key, value), grads):
            g = np.concatenate(list(g.swapaxes(0, 1)), axis=-1)
            gradient = getattr(self, f"dW_{name}")
            gradient += np.einsum("btd,bte->de", x, g)
            result.append(g @ getattr(self, f"W_{name}").T)
        return result

#: einsum_with_float32 | 2
class MultiHeadAttention:
    def _project(self, x, W):
        return np.einsum("btd,dhk->bhtk", x, W.reshape(-1, self.n_heads, self.d_k)).astype(np.float32)

    def forward(self, query, key, value, mask=None):
        heads = self.attention(self._project(query, self.W_Q), self._project(key, self.W_K),
                               self._project(value, self.W_V), mask)
        self.keep(query, key, value, self.merge_heads(heads))
        return np.einsum("bhtk,hkd->btd", heads, self.W_O.reshape(self.n_heads, self.d_k, -1))

#: column_by_column | 3
def sinusoidal_table(max_len, d_model):
    columns = []
    for c in range(d_model):
        wave = np.sin if c % 2 == 0 else np.cos
        columns.append(wave(np.arange(max_len) * np.exp(-np.log(10000.0) * (c // 2 * 2) / d_model)))
    return np.column_stack(columns)

class TokenEmbedding:
    def forward(self, tokens):
        self.ids = np.array(tokens)
        return np.eye(len(self.embedding))[tokens] @ self.embedding * self.d_model ** 0.5

    def backward(self, dout):
        one_hot = np.eye(len(self.embedding))[self.ids]
        self.dembedding += np.einsum("btv,btd->vd", one_hot, dout) * self.d_model ** 0.5

#: complex_waves | 3
def sinusoidal_table(max_len, d_model):
    pairs = (d_model + 1) // 2
    turn = np.exp(1j * 10000.0 ** (-2 * np.arange(pairs) / d_model))
    wave = turn[None, :] ** np.arange(max_len)[:, None]
    return np.stack([wave.imag, wave.real], axis=-1).reshape(max_len, 2 * pairs)[:, :d_model].astype(np.float32)

class PositionalEncoding:
    def forward(self, x, start=0):
        last = start + x.shape[1] - 1
        if last >= self.pe.shape[0]:
            raise ValueError(f"position {last} is not in the table")
        return self.dropout(np.stack([sequence + self.pe[np.arange(start, last + 1)] for sequence in x]))

class TokenEmbedding:
    def backward(self, dout):
        tokens, = self.take()
        for b, t in np.ndindex(tokens.shape):
            self.dembedding[tokens[b, t]] += dout[b, t] * math.sqrt(dout.shape[-1])

#: numpy_var | 4
class LayerNorm:
    def forward(self, x):
        self.x = x
        return (x - np.mean(x, -1, keepdims=True)) * self.gamma / np.sqrt(np.var(x, -1, keepdims=True) + self.eps) + self.beta

    def backward(self, dout):
        x, n = self.x, self.x.shape[-1]
        s = np.sqrt(np.var(x, -1, keepdims=True) + self.eps)
        z = (x - np.mean(x, -1, keepdims=True)) / s
        self.dgamma += (dout * z).reshape(-1, n).sum(0)
        self.dbeta += dout.reshape(-1, n).sum(0)
        jacobian = (np.eye(n) - 1 / n - z[..., :, None] * z[..., None, :] / n) / s[..., None]
        return np.einsum("...ij,...j->...i", jacobian, dout * self.gamma)

class FeedForward:
    def forward(self, x):
        self.x, self.inside = x, np.einsum("...d,df->...f", x, self.W1) + self.b1
        self.passed = self.dropout(self.inside * (self.inside > 0))
        return np.einsum("...f,fd->...d", self.passed, self.W2) + self.b2

    def backward(self, dout):
        g = np.where(self.inside > 0, self.dropout.backward(np.einsum("...d,fd->...f", dout, self.W2)), 0)
        self.dW2 += np.einsum("btf,btd->fd", self.passed, dout)
        self.db2 += dout.sum((0, 1))
        self.dW1 += np.einsum("btd,btf->df", self.x, g)
        self.db1 += g.sum((0, 1))
        return g @ self.W1.T

#: layer_norm_in_place | 4
class LayerNorm:
    def forward(self, x):
        y = x.copy()
        y -= y.mean(axis=-1, keepdims=True)
        r = 1 / np.linalg.norm(np.concatenate([y / np.sqrt(y.shape[-1]), np.full_like(y[..., :1], self.eps ** 0.5)], axis=-1),
                               axis=-1, keepdims=True)
        y *= r
        self.keep(y, r)
        return y * self.gamma + self.beta

class AddNorm:
    def forward(self, x, sublayer_output):
        total = self.dropout(sublayer_output)
        return LayerNorm.forward(self, np.add(total, x))

class EncoderBlock:
    def _attend(self, x, mask):
        return self.self_attention(query=x, key=x, value=x, mask=mask)

    def forward(self, x, mask=None):
        attended = self.norm1(x, sublayer_output=self._attend(x, mask))
        transformed = self.feed_forward(attended)
        return self.norm2(attended, transformed)

#: float32_norm | 4
class LayerNorm:
    def forward(self, x):
        x = np.asarray(x, dtype=np.float32)
        centred = x - np.float32(x.mean(axis=-1, keepdims=True))
        rstd = np.float32(1) / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(self.eps))
        self.keep(centred * rstd, rstd)
        return np.float32(self.gamma) * (centred * rstd) + np.float32(self.beta)

#: masks_by_comparison | 5
def create_padding_mask(tokens, pad_token=0):
    return np.equal(tokens, pad_token).reshape(tokens.shape[0], 1, 1, tokens.shape[1])

def create_causal_mask(seq_len):
    t = np.arange(seq_len)
    return np.less.outer(t, t)[np.newaxis, np.newaxis]

def shift_target(tgt):
    return np.delete(tgt, -1, axis=1), np.delete(tgt, 0, axis=1)

class Transformer:
    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        y = self.decode(tgt, self.encode(src, src_mask), tgt_mask=tgt_mask, cross_mask=src_mask)
        return np.einsum("btd,dv->btv", y, self.output_projection)

#: folds | 5
def create_causal_mask(seq_len):
    return ~np.tri(seq_len, dtype=bool)[None, None]

def shift_target(tgt):
    last = tgt.shape[1] - 1
    return [tgt[:, :last], tgt[:, -last:]]

class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        attended = self.norm1(x, self.self_attention(query=x, key=x, value=x, mask=self_mask))
        informed = self.norm2(attended, self.cross_attention(attended, encoder_output, value=encoder_output, mask=cross_mask))
        return self.norm3(informed, self.feed_forward(informed))

    def backward(self, dout):
        g, s = self.norm3.backward(dout)
        g, s = self.norm2.backward(g + self.feed_forward.backward(s))
        dq, *memory = self.cross_attention.backward(s)
        g, s = self.norm1.backward(g + dq)
        return sum(self.self_attention.backward(s), g), sum(memory)

class Transformer:
    def encode(self, src, src_mask=None):
        from functools import reduce
        return reduce(lambda x, block: block(x, src_mask), self.encoder_layers, self.positional_encoding(self.src_embedding(src)))
