# Wrong answers to exercise 2; see wrong_1.py.

#: fortran_thinking | split_without_transpose
class MultiHeadAttention:
    def split_heads(self, x):
        B, length, d_model = x.shape
        pieces = [sequence.ravel().reshape(self.n_heads, length, self.d_k) for sequence in x]
        return np.stack(pieces)

#: straight_back | merge_without_transpose
class MultiHeadAttention:
    def merge_heads(self, x):
        return np.stack([heads.ravel().reshape(heads.shape[1], -1) for heads in x])

#: every_hth_feature | heads_interleaved
class MultiHeadAttention:
    def split_heads(self, x):
        return np.stack([x[:, :, i::self.n_heads] for i in range(self.n_heads)], axis=1)

    def merge_heads(self, x):
        B, h, T, d_k = x.shape
        out = np.empty((B, T, h * d_k), x.dtype)
        for i in range(h):
            out[:, :, i::h] = x[:, i]
        return out

#: heads_last_but_one | heads_after_positions
class MultiHeadAttention:
    def split_heads(self, x):
        return np.stack(np.split(x, self.n_heads, axis=-1), axis=2)

#: no_last_product | no_output_projection
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split_heads(np.einsum("btd,de->bte", x, W)) for x, W in
                   ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        heads = self.attention(q, k, v, mask)
        return np.concatenate([heads[:, i] for i in range(self.n_heads)], axis=-1)

#: like_a_linear_layer_elsewhere | projections_transposed
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split_heads(np.einsum("btd,ed->bte", x, W)) for x, W in
                   ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        heads = self.attention(q, k, v, mask)
        return np.einsum("btd,ed->bte", np.concatenate(list(heads.transpose(1, 0, 2, 3)), axis=-1), self.W_O)

#: only_the_last_one_transposed | output_projection_transposed
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        heads = self.attention(self.split_heads(query.dot(self.W_Q)), self.split_heads(key.dot(self.W_K)),
                               self.split_heads(value.dot(self.W_V)), mask)
        return sum(np.einsum("btd,ed->bte", heads[:, i], self.W_O[:, i * self.d_k:(i + 1) * self.d_k])
                   for i in range(self.n_heads))

#: copy_and_paste | key_with_w_q
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        projected = []
        for x, W in ((query, self.W_Q), (key, self.W_Q), (value, self.W_V)):
            projected.append(self.split_heads(np.dot(x, W)))
        return np.dot(self.merge_heads(self.attention(*projected, mask=mask)), self.W_O)

#: one_matrix_for_both | one_projection_for_k_and_v
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        both = np.stack([key, value]) @ self.W_K
        k, v = self.split_heads(both[0]), self.split_heads(both[1])
        return np.dot(self.merge_heads(self.attention(self.split_heads(query @ self.W_Q), k, v, mask)), self.W_O)

#: wrong_order_of_arguments | keys_and_values_swapped
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        q, k, v = (np.stack(np.split(x @ W, self.n_heads, axis=-1), axis=1) for x, W in
                   ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        return np.concatenate(list(self.attention(q, v, k, mask).swapaxes(0, 1)), axis=-1) @ self.W_O

#: self_attention_only | query_for_key
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        x = query.astype(np.float64)
        q, k, v = (np.stack(np.split(x @ W, self.n_heads, axis=-1), axis=1) for W in (self.W_Q, self.W_K, self.W_V))
        return np.concatenate(list(self.attention(q, k, v, mask).swapaxes(0, 1)), axis=-1) @ self.W_O

#: the_mask_stays_outside | mask_not_passed_on
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        q, k, v = (np.stack(np.split(x @ W, self.n_heads, axis=-1), axis=1) for x, W in
                   ((query, self.W_Q), (key, self.W_K), (value, self.W_V)))
        return np.concatenate(list(self.attention(q, k, v).swapaxes(0, 1)), axis=-1) @ self.W_O

#: two_at_once | split_without_transpose no_output_projection
class MultiHeadAttention:
    def split_heads(self, x):
        return x.reshape((len(x), self.n_heads, -1, self.d_k))

    def forward(self, query, key, value, mask=None):
        heads = self.attention(self.split_heads(query @ self.W_Q), self.split_heads(key @ self.W_K),
                               self.split_heads(value @ self.W_V), mask)
        return np.concatenate(list(heads.swapaxes(0, 1)), axis=-1)

#: two_in_one_line | key_with_w_q mask_not_passed_on
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None):
        q, k, v = (self.split_heads(np.tensordot(x, W, 1)) for x, W in
                   ((query, self.W_Q), (key, self.W_Q), (value, self.W_V)))
        return np.tensordot(self.merge_heads(self.attention(q, k, v)), self.W_O, 1)

#: assigned_not_added | mha_gradients_overwritten
class MultiHeadAttention:
    def backward(self, dout):
        query, key, value, context = self.take()
        self.dW_O[:] = np.einsum("btd,bte->de", context, dout)
        grads = self.attention.backward(self.split_heads(np.einsum("bte,de->btd", dout, self.W_O)))
        dq, dk, dv = (np.concatenate(list(g.swapaxes(0, 1)), axis=-1) for g in grads)
        self.dW_Q[:] = np.einsum("btd,bte->de", query, dq)
        self.dW_K[:] = np.einsum("btd,bte->de", key, dk)
        self.dW_V[:] = np.einsum("btd,bte->de", value, dv)
        return dq @ self.W_Q.T, dk @ self.W_K.T, dv @ self.W_V.T
