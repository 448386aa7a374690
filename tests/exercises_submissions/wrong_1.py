# Wrong answers to exercise 1, written without a look at the catalogue. Each begins with "#: name | mistakes it makes";
# what it does not define is taken from the solution.

#: loops_without_scaling | no_scaling
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        B, h, T, _ = Q.shape
        S, d_v = V.shape[2:]
        self.attention_weights = np.zeros((B, h, T, S))
        out = np.zeros((B, h, T, d_v))
        for b in range(B):
            for i in range(h):
                for t in range(T):
                    s = np.array([Q[b, i, t].dot(K[b, i, j]) for j in range(S)], dtype=float)
                    if mask is not None:
                        hide = np.broadcast_to(mask, (B, h, T, S))[b, i, t]
                        if hide.all():
                            continue
                        s[hide] = -np.inf
                    e = np.exp(s - s.max())
                    self.attention_weights[b, i, t] = e / e.sum()
                    out[b, i, t] = self.attention_weights[b, i, t] @ V[b, i]
        return out

#: einsum_scale_d_k | scale_d_k
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        d = Q.shape[3]
        logits = np.einsum("bhtd,bhsd->bhts", Q, K) / d
        if mask is not None:
            logits[np.broadcast_to(mask, logits.shape)] = -np.inf
        self.attention_weights = softmax(logits)
        return np.einsum("bhts,bhsd->bhtd", self.attention_weights, V)

#: float32_scale_of_all_heads | scale_d_model
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        Q, K, V = (a.astype(np.float32) for a in (Q, K, V))
        full_width = Q.shape[1] * Q.shape[3]
        logits = np.einsum("...td,...sd->...ts", Q, K) * np.float32(full_width ** -0.5)
        logits = logits if mask is None else np.where(mask, np.float32(-np.inf), logits)
        self.attention_weights = softmax(logits)
        return np.einsum("...ts,...sd->...td", self.attention_weights, V)

#: prescaled_the_wrong_way | scale_inverted
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        temperature = 1 / np.sqrt(K.shape[-1])
        q = Q / temperature
        logits = np.einsum("bhik,bhjk->bhij", q, K)
        if mask is not None:
            logits = np.where(mask, -np.inf, logits)
        self.attention_weights = w = softmax(logits)
        return np.matmul(w, V)

#: columns_sum_to_one | softmax_over_queries
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        logits = np.einsum("bhik,bhjk->bhij", Q, K) * Q.shape[-1] ** -0.5
        if mask is not None:
            logits = np.where(mask, -np.inf, logits)
        flipped = np.transpose(logits, (0, 1, 3, 2))
        self.attention_weights = np.transpose(softmax(flipped), (0, 1, 3, 2))
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: zero_the_weights_late | mask_after_softmax
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        w = softmax(np.einsum("bhik,bhjk->bhij", Q, K) * Q.shape[-1] ** -0.5)
        if mask is not None:
            w[np.broadcast_to(mask, w.shape)] = 0.0
        self.attention_weights = w
        return np.einsum("bhij,bhjk->bhik", w, V)

#: where_arguments_swapped | mask_inverted
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) * Q.shape[-1] ** -0.5
        z = z if mask is None else np.where(mask, z, -np.inf)
        self.attention_weights = softmax(z)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: result_thrown_away | mask_ignored
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) * Q.shape[-1] ** -0.5
        if mask is not None:
            np.where(mask, -np.inf, z)
        self.attention_weights = softmax(z)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: minus_a_billion_times_mask | hidden_row_uniform
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) * np.float32(Q.shape[-1] ** -0.5)
        if mask is not None:
            z = np.where(mask, np.float32(-1e9), z)
        z = np.exp(z - z.max(axis=-1, keepdims=True))
        self.attention_weights = z / z.sum(axis=-1, keepdims=True)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: nan_for_the_blind | hidden_row_nan
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) / math.sqrt(Q.shape[-1])
        if mask is not None:
            z = np.where(mask, -np.inf, z)
        z = np.exp(z - np.amax(z, axis=3)[..., None])
        self.attention_weights = z / np.sum(z, axis=3)[..., None]
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: wrong_axis_in_own_softmax | softmax_wrong_axis
def softmax(x, axis=-1):
    shifted = np.asarray(x, dtype=np.float64) - np.max(x, axis=0)
    powers = np.power(np.e, shifted)
    return powers / np.sum(powers, axis=0)

#: one_maximum_for_all_rows | softmax_one_maximum
def softmax(x, axis=-1):
    powers = np.exp(np.subtract(x, np.amax(x)))
    return powers / powers.sum(axis, keepdims=True)

#: minus_a_billion_added | hidden_row_uniform
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) / np.sqrt(Q.shape[-1])
        if mask is not None:
            z = z + mask * -1e9
        self.attention_weights = softmax(z)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: naive_softmax | softmax_overflows
def softmax(x, axis=-1):
    powers = np.power(np.e, x)
    total = np.expand_dims(powers.sum(axis), axis)
    return np.divide(powers, total)

class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) / math.sqrt(Q.shape[-1])
        if mask is not None:
            z = np.where(mask, -np.inf, z)
        top = z.max(axis=-1, keepdims=True)
        e = np.exp(z - np.where(np.isinf(top), 0, top))
        total = e.sum(axis=-1, keepdims=True)
        self.attention_weights = np.divide(e, total, out=np.zeros_like(e), where=total > 0)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: two_at_once | no_scaling mask_inverted
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K)
        if mask is not None:
            z = np.where(~mask, -np.inf, z)
        self.attention_weights = softmax(z)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: two_more_at_once | scale_d_k mask_after_softmax
class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        w = softmax(np.einsum("bhik,bhjk->bhij", Q / Q.shape[-1], K))
        w = w if mask is None else w * np.logical_not(mask)
        self.attention_weights = w
        return np.einsum("bhij,bhjk->bhik", w, V)

#: in_two_places | softmax_not_divided scale_d_v
def softmax(x, axis=-1):
    top = np.max(x, axis=axis, keepdims=True)
    return np.exp(x - np.where(np.isinf(top), 0, top))

class ScaledDotProductAttention:
    def forward(self, Q, K, V, mask=None):
        z = np.einsum("bhik,bhjk->bhij", Q, K) / math.sqrt(V.shape[-1])
        z = z if mask is None else np.where(mask, -np.inf, z)
        self.attention_weights = softmax(z)
        return np.einsum("bhij,bhjk->bhik", self.attention_weights, V)

#: jacobian_of_the_diagonal | softmax_backward_diagonal
class ScaledDotProductAttention:
    def backward(self, dout):
        Q, K, V, A, A_dropped = self.take()
        w = np.einsum("bhid,bhjd->bhij", dout, V) * (A - A ** 2)
        w /= math.sqrt(K.shape[-1])
        return (np.einsum("bhij,bhjd->bhid", w, K), np.einsum("bhij,bhid->bhjd", w, Q),
                np.einsum("bhij,bhid->bhjd", A_dropped, dout))

#: root_forgotten_on_the_way_back | scale_missing_in_backward
class ScaledDotProductAttention:
    def backward(self, dout):
        Q, K, V, A, A_dropped = self.take()
        w = np.einsum("bhid,bhjd->bhij", dout, V)
        w = np.einsum("bhij,bhijk->bhik", w, A[..., None] * np.eye(A.shape[-1]) - A[..., None] * A[..., None, :])
        return (np.einsum("bhij,bhjd->bhid", w, K), np.einsum("bhij,bhid->bhjd", w, Q),
                np.einsum("bhij,bhid->bhjd", A_dropped, dout))
