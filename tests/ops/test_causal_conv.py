"""CausalConv: its body against a loop, the sequence whole and in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recurrent import Recurrent, close, normal, ways

from edgewright import ops


def causal_conv_np(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, past: np.ndarray, activation: str | None
) -> tuple[np.ndarray, np.ndarray]:
    kernel = weight.shape[2]
    rows = [*np.moveaxis(past, 2, 0)]
    y = []
    for t in range(x.shape[1]):
        rows.append(x[:, t])
        total = np.zeros(x[:, t].shape) + (0 if bias is None else bias)
        for j in range(kernel):
            total += weight[:, 0, j] * rows[len(rows) - kernel + j].astype(np.float64)
        y.append(total if activation is None else total / (1 + np.exp(-total)))
    state = np.stack(rows[len(rows) - kernel + 1 :], axis=2) if kernel > 1 else past
    return np.stack(y, axis=1), state


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", None])
@pytest.mark.parametrize(
    ("batch", "seq", "channels", "taps"), [(3, 11, 7, 4), (1, 2, 40, 4), (3, 9, 5, 2), (2, 5, 3, 7)]
)
def test_every_split_of_a_sequence_gives_the_loop(
    batch: int, seq: int, channels: int, taps: int, activation: str | None, bias: bool
) -> None:
    rng = np.random.default_rng(channels)
    feeds = {"x": normal(rng, batch, seq, channels) * 3, "weight": normal(rng, channels, 1, taps)}
    shapes: dict[str, tuple[str | int, ...]] = {"x": ("batch", "seq", channels), "weight": (channels, 1, taps)}
    if bias:
        feeds["bias"], shapes["bias"] = normal(rng, channels), (channels,)
    feeds["past"], shapes["past"] = normal(rng, batch, channels, taps - 1), ("batch", channels, taps - 1)

    def build(g: Any, *values: Any) -> Any:
        x, weight, *b, past = values
        return ops.causal_conv(g, x, weight, b[0] if b else None, past, activation=activation)

    conv = Recurrent(build, shapes)
    y, state = causal_conv_np(feeds["x"], feeds["weight"], feeds.get("bias"), feeds["past"], activation)
    whole = None
    for pieces in ways(seq, taps):
        got, got_state = conv.run(feeds, pieces)
        close(got, y)
        np.testing.assert_array_equal(got_state, state)  # also when a piece is shorter than the state
        whole = got if whole is None else whole
        close(got, whole.astype(np.float64), 2e-7)


def test_one_tap_has_an_empty_state() -> None:
    rng = np.random.default_rng(2)
    feeds = {"x": normal(rng, 2, 3, 4), "weight": normal(rng, 4, 1, 1), "past": normal(rng, 2, 4, 0)}
    shapes = {"x": ("batch", "seq", 4), "weight": (4, 1, 1), "past": ("batch", 4, 0)}

    def build(g: Any, x: Any, weight: Any, past: Any) -> Any:
        return ops.causal_conv(g, x, weight, None, past, activation=None)

    y, state = Recurrent(build, shapes).run(feeds, [1, 2])
    np.testing.assert_array_equal(y, feeds["x"] * feeds["weight"][:, 0, 0])
    assert state.shape == (2, 4, 0)
