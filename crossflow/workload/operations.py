"""What the parts of layers that are no products do on `m` samples, by their real passes over elements of `element` bytes. [B]

Counts are for unfused framework kernels, one pass of reads and writes a kernel; `fmt` "r4 w1" in the comments reads as
four elements read and one written per unit. Every size is that of one device's shard.
"""

from __future__ import annotations

from crossflow.program.kernels import Number, Pass


def cell_forward(m: Number, hidden: Number, element: float) -> Pass:
    """LSTM gates to output: bias add, gate activations, cell update, tanh, output."""
    # bias r4 w4; sigmoid and tanh r4 w4; c = f c + i g: r4 w1; tanh(c): r1 w1; h = o tanh(c): r2 w1
    return Pass(moved=element * (26.0 * m * hidden), flops=20.0 * m * hidden, launches=5)


def cell_backward(m: Number, hidden: Number, element: float) -> Pass:
    """Gradients through the gates, and of the bias."""
    # do: r2 w1; dc: r4 w1; di dg df dc': r5 w4; through the activations: r8 w4; bias: r4
    return Pass(moved=element * (33.0 * m * hidden), flops=28.0 * m * hidden, launches=5)


def softmax_forward(m: Number, vocabulary: Number, element: float) -> Pass:
    """Bias add, maximum, sum of exponentials, normalisation and loss over the vocabulary."""
    # bias r1 w1; maximum r1; sum of exponentials r1; normalise r1 w1
    return Pass(moved=element * (6.0 * m * vocabulary), flops=5.0 * m * vocabulary, launches=4)


def softmax_backward(m: Number, vocabulary: Number, element: float) -> Pass:
    """Probabilities less labels, scaled by the batch, and the gradient of the bias."""
    # p - label: r1 w1; scale: r1 w1; bias: r1
    return Pass(moved=element * (5.0 * m * vocabulary), flops=3.0 * m * vocabulary, launches=3)


def embedding_forward(m: Number, width: Number, element: float) -> Pass:
    """Gather of one row a token."""
    return Pass(moved=element * (2.0 * m * width), flops=0.0)


def embedding_backward(m: Number, width: Number, rows: Number, first: bool, element: float) -> Pass:
    """Scatter-add into a dense gradient, which the first time step clears."""
    clear = rows * width if first else 0.0
    return Pass(moved=element * (3.0 * m * width + clear), flops=m * width, launches=2 if first else 1)


def update(parameters: Number, states: int, element: float) -> Pass:
    """Optimizer step with gradient clipping by norm; optimizer states are kept in fp32."""
    # norm r1; clip r1 w1; w -= lr g: r2 w1; each state r1 w1 of 4 bytes
    elements = parameters * (6.0 + 2.0 * states * 4.0 / element)
    return Pass(moved=element * elements, flops=parameters * (7.0 + 4.0 * states), launches=3 + states)


def saved_per_cell(hidden: Number, gathered: Number) -> Number:
    """Elements per sample that a cell keeps for its backward pass: four gates, c, tanh(c), and its (gathered) output."""
    return 6.0 * hidden + gathered
