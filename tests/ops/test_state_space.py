"""StateSpace: its body against a loop, the sequence whole and in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from recurrent import Recurrent, close, normal, ways

from edgewright import ops

Arrays = dict[str, np.ndarray]


def state_space_np(feeds: Arrays, heads: int, head_dim: int, groups: int, state_size: int) -> tuple[Any, Any]:
    batch, seq, _ = feeds["x"].shape
    x = feeds["x"].reshape(batch, seq, heads, head_dim).astype(np.float64)
    b, c = (feeds[name].reshape(batch, seq, groups, state_size).astype(np.float64) for name in "bc")
    h, y = feeds["past"].astype(np.float64), np.zeros(x.shape)
    for n in range(batch):
        for t in range(seq):
            for head in range(heads):
                group, dt = head // (heads // groups), float(feeds["dt"][n, t, head])
                h[n, head] *= np.exp(dt * float(feeds["a"][head]))
                h[n, head] += dt * np.outer(x[n, t, head], b[n, t, group])
                y[n, t, head] = h[n, head] @ c[n, t, group] + feeds["d"][head] * x[n, t, head]
    return y.reshape(batch, seq, -1), h


def state_space(
    seed: int, batch: int, seq: int, heads: int, head_dim: int, groups: int, state_size: int
) -> tuple[Recurrent, Arrays]:
    """Random values and the graph for them; time steps and rates spread over the range of trained models."""
    rng = np.random.default_rng(seed)
    width, shared = heads * head_dim, groups * state_size
    feeds = {
        "x": normal(rng, batch, seq, width),
        "dt": np.logaddexp(0, normal(rng, batch, seq, heads) * 3 - 2).astype(np.float32),
        "a": -rng.uniform(0.1, 16, heads).astype(np.float32),
        "b": normal(rng, batch, seq, shared),
        "c": normal(rng, batch, seq, shared),
        "d": normal(rng, heads),
        "past": normal(rng, batch, heads, head_dim, state_size),
    }
    shapes: dict[str, tuple[str | int, ...]] = {
        name: (("batch", "seq") if name in ("x", "dt", "b", "c") else ("batch",)) + array.shape[-1:]
        for name, array in feeds.items()
    }
    shapes |= {"a": (heads,), "d": (heads,), "past": ("batch", heads, head_dim, state_size)}

    def build(g: Any, *values: Any) -> Any:
        return ops.state_space(g, *values, heads=heads, head_dim=head_dim, groups=groups, state_size=state_size)

    return Recurrent(build, shapes), feeds


@pytest.mark.parametrize(
    ("batch", "seq", "heads", "head_dim", "groups", "state_size"),
    [(3, 7, 4, 5, 2, 3), (3, 70, 6, 8, 1, 16), (1, 1, 3, 1, 3, 9), (2, 128, 2, 3, 2, 7), (1, 131, 2, 64, 1, 128)],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_split_of_a_sequence_gives_the_loop(
    seed: int, batch: int, seq: int, heads: int, head_dim: int, groups: int, state_size: int
) -> None:
    scan, feeds = state_space(seed, batch, seq, heads, head_dim, groups, state_size)
    y, state = state_space_np(feeds, heads, head_dim, groups, state_size)
    for pieces in ways(seq, seed):
        got, got_state = scan.run(feeds, pieces)
        close(got, y)
        close(got_state, state)


def test_a_step_that_forgets_everything_stays_finite() -> None:
    """Decays that vanish in float32 leave zeros, not the NaN of a product of infinity and zero."""
    scan, feeds = state_space(3, 2, 300, 2, 3, 1, 4)
    feeds["dt"][:, ::7] = 50.0
    y, state = state_space_np(feeds, 2, 3, 1, 4)
    for pieces in ([300], [150, 1, 149]):
        got, got_state = scan.run(feeds, pieces)
        close(got, y)
        close(got_state, state)
