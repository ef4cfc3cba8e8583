"""From a checkpoint to a bundle: deploy, and its parts export and compile."""
