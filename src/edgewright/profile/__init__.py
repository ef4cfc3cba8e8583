"""Where the time goes: layers as the engine times them, named by the model's modules, beside what the plan counts."""
