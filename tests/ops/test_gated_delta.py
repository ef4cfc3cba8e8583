"""GatedDelta: its body and its kernel against a loop, the sequence whole and in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recurrent import Recurrent, close, normal, ways

from edgewright import ops

Arrays = dict[str, np.ndarray]


def gated_delta_np(feeds: Arrays, key_heads: int, heads: int) -> tuple[Any, Any]:
    batch, seq, _ = feeds["q"].shape
    q, k = (feeds[name].reshape(batch, seq, key_heads, -1).astype(np.float64) for name in "qk")
    v = feeds["v"].reshape(batch, seq, heads, -1).astype(np.float64)
    state, y = feeds["past"].astype(np.float64), np.zeros(v.shape)
    for n in range(batch):
        for t in range(seq):
            for head in range(heads):
                s, key = state[n, head], k[n, t, head // (heads // key_heads)]
                s *= np.exp(float(feeds["decay"][n, t, head]))
                s += np.outer(key, feeds["beta"][n, t, head] * (v[n, t, head] - s.T @ key))
                y[n, t, head] = s.T @ q[n, t, head // (heads // key_heads)]
    return y.reshape(batch, seq, -1), state


@pytest.mark.parametrize("kernel", [False, True], ids=["body", "kernel"])
@pytest.mark.parametrize(
    ("batch", "seq", "key_heads", "heads", "key_dim", "value_dim"),
    [(3, 7, 2, 4, 8, 5), (3, 70, 2, 6, 16, 8), (1, 1, 1, 3, 5, 3), (2, 131, 2, 2, 3, 7), (1, 40, 1, 2, 64, 96)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_split_of_a_sequence_gives_the_loop(
    seed: int, batch: int, seq: int, key_heads: int, heads: int, key_dim: int, value_dim: int, kernel: bool
) -> None:
    rng = np.random.default_rng(seed)
    keys = normal(rng, batch, seq, key_heads, key_dim)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    feeds = {
        "q": normal(rng, batch, seq, key_heads * key_dim),
        "k": keys.reshape(batch, seq, -1),
        "v": normal(rng, batch, seq, heads * value_dim),
        "decay": -np.exp(normal(rng, batch, seq, heads) * 2 - 2),
        "beta": 1 / (1 + np.exp(-normal(rng, batch, seq, heads))),
        "past": normal(rng, batch, heads, key_dim, value_dim),
    }
    feeds["decay"][:, ::9] = -200.0  # forgets everything
    shapes: dict[str, tuple[str | int, ...]] = {name: ("batch", "seq", a.shape[-1]) for name, a in feeds.items()}
    shapes["past"] = ("batch", heads, key_dim, value_dim)

    def build(g: Any, *values: Any) -> Any:
        return ops.gated_delta(g, *values, key_heads=key_heads, heads=heads, key_dim=key_dim, value_dim=value_dim)

    delta = Recurrent(build, shapes, kernel)
    y, state = gated_delta_np(feeds, key_heads, heads)
    for pieces in ways(seq, seed):
        got, got_state = delta.run(feeds, pieces)
        close(got, y)
        close(got_state, state)
