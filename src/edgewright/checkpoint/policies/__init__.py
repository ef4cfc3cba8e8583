"""Checkpoints of robot policies, as openpi and LeRobot write them; `edgewright.checkpoint.policy` opens them."""
