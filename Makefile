# `make help` lists what there is. Every target installs what is missing into .venv first.
SHELL := bash
.DEFAULT_GOAL := help
# Bytecode in .venv saves each process of a worker some 15 s of its start.
unexport PYTHONDONTWRITEBYTECODE
PY := .venv/bin/python

MODEL ?=
ARGS ?=
PORT ?= 8000
SEEDS ?= 100000
N ?= 10
VERSIONS ?=
TESTS ?=

.PHONY: help venv serve smoke demo test test-pythons lock lint docs parity simulate bench bench-quick trials clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s "$$(printf '\t')"

venv:
	@.ci/bootstrap

serve: venv ## a frontend and a worker, one chat request, up until Ctrl-C (MODEL= ARGS= PORT=)
	@exec $(PY) -m trio_worker.quickstart --port $(PORT) $(if $(MODEL),--model "$(MODEL)") -- $(ARGS)

smoke: venv ## serve, one request, ordered stop; 0 only if the answer was right
	@exec $(PY) -m trio_worker.quickstart --smoke $(if $(MODEL),--model "$(MODEL)") -- $(ARGS)

demo: venv ## two workers; one is stopped in mid-sentence, and the text goes on (PICTURE=file.svg)
	@exec $(PY) -m trio_worker.quickstart --demo $(if $(PICTURE),--picture "$(PICTURE)") -- $(ARGS)

test: venv ## the tests, with a few of the trials (TESTS="tests/e2e -k embedding" for some)
	@$(PY) -m tests $(TESTS)

test-pythons: ## the tests that need no engine, on every supported Python found (VERSIONS="3.12")
	@VERSIONS="$(VERSIONS)" .ci/test-pythons

lock: venv ## requirements.lock anew from pyproject.toml (delete it first for newer versions)
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --group dev --no-header --no-annotate \
	    --output-file requirements.lock pyproject.toml
	@sed -i "s/ ; python_full_version < '3.14' and sys_platform == 'linux'$$//" requirements.lock

lint: venv ## ruff and mypy
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy

docs: venv ## the site, in build/docs/index.html; warnings are errors
	@$(PY) -m sphinx -q -n -W --keep-going -b html docs build/docs
	@echo "build/docs/index.html"

parity: venv ## what the incumbent has and we have, from both code bases (build/parity.json)
	@$(PY) -m tests.parity

simulate: venv ## the request path under SEEDS random schedules, on all cores
	@$(PY) -m tests.simulation --seeds $(SEEDS)

bench: venv ## everything side by side with the incumbent, about 45 minutes (build/bench/report.html)
	@$(PY) -m tests.bench

bench-quick: venv ## the same figures from a run of under five minutes
	@$(PY) -m tests.bench --quick

trials: venv ## stop workers in mid-stream, N of each kind, ours and the incumbent's
	@$(PY) -m tests.trials --n $(N)

clean: ## caches and build outputs; .venv* and the model cache stay (rm -r them by hand)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
