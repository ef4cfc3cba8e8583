"""One frame of a policy: where each observation stands in the prefix, and the stages bound to the frame's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from edgewright.errors import GenerationError
from edgewright.runtime.engine import Engine
from edgewright.runtime.policy.images import BLACK
from edgewright.runtime.policy.observation import Prepared
from edgewright.runtime.policy.spec import PolicySpec
from edgewright.runtime.policy.stages import Array, Buffers, StageShape

#: What the denoise stage has of the flow itself; everything else it takes is made once per frame.
X_T, VELOCITY = ("x_t", "noise"), ("velocity", "actions")
TIME = ("time_embedding", "time_index")


@dataclass(frozen=True)
class Plan:
    """Where the parts of each observation stand in the prefix.

    `places` has for each row the slots of its images, in their order; `views` is the number of all images, `slots` and
    `text` are how many images and tokens the prefix has room for, `state` how many tokens of the robot's state. `times`
    is the number of times that denoise takes.
    """

    places: tuple[tuple[int, ...], ...]
    slots: int
    text: int
    state: int
    times: int

    @classmethod
    def of(cls, spec: PolicySpec, prepared: Sequence[Prepared], *, compact: bool, state: int, times: int) -> Self:
        """Return a batch's plan: as short as it can be, or with all slots and the longest text, as the originals do it.

        LeRobot moves the images that are missing behind those that are there.
        """
        first = compact or spec.convention == "lerobot"
        places = tuple(
            tuple(range(len(one.images))) if first else tuple(np.flatnonzero(one.camera_mask).tolist())
            for one in prepared
        )
        longest = max(len(one.token_ids) for one in prepared)
        return cls(
            places=places,
            slots=max(map(len, places)) if compact else len(spec.cameras),
            text=longest if compact else spec.max_tokens,
            state=state,
            times=times,
        )

    @property
    def views(self) -> int:
        """The number of images of all rows."""
        return sum(map(len, self.places))

    @property
    def key(self) -> tuple[int, ...]:
        """What plans that fit one frame have in common."""
        return len(self.places), self.views, self.slots, self.text, self.times, self.in_place

    @property
    def in_place(self) -> bool:
        """Whether a single row's images fill its slots, so that the prefix reads their features where they are."""
        return self.places == (tuple(range(self.slots)),)

    def sizes(self, spec: PolicySpec) -> dict[str, int]:
        """Return the sizes of the symbolic dimensions of prefix and denoise."""
        slots = self.slots * spec.image_tokens
        return {
            "batch": len(self.places),
            "image_slots": slots,
            "text": self.text,
            "prefix": slots + self.text + self.state,
            "horizon": spec.horizon,
            "times": self.times,
        }


class Frame:
    """The stages bound for a plan. `x_t`, `time` and `velocity` are what a step reads and writes.

    In this order: every call of `see` (the vision stage, `portion` images each), `place`, `read` (the prefix), and
    `move` for each step. Every plan of the same `key` fits it. Raises GenerationError where the stages don't take the
    plan's sizes.
    """

    def __init__(
        self,
        spec: PolicySpec,
        stages: Mapping[str, Engine],
        shapes: tuple[StageShape, StageShape, StageShape],
        buffers: Buffers,
        plan: Plan,
        portion: int,
    ) -> None:
        self.plan, self.portion, self._spec = plan, portion, spec
        vision, prefix, denoise = shapes
        sizes = plan.sizes(spec)
        for shape in (prefix, denoise):
            shape.require(sizes, GenerationError, "infer fewer observations at once, or build the bundle for more")

        def arrays(shape: StageShape, names: Sequence[str]) -> dict[str, Array]:
            return {n: buffers.array(n, shape.shape(n, sizes), shape.tensors[n].dtype) for n in names}

        self._bind_vision(stages["vision"], vision, buffers, portion)
        taken, given = ([tensor.name for tensor in shape.contract.inputs] for shape in (prefix, denoise))
        self._taken = arrays(prefix, [name for name in taken if name != "image_features"])
        self._taken["image_features"] = self._placed(prefix.shape("image_features", sizes), buffers)
        read = arrays(prefix, [tensor.name for tensor in prefix.contract.outputs if tensor.name in given])
        self.read = stages["prefix"].bind({name: self._taken[name] for name in taken}, read)
        made = {**self._taken, **read}
        outputs = arrays(denoise, [tensor.name for tensor in denoise.contract.outputs])
        every = made | arrays(denoise, [name for name in given if name not in made])
        self.move = stages["denoise"].bind({name: every[name] for name in given}, outputs)
        (self.velocity,) = outputs.values()
        self.x_t = next(every[name] for name in X_T if name in every)
        self.time = next((every[name] for name in TIME if name in every), np.empty(0, np.float32))
        if "state" in every:
            self._taken["state"] = every["state"]

    def _placed(self, shape: tuple[int, ...], buffers: Buffers) -> Array:
        """Return the prefix's image features: vision's own memory where its features stand there as they come."""
        if self.plan.in_place:
            return self._features[: self.plan.views].reshape(shape)
        return buffers.array("placed_features", shape, "float32")

    def _bind_vision(self, stage: Engine, shape: StageShape, buffers: Buffers, portion: int) -> None:
        """Bind the vision stage to `portion` images at a time; the last portion may have black ones behind."""
        starts = range(0, self.plan.views, portion)
        count = len(starts) * portion

        def rows(name: str) -> Array:
            _, *row = shape.tensors[name].shape
            return buffers.array(f"vision.{name}", (count, *map(int, row)), "float32")

        self._images, self._features = rows("images"), rows("image_features")
        self.see = [
            stage.bind(
                {"images": self._images[at : at + portion]}, {"image_features": self._features[at : at + portion]}
            )
            for at in starts
        ]

    def fill(self, plan: Plan, prepared: Sequence[Prepared]) -> None:
        """Take over what the observations say."""
        self.plan = plan
        at = 0
        for one in prepared:
            self._images[at : at + len(one.images)] = one.images
            at += len(one.images)
        self._images[at:] = BLACK
        ids, mask = self._taken["token_ids"], self._taken["prefix_mask"]
        ids[...], mask[...] = 0, 0
        tokens = self._spec.image_tokens
        for row, one in enumerate(prepared):
            for slot in plan.places[row]:
                mask[row, slot * tokens : (slot + 1) * tokens] = 1
            length, start = len(one.token_ids), plan.slots * tokens
            ids[row, :length] = one.token_ids
            mask[row, start : start + length] = 1
            mask[row, start + plan.text :] = 1
            if "state" in self._taken:
                self._taken["state"][row] = one.state

    @property
    def prefix_mask(self) -> Array:
        """Which tokens of the prefix are real: 1 or 0, int64 `[batch, prefix]`."""
        return self._taken["prefix_mask"]

    def place(self) -> None:
        """Put the features that the vision stage gave into the prefix's slots."""
        if self.plan.in_place:
            return
        placed, tokens, at = self._taken["image_features"], self._spec.image_tokens, 0
        placed[...] = 0.0
        for row, places in enumerate(self.plan.places):
            for slot in places:
                placed[row, slot * tokens : (slot + 1) * tokens] = self._features[at]
                at += 1
