# Wrong answers to exercise 3; see wrong_1.py.

#: loops_with_doubled_index | exponent_doubled
def sinusoidal_table(max_len, d_model):
    table = np.zeros((max_len, d_model))
    for pos in range(max_len):
        for i in range(0, d_model, 2):
            angle = pos / math.pow(10000, 2 * i / d_model)
            table[pos, i] = math.sin(angle)
            if i + 1 < d_model:
                table[pos, i + 1] = math.cos(angle)
    return table

#: first_sines_then_cosines | sin_cos_halves
def sinusoidal_table(max_len, d_model):
    rates = np.exp(-math.log(10000.0) * np.arange(0, d_model, 2) / d_model)
    angles = np.outer(np.arange(max_len), rates)
    return np.hstack([np.sin(angles), np.cos(angles)])[:, :d_model]

#: as_many_cosines_as_sines | odd_width_does_not_fit
def sinusoidal_table(max_len, d_model):
    table = np.zeros((max_len, d_model))
    position = np.arange(max_len, dtype=float)[:, np.newaxis]
    rates = np.exp(-np.arange(0, d_model, 2) * np.log(10000.0) / d_model)
    table[:, ::2] = np.sin(position * rates)
    table[:, 1::2] = np.cos(position * rates)
    return table

#: table_stops_and_three_more | odd_width_does_not_fit start_ignored no_dropout_on_the_sum end_not_checked
def sinusoidal_table(max_len, d_model):
    table = np.zeros((max_len, d_model))
    angles = np.outer(np.arange(max_len), 1 / 10000.0 ** (np.arange(0, d_model, 2) / d_model))
    table[:, ::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table

class PositionalEncoding:
    def forward(self, x, start=0):
        return x + self.pe[:x.shape[1]]

#: each_column_on_its_own | cosine_own_index
def sinusoidal_table(max_len, d_model):
    pos = np.arange(max_len).reshape(-1, 1)
    column = np.arange(d_model).reshape(1, -1)
    angles = pos / np.power(10000.0, column / d_model)
    return np.where(column % 2 == 0, np.sin(angles), np.cos(angles))

#: a_thousand | wrong_base
def sinusoidal_table(max_len, d_model):
    rates = np.array([1000.0 ** (-(c - c % 2) / d_model) for c in range(d_model)])
    angles = np.outer(np.arange(max_len), rates)
    return np.where(np.arange(d_model) % 2, np.cos(angles), np.sin(angles))

#: counting_from_one | positions_from_one
def sinusoidal_table(max_len, d_model):
    rates = np.array([10000.0 ** (-(c - c % 2) / d_model) for c in range(d_model)])
    return np.array([[(math.cos if c % 2 else math.sin)(p * r) for c, r in enumerate(rates)]
                     for p in range(1, max_len + 1)])

#: cosine_first | sin_cos_swapped
def sinusoidal_table(max_len, d_model):
    rates = np.exp(np.array([-(c - c % 2) / d_model * np.log(1e4) for c in range(d_model)]))
    phase = np.outer(np.arange(max_len), rates)
    return np.where(np.arange(d_model) % 2, np.sin(phase), np.cos(phase)).astype(np.float32)

#: degrees_for_radians | degrees
def sinusoidal_table(max_len, d_model):
    rates = np.exp(np.array([-(c - c % 2) / d_model * np.log(1e4) for c in range(d_model)]))
    phase = np.outer(np.arange(max_len), rates) * np.pi / 180
    return np.where(np.arange(d_model) % 2, np.cos(phase), np.sin(phase))

#: unscaled_lookup | embedding_not_scaled
class TokenEmbedding:
    def forward(self, tokens):
        return np.take(self.embedding, tokens, axis=0)

#: one_hot_and_divided | embedding_divided
class TokenEmbedding:
    def forward(self, tokens):
        one_hot = np.eye(len(self.embedding))[tokens]
        return one_hot @ (self.embedding / np.sqrt(self.embedding.shape[1]))

#: side_by_side | positions_concatenated
class PositionalEncoding:
    def forward(self, x, start=0):
        rows = self.pe[start:start + x.shape[1]]
        if len(rows) < x.shape[1]:
            raise ValueError("too long")
        return self.dropout(np.dstack([x, np.repeat(rows[None], len(x), axis=0)]))

#: decoding_at_zero | start_ignored
class PositionalEncoding:
    def forward(self, x, start=0):
        if x.shape[1] > self.pe.shape[0]:
            raise ValueError("too long")
        y = np.array(x, dtype=float)
        for t in range(x.shape[1]):
            y[:, t] += self.pe[t]
        return self.dropout(y)

#: no_look_at_the_end | end_not_checked
class PositionalEncoding:
    def forward(self, x, start=0):
        return self.dropout(x + self.pe[start:][:x.shape[1]])

#: same_rows_for_a_sequence | positions_on_batch_axis end_not_checked
class PositionalEncoding:
    def forward(self, x, start=0):
        return self.dropout(x + self.pe[start:start + len(x)][:, np.newaxis])

#: dropout_on_the_words | dropout_before_the_sum
class PositionalEncoding:
    def forward(self, x, start=0):
        if start + x.shape[1] > self.pe.shape[0]:
            raise ValueError("too long")
        rows = self.pe[range(start, start + x.shape[1])]
        return np.stack([words + rows for words in self.dropout(x)])

#: two_in_one_table | sin_cos_swapped positions_from_one
def sinusoidal_table(max_len, d_model):
    rates = np.exp(np.array([-(c - c % 2) / d_model * np.log(1e4) for c in range(d_model)]))
    phase = np.outer(np.arange(max_len) + 1, rates)
    return np.where(np.arange(d_model) % 2, np.sin(phase), np.cos(phase))

#: in_two_classes | embedding_times_d_model wrong_base
def sinusoidal_table(max_len, d_model):
    rates = np.array([1e5 ** (-(c - c % 2) / d_model) for c in range(d_model)])
    phase = np.outer(np.arange(max_len), rates)
    return np.where(np.arange(d_model) % 2, np.cos(phase), np.sin(phase))

class TokenEmbedding:
    def forward(self, tokens):
        return np.array([[self.embedding[t] * self.embedding.shape[1] for t in line] for line in tokens])

#: last_one_wins | repeated_tokens_lost
class TokenEmbedding:
    def backward(self, dout):
        ids, = self.take()
        flat = dout.reshape(-1, dout.shape[-1]) * np.sqrt(dout.shape[-1])
        old = self.dembedding.copy()
        for token, gradient in zip(ids.ravel(), flat):
            self.dembedding[token] = old[token] + gradient
