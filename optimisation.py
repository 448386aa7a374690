"""What is minimised and how: the loss with label smoothing [5.4], Adam and its learning rate [5.3]."""

import numpy as np

from implementation import check_tokens, row_max, row_sum, rows


def log_softmax(logits):
    """log(softmax(logits)) along the last axis, without ever taking the logarithm of 0."""
    shifted = logits - row_max(logits)
    return shifted - np.log(row_sum(np.exp(shifted)))


class CrossEntropyLoss:
    """The mean over scored positions of -sum_v q_v log p_v, p = softmax(logits).  [5.4]

    q is 1 - eps on the target plus eps / V on each of the V classes. logits are (..., V), targets (...) integers.
    Targets equal to ignore_index count for nothing; with nothing to score the loss is 0.0. Raises IndexError for a
    target outside the vocabulary, TypeError for one that is not an integer, ValueError for shapes that do not match.
    """

    def __init__(self, ignore_index=0, label_smoothing=0.0):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing!r}")
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self._kept = None

    def __call__(self, logits, targets):
        return self.forward(logits, targets)

    def forward(self, logits, targets):
        logits, targets = np.asarray(logits), check_targets(logits, targets, self.ignore_index)
        scored = targets.reshape(-1) != self.ignore_index
        targets = targets.reshape(-1)[scored]
        log_p = log_softmax(rows(logits)[scored])                                               # (N, V)
        self._kept = logits.shape, scored, targets, log_p
        if not len(targets):
            return 0.0
        loss = -(1 - self.label_smoothing) * log_p[np.arange(len(targets)), targets].mean()
        if self.label_smoothing:                                     # only then: 0 times a logit of -inf would be NaN
            loss -= self.label_smoothing * log_p.mean()
        return float(loss)

    def backward(self):
        """The gradient at the logits, of their shape: (p - q) / N where scored, 0 elsewhere."""
        if self._kept is None:
            raise RuntimeError("CrossEntropyLoss.backward needs a forward of its own")
        shape, scored, targets, log_p = self._kept
        self._kept = None
        dlogits = np.zeros(shape, dtype=log_p.dtype)
        d = np.exp(log_p) - self.label_smoothing / shape[-1]
        d[np.arange(len(targets)), targets] -= 1 - self.label_smoothing
        rows(dlogits)[scored] = d / max(len(targets), 1)
        return dlogits


def check_targets(logits, targets, ignore_index):
    """targets as integers that match logits and, apart from ignore_index, lie in the vocabulary."""
    targets = check_tokens(targets)
    *shape, vocab_size = np.shape(logits)
    if targets.shape != tuple(shape):
        raise ValueError(f"logits of shape {np.shape(logits)} need targets of shape {tuple(shape)}, "
                         f"got {targets.shape}")
    check_tokens(targets[targets != ignore_index], vocab_size)
    return targets


def compute_accuracy(logits, targets, ignore_index=0):
    """The share of scored positions whose largest logit is the target's; 0.0 when nothing is scored."""
    targets = check_targets(logits, targets, ignore_index)
    scored = targets != ignore_index
    if not scored.any():
        return 0.0
    return float((np.argmax(logits, axis=-1) == targets)[scored].mean())


def warmup_schedule(step, d_model, warmup_steps=4000):
    """lrate = d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5).  [5.3, eq. 3]

    It rises linearly to (d_model * warmup_steps)^-0.5 and then falls as step^-0.5. Steps count from 1; ValueError for
    a step or sizes below 1.
    """
    if step < 1 or d_model < 1 or warmup_steps < 1:
        raise ValueError("step, d_model and warmup_steps count from 1, "
                         f"got step={step}, d_model={d_model}, warmup_steps={warmup_steps}")
    return float(d_model) ** -0.5 * min(float(step) ** -0.5, step * float(warmup_steps) ** -1.5)


class Adam:
    """Adam with the paper's beta_1 = 0.9, beta_2 = 0.98, eps = 1e-9.  [5.3; Kingma & Ba 2015]

        m = beta_1 m + (1 - beta_1) g          v = beta_2 v + (1 - beta_2) g^2
        w = w - rate * m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + eps)

    model is anything with named_parameters() and named_gradients(), C-contiguous arrays under equal names. The update
    runs in blocks small enough for the processor's cache: a large array is cut, small ones are gathered.
    """

    block_size = 65_536

    def __init__(self, model, betas=(0.9, 0.98), eps=1e-9):
        if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1) or eps <= 0:
            raise ValueError(f"betas must be in [0, 1) and eps above 0, got betas={betas}, eps={eps}")
        self.model, self.betas, self.eps, self.steps = model, tuple(betas), eps, 0
        parameters = model.named_parameters()
        for name, weight in parameters.items():
            if not weight.flags.c_contiguous:
                raise ValueError(f"Adam updates C-contiguous arrays in place; {name} of shape {weight.shape} is not")
        sizes = [weight.size for weight in parameters.values()]
        dtype = np.result_type(*parameters.values()) if parameters else np.float32
        self._m, self._v = np.zeros(sum(sizes), dtype), np.zeros(sum(sizes), dtype)
        self._places, self._blocks, filled = {}, [], self.block_size
        start = 0
        for name, weight in parameters.items():
            self._places[name] = slice(start, start + weight.size), weight.shape
            for cut in range(0, weight.size, self.block_size):
                piece = name, cut, min(cut + self.block_size, weight.size)
                if filled + piece[2] - cut > self.block_size:
                    self._blocks.append((start + cut, []))
                    filled = 0
                self._blocks[-1][1].append(piece)
                filled += piece[2] - cut
            start += weight.size

    @property
    def m(self):
        """The first moments: a dict with the names of the weights, live arrays."""
        return self._named(self._m)

    @property
    def v(self):
        """The second moments, in the same way."""
        return self._named(self._v)

    def _named(self, moments):
        return {name: moments[place].reshape(shape) for name, (place, shape) in self._places.items()}

    def step(self, learning_rate):
        """Change every weight once, by the gradients that are there."""
        self.steps += 1
        (beta_1, beta_2), t = self.betas, self.steps
        correction = (1 - beta_2 ** t) ** 0.5                  # both corrections, moved out of the loop over weights
        rate, eps = learning_rate * correction / (1 - beta_1 ** t), self.eps * correction
        weights = {name: weight.reshape(-1) for name, weight in self.model.named_parameters().items()}
        gradients = {name: gradient.reshape(-1) for name, gradient in self.model.named_gradients().items()}
        for start, pieces in self._blocks:
            parts = [gradients[name][a:b] for name, a, b in pieces]
            g = np.concatenate(parts) if len(parts) > 1 else parts[0]
            m, v = self._m[start:start + len(g)], self._v[start:start + len(g)]
            m *= beta_1
            m += (1 - beta_1) * g
            v *= beta_2
            change = g * g
            change *= 1 - beta_2
            v += change
            np.sqrt(v, out=change)
            change += eps
            np.divide(m, change, out=change)
            change *= rate
            end = 0
            for name, a, b in pieces:
                start, end = end, end + b - a
                weights[name][a:b] -= change[start:end]
