"""Evaluation of robot policies on recorded data: datasets in LeRobot's layouts, open-loop errors, a page to look at."""

from __future__ import annotations

from edgewright.evaluate.dataset import Dataset, Frame, Recording, open_dataset
from edgewright.evaluate.frames import FrameChoice
from edgewright.evaluate.openloop import Evaluation, Predictor, evaluate

__all__ = ["Dataset", "Evaluation", "Frame", "FrameChoice", "Predictor", "Recording", "evaluate", "open_dataset"]
