"""Three hints for each part of each exercise: a question, the idea, the first line."""

HINTS = {
    "softmax": (
        "What happens to exp(x) when x is 1000, and which number could you take away from every x without changing "
        "the shares?",
        "exp(x - c) / sum(exp(x - c)) is the same for every c. With c the maximum along axis nothing overflows. "
        "keepdims=True makes the maximum and the sum line up with x.",
        "e = np.exp(x - x.max(axis=axis, keepdims=True))"),
    "ScaledDotProductAttention.forward": (
        "One number says how well query t fits key s. Where does it stand in Q K^T, and along which axis must the "
        "shares sum to 1?",
        "Scores, scale, mask, softmax, weighted mean, in this order. Hidden scores become minus infinity before "
        "softmax, so that the visible keys share everything. A row of nothing but minus infinity needs a second "
        "thought.",
        "scores = Q @ K.swapaxes(-1, -2) / math.sqrt(Q.shape[-1])"),
    "ScaledDotProductAttention.backward": (
        "forward was scores, scale, softmax, dropout, product with V. Which of them comes first on the way back?",
        "A product C = A B gives dA = dC B^T and dB = A^T dC. Softmax gives A * (dA - sum(dA * A)) along the keys. "
        "The scale that stood in forward stands in backward.",
        "dA = self.dropout.backward(dout @ V.swapaxes(-1, -2))"),
    "MultiHeadAttention.split_heads": (
        "In a row of d_model numbers, which ones belong to head 0? Which axes does x have after you cut that row into"
        " h pieces?",
        "reshape moves no number: use it only to cut the last axis in two, (B, T, h, d_k). A transpose then brings the "
        "heads in front of the positions.",
        "x = x.reshape(B, T, self.n_heads, self.d_k)"),
    "MultiHeadAttention.merge_heads": (
        "What were the two steps of split_heads, and in which order do you undo them?",
        "First the transpose, so that the h pieces of one position lie side by side again, then the reshape.",
        "x = x.transpose(0, 2, 1, 3)"),
    "MultiHeadAttention.forward": (
        "Which of query, key and value meets which weight, and where do heads begin and end?",
        "Project all three, split them, let self.attention work on the heads, merge, and mix the heads with W_O.",
        "Q = self.split_heads(query @ self.W_Q)"),
    "MultiHeadAttention.backward": (
        "For y = x W, what is the gradient of x, and what is the gradient of W when many rows x share it?",
        "dx = dy W^T and dW = x^T dy, summed over all rows. Go back line by line: W_O, merge, attention, split, "
        "projections.",
        "self.dW_O += rows(context).T @ rows(dout)"),
    "sinusoidal_table": (
        "How many different angles does a row have, and which columns share one?",
        "Make angles (max_len, ceil(d_model / 2)) first, position / 10000^(2i / d_model). Their sines fill the "
        "columns 0, 2, 4, ..., their cosines the columns 1, 3, 5, ..., of which an odd width has one fewer.",
        "angles = np.arange(max_len)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)"),
    "TokenEmbedding.forward": (
        "What does self.embedding[tokens] give for tokens of shape (B, T)? How large are its numbers beside sines and"
        " cosines?",
        "Indexing with an array of ids looks all rows up at once. 3.4 multiplies them by sqrt(d_model).",
        "return self.embedding[tokens] * ..."),
    "PositionalEncoding.forward": (
        "Which rows of self.pe belong to T positions that begin at start? Must each sequence of the batch get rows of"
        " its own?",
        "A slice (T, d_model) broadcasts over the batch. Check the end of the slice against the table before adding; "
        "the sum goes through self.dropout.",
        "end = start + x.shape[1]"),
    "TokenEmbedding.backward": (
        "If token 3 stands at four places, how many gradients reach row 3?",
        "All of them add up. a[i] += b reads each row once, so repeated ids lose all but one; np.add.at adds every "
        "time. The factor of forward stands here too.",
        "np.add.at(self.dembedding, tokens.reshape(-1), ...)"),
    "PositionalEncoding.backward": (
        "y = dropout(x + constant). What of dy reaches x?",
        "A constant has no gradient and a sum passes its own on. Dropout hides in backward what it hid in forward.",
        "return self.dropout.backward(...)"),
    "LayerNorm.forward": (
        "Over which axis is the mean of one position taken, and how does the result keep a shape that x can be "
        "subtracted by?",
        "Centre, mean of squares, root with eps inside, divide; gamma scales and beta shifts. Means over the last "
        "axis with keepdims=True.",
        "centred = x - x.mean(axis=-1, keepdims=True)"),
    "AddNorm.forward": (
        "What is added first, what is normalised, and where is dropout in LayerNorm(x + Dropout(Sublayer(x)))?",
        "Dropout acts on the sublayer's output alone. super().forward is layer norm.",
        "return super().forward(x + ...)"),
    "FeedForward.forward": (
        "What would be left of the two layers if nothing stood between them?",
        "x W1 + b1, then max(0, .), then self.dropout, then W2 and b2.",
        "hidden = np.maximum(x @ self.W1 + self.b1, 0)"),
    "EncoderBlock.forward": (
        "What does self-attention take as query, key and value? What does norm1 take besides the sublayer's output?",
        "Two lines: attention with norm1, then feed-forward with norm2. The second line starts from the result of the"
        " first.",
        "x = self.norm1(x, self.self_attention(x, x, x, mask))"),
    "LayerNorm.backward": (
        "If you nudge one feature of x, which three things change on the way to x_hat?",
        "Itself, the mean, the variance: three terms, and the last two are means over the features. dx sums to 0 when"
        " all three are there.",
        "dx_hat = dout * self.gamma"),
    "AddNorm.backward": (
        "Where does the gradient of a sum go?",
        "To both sides. On the sublayer's side it passes through dropout as well.",
        "dx = super().backward(dout)"),
    "FeedForward.backward": (
        "Which entries of the hidden layer let a gradient through?",
        "Those that were positive. Before and after it stand two linear layers: dx = dy W^T, dW = x^T dy, db = sum of"
        " dy.",
        "self.dW2 += rows(dropped).T @ rows(dout)"),
    "EncoderBlock.backward": (
        "How many ways did x go in the first line of forward, and how many gradients come back?",
        "norm2, feed-forward, norm1, attention, in this order. Each norm gives back two gradients, attention three; "
        "whatever belongs to the same x is added.",
        "dx, dsublayer = self.norm2.backward(dout)"),
    "create_padding_mask": (
        "Attention weights are (B, h, T, S). On which of these axes does padding lie when it is to be hidden from "
        "everyone?",
        "Compare the ids with pad_token, then put axes of length 1 where the mask is the same for all heads and all "
        "queries.",
        "return (tokens == pad_token)[:, None, ...]"),
    "create_causal_mask": (
        "Row t, column s: for which s is the key in the future of the query, and is s = t one of them?",
        "Everything strictly above the diagonal. np.triu with k says where it begins.",
        "np.triu(np.ones((seq_len, seq_len), dtype=bool), k=...)"),
    "shift_target": (
        "After reading the start token alone, which token is the decoder asked for?",
        "It reads all but the last token and predicts all but the first: two slices of the same array.",
        "return tgt[:, :-1], ..."),
    "DecoderBlock.forward": (
        "In the second attention, who asks and who answers?",
        "Three lines, each norm(x, sublayer(...)). The query comes from the decoder, key and value from the encoder; "
        "each attention has a mask of its own.",
        "x = self.norm1(x, self.self_attention(x, x, x, self_mask))"),
    "Transformer.encode": (
        "What happens to token ids before the first block, and what does the second block read?",
        "Embedding, positions, then a loop in which x is replaced by what the block makes of it.",
        "x = self.positional_encoding(self.src_embedding(src))"),
    "Transformer.decode": (
        "Which of its inputs changes from block to block, and which stays?",
        "Like encode, with the target's layers; every block gets the same encoder_output and both masks.",
        "x = self.tgt_positional_encoding(self.tgt_embedding(tgt))"),
    "Transformer.forward": (
        "Who reads the source, who reads the target, and which mask goes where?",
        "encode, decode, product with output_projection. Source padding is hidden in the encoder and in cross-"
        "attention.",
        "encoder_output = self.encode(src, src_mask)"),
    "DecoderBlock.backward": (
        "encoder_output was used twice in one line. How many gradients does it get?",
        "norm3, feed-forward, norm2, cross-attention, norm1, self-attention. dkey + dvalue of cross-attention is the "
        "encoder's share, dquery belongs to x.",
        "dx, dsublayer = self.norm3.backward(dout)"),
}
