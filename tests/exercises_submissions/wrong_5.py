# Wrong answers to exercise 5; see wrong_1.py.

#: queries_blinded | padding_on_query_axis
def create_padding_mask(tokens, pad_token=0):
    return np.expand_dims(np.equal(tokens, pad_token), (1, 3))

#: real_tokens_hidden | padding_inverted
def create_padding_mask(tokens, pad_token=0):
    return np.array([[[[bool(t - pad_token) for t in line]]] for line in tokens])

#: zero_written_in | padding_ignores_pad_token
def create_padding_mask(tokens, pad_token=0):
    return np.logical_not(tokens.astype(bool)).reshape(len(tokens), 1, 1, -1)

#: compare_greater_equal | causal_hides_itself
def create_causal_mask(seq_len):
    t = np.arange(seq_len)
    return (t[None, :] >= t[:, None])[None, None]

#: one_step_too_far | causal_sees_next
def create_causal_mask(seq_len):
    return np.array([[[[s - t > 1 for s in range(seq_len)] for t in range(seq_len)]]])

#: rows_and_columns_confused | causal_wrong_triangle
def create_causal_mask(seq_len):
    t = np.arange(seq_len)
    return np.less.outer(t, t).T[np.newaxis, np.newaxis]

#: allowed_is_true | causal_inverted
def create_causal_mask(seq_len):
    allowed = np.tri(seq_len).astype(bool)
    return np.broadcast_to(allowed, (1, 1, seq_len, seq_len))

#: same_in_and_out | target_not_shifted
def shift_target(tgt):
    reads = np.delete(tgt, -1, axis=1)
    return reads, reads.copy()

#: two_steps | target_shifted_twice
def shift_target(tgt):
    length = tgt.shape[1]
    return tgt[:, :length - 2], tgt[:, 2:length]

#: the_wrong_memory | memory_ignored
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        a = self.norm1(x, self.self_attention(query=x, key=x, value=x, mask=self_mask))
        return self.norm3(a, self.feed_forward(a))

#: asking_the_wrong_way | cross_query_from_encoder
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        a = self.norm1(x, self.self_attention(query=x, key=x, value=x, mask=self_mask))
        b = self.norm2(a, self.cross_attention(query=encoder_output, key=a, value=a, mask=cross_mask))
        return self.norm3(b, self.feed_forward(b))

#: keys_at_home | cross_keys_from_decoder
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        a = self.norm1(x, self.self_attention(query=x, key=x, value=x, mask=self_mask))
        b = self.norm2(a, self.cross_attention(query=a, key=a, value=encoder_output, mask=cross_mask))
        return self.norm3(b, self.feed_forward(b))

#: masks_mixed_up | decoder_masks_swapped
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        steps = ((self.norm1, self.self_attention, None, cross_mask), (self.norm2, self.cross_attention, encoder_output, self_mask))
        for norm, attention, memory, mask in steps:
            source = x if memory is None else memory
            x = norm(x, attention(x, source, source, mask))
        return self.norm3(x, self.feed_forward(x))

#: norm_two_again | decoder_norm_reused
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        a = self.norm1(x, self.self_attention(query=x, key=x, value=x, mask=self_mask))
        b = self.norm2(a, self.cross_attention(query=a, key=encoder_output, value=encoder_output, mask=cross_mask))
        return self.norm2(b, self.feed_forward(b))

#: a_bag_of_words | encoder_without_positions
class Transformer:
    def encode(self, src, src_mask=None):
        hidden = [self.src_embedding(src)]
        for layer in self.encoder_layers:
            hidden.append(layer(hidden[-1], mask=src_mask))
        return hidden[-1]

#: only_the_last_block | encoder_blocks_not_chained
class Transformer:
    def encode(self, src, src_mask=None):
        embedded = self.positional_encoding(self.src_embedding(src))
        return [layer(embedded, mask=src_mask) for layer in self.encoder_layers][-1]

#: first_block_is_enough | decoder_first_layer_only
class Transformer:
    def decode(self, tgt, encoder_output, tgt_mask=None, cross_mask=None):
        y = self.tgt_positional_encoding(self.tgt_embedding(tgt))
        return self.decoder_layers[0](y, encoder_output, self_mask=tgt_mask, cross_mask=cross_mask)

#: softmax_inside | probabilities_for_logits
class Transformer:
    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        z = np.einsum("btd,dv->btv", self.decode(tgt, self.encode(src, src_mask), tgt_mask, src_mask), self.output_projection)
        e = np.exp(z - z.max(axis=2)[:, :, None])
        return e / e.sum(axis=2)[:, :, None]

#: the_answer_in_the_encoder | encoder_fed_target
class Transformer:
    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        memory = self.encode(src=tgt, src_mask=src_mask)
        y = self.decode(tgt=tgt, encoder_output=memory, tgt_mask=tgt_mask, cross_mask=src_mask)
        return np.einsum("btd,dv->btv", y, self.output_projection)

#: padding_seen_by_the_decoder | source_mask_not_in_cross
class Transformer:
    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        memory = self.encode(src=src, src_mask=src_mask)
        y = self.decode(tgt=tgt, encoder_output=memory, tgt_mask=tgt_mask)
        return np.einsum("btd,dv->btv", y, self.output_projection)

#: two_functions | causal_hides_itself padding_inverted
def create_padding_mask(tokens, pad_token=0):
    return np.not_equal(tokens, pad_token)[:, np.newaxis, np.newaxis]

def create_causal_mask(seq_len):
    return ~np.tri(seq_len, k=-1, dtype=bool)[None, None]

#: block_and_model | memory_ignored no_logits
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        a = self.norm1(x, self.self_attention(query=x, key=x, value=x, mask=self_mask))
        return self.norm3(a, self.feed_forward(a))

class Transformer:
    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        memory = self.encode(src, src_mask)
        return self.decode(tgt, memory, tgt_mask, cross_mask=src_mask)

#: keys_alone | dmemory_without_values
class DecoderBlock:
    def backward(self, dout):
        g3, s3 = self.norm3.backward(dout)
        g2, s2 = self.norm2.backward(g3 + self.feed_forward.backward(s3))
        q, memory, _ = self.cross_attention.backward(s2)
        g1, s1 = self.norm1.backward(g2 + q)
        return g1 + sum(self.self_attention.backward(s1)), memory

#: what_a_tutorial_has | mask_of_numbers causal_axes_missing
def create_causal_mask(seq_len):
    return np.triu(np.ones((seq_len, seq_len)), 1)

#: two_in_one_line | cross_keys_from_decoder decoder_cross_mask_missing
class DecoderBlock:
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        x = self.norm1(x, self.self_attention(x, x, x, mask=self_mask))
        mixed = self.cross_attention(query=x, key=x, value=encoder_output)
        x = self.norm2(x, mixed)
        return self.norm3(x, self.feed_forward(x))
