# Wrong answers to exercise 4; see wrong_1.py.

#: like_a_tutorial | variance_n_minus_1 eps_outside_root
class LayerNorm:
    def forward(self, x):
        return self.gamma * (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True, ddof=1) + self.eps) + self.beta

#: std_plus_eps | eps_outside_root
class LayerNorm:
    def forward(self, x):
        m, s = np.mean(x, axis=-1)[..., None], np.std(x, axis=-1)[..., None]
        return np.multiply(self.gamma, np.divide(x - m, s + self.eps)) + self.beta

#: sample_variance | variance_n_minus_1
class LayerNorm:
    def forward(self, x):
        m = np.einsum("...d->...", x)[..., None] / x.shape[-1]
        v = np.var(x, axis=-1, ddof=1, keepdims=True)
        return self.gamma * (x - m) * (v + self.eps) ** -0.5 + self.beta

#: statistics_per_feature | norm_over_wrong_axis
class LayerNorm:
    def forward(self, x):
        z = (x - x.mean(1)[:, None]) / np.sqrt(x.var(1)[:, None] + self.eps)
        return z * self.gamma + self.beta

#: shift_forgotten | beta_missing
class LayerNorm:
    def forward(self, x):
        z = np.apply_along_axis(lambda row: (row - row.mean()) / math.sqrt(row.var() + self.eps), -1, x)
        return z * self.gamma

import math

#: norm_of_the_sublayer | norm_before_sum
class AddNorm:
    def forward(self, x, sublayer_output):
        return LayerNorm.forward(self, self.dropout(sublayer_output)) + x

#: nothing_added | norm_without_residual
class AddNorm:
    def forward(self, x, sublayer_output):
        kept = self.dropout(sublayer_output)
        return LayerNorm.forward(self, kept)

#: dropout_on_both | dropout_in_wrong_place
class AddNorm:
    def forward(self, x, sublayer_output):
        total = np.add(x, sublayer_output)
        return LayerNorm.forward(self, self.dropout(total))

#: linear_twice | relu_missing
class FeedForward:
    def forward(self, x):
        inside = np.einsum("...d,df->...f", x, self.W1) + self.b1
        return np.einsum("...f,fd->...d", self.dropout(inside), self.W2) + self.b2

#: smooth_relu | another_activation
class FeedForward:
    def forward(self, x):
        inside = np.einsum("...d,df->...f", x, self.W1) + self.b1
        inside = 1 / (1 + np.exp(-inside)) * inside
        return np.einsum("...f,fd->...d", self.dropout(inside), self.W2) + self.b2

#: clipped_at_the_end | relu_after_second
class FeedForward:
    def forward(self, x):
        inside = x.dot(self.W1) + self.b1[None, None]
        y = self.dropout(inside).dot(self.W2) + self.b2[None, None]
        return np.where(y > 0, y, 0)

#: one_bias | second_bias_missing
class FeedForward:
    def forward(self, x):
        inside = np.clip(x.dot(self.W1) + self.b1, 0, None)
        return self.dropout(inside).dot(self.W2)

#: one_norm_for_all | norm1_twice
class EncoderBlock:
    def forward(self, x, mask=None):
        for sublayer in (lambda y: self.self_attention(y, y, y, mask=mask), self.feed_forward):
            x = self.norm1(x, sublayer(x))
        return x

#: modern_order | pre_norm
class EncoderBlock:
    def forward(self, x, mask=None):
        def norm(layer, y):
            z = y - y.mean(-1, keepdims=True)
            return layer.gamma * z / np.sqrt((z ** 2).mean(-1, keepdims=True) + layer.eps) + layer.beta
        y = norm(self.norm1, x)
        x = x + self.self_attention(y, y, y, mask)
        return x + self.feed_forward(norm(self.norm2, x))

#: back_to_the_input | residual_from_wrong_point
class EncoderBlock:
    def forward(self, x, mask=None):
        attended = self.norm1(sublayer_output=self.self_attention(x, x, x, mask=mask), x=x)
        return self.norm2(x, self.feed_forward(attended))

#: upside_down | feed_forward_first
class EncoderBlock:
    def forward(self, x, mask=None):
        y = self.norm1(x, self.feed_forward(x))
        z = self.self_attention(query=y, key=y, value=y, mask=mask)
        return self.norm2(y, z)

#: two_classes | gamma_missing block_mask_not_passed
class LayerNorm:
    def forward(self, x):
        m, v = np.mean(x, -1, keepdims=True), np.var(x, -1, keepdims=True)
        return self.beta + (x - m) / np.sqrt(v + self.eps)

class EncoderBlock:
    def forward(self, x, mask=None):
        a = self.norm1(x, self.self_attention(*3 * [x]))
        return self.norm2(a, self.feed_forward(a))

#: constants_of_x | norm_backward_direct_path_only
class LayerNorm:
    def backward(self, dout):
        z, r = self.take()
        self.dgamma += np.einsum("btd,btd->d", dout, z)
        self.dbeta += np.einsum("btd->d", dout)
        return np.einsum("btd,d,bto->btd", dout, self.gamma, r)

#: all_through | relu_missing_in_backward
class FeedForward:
    def backward(self, dout):
        x, hidden, dropped = self.take()
        self.dW2 += np.einsum("btf,btd->fd", dropped, dout)
        self.db2 += np.einsum("btd->d", dout)
        g = self.dropout.backward(np.einsum("btd,fd->btf", dout, self.W2))
        self.dW1 += np.einsum("btd,btf->df", x, g)
        self.db1 += np.einsum("btf->f", g)
        return np.einsum("btf,df->btd", g, self.W1)
