# Every target sets up .venv by itself: a fresh clone needs Python 3.11 or newer and, for fast kernels, a C compiler.
#
#   make demo [SECONDS=10]   start a server, feed it, watch results; until Ctrl-C, or for so many seconds
#   make test                the test suite                make test-pure   the same without compiled files
#   make check               lint, types and tests: what CI runs
#   make fuzz [TIMES=20]     the tests that draw random examples, each time with new ones
#   make fuzz-long [MINUTES=120] [TARGETS="sql lines"]   bytes of others, guided by coverage: look for a crash
#   make check-api [QUESTIONS=500]   ask the admin API many strange questions, made from its OpenAPI
#   make torture [KILLS=200] [MINUTES=20] [SEED=1]   kill a server under load again and again: nothing lost, doubled or reordered
#   make soak [MINUTES=10]   a server with four times the load it can carry, and with clients that misbehave: goodput and latencies
#   make attacks [SECONDS=20]   hostile clients, one kind after the other: memory, time, outcome, and the goodput of others
#   make check-deploy        everything below deploy/ with the real tools: Prometheus, systemd, buildah, ... (as root, Debian)
#   make check-console       the console in a browser: every screen; installs Chromium (Debian) and Playwright, needs npm
#   make check-spark         backfills on a cluster, killed programs, every conformance case, a real Kafka (needs mvn): many minutes
#   make lint                ruff and formatting           make types       mypy --strict
#   make format              let ruff rewrite what it can
#   make bench               benchmarks, with ratios
#   make race [LINES="w1 tcp"] [TUPLES=5000000]   the same work in other programs, side by side, in docs/performance.md
#   make figures [PAPERS="ets eqg-15"]    the papers' figures and claims, in docs/figures
#   make docs                renew the parts of the documents that are made from the code
#   make record              record the README's terminal pictures again
#   make record-console      take the pictures of the console again
#   make measure-console     how smooth a browser stays, and what open consoles cost the server
#   make docs-site           the documentation as a website in build/site, links checked
#   make simulate [SEEDS=1000] [FROM=0]   random graphs, SQL, cuts, commands, saves, restores, clients, clocks, queues, disks
#   make sbom                what a server consists of, as CycloneDX: build/sbom.json
#   make audit               ask a database whether a locked package has known faults
#   make lock                renew the lock files          make setup       .venv with everything
#   make server              .venv with what a server needs
#   make clean               remove what was built         make distclean   and .venv too

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin

.PHONY: help console-browser setup server demo docs docs-site record record-console test test-pure check fuzz fuzz-long check-api torture soak attacks check-console measure-console check-deploy check-spark lint types format bench race figures simulate sbom audit lock clean distclean need-python

help:
	@sed -n 's/^#   //p' Makefile

# A stage that is up to date takes a moment: bootstrap.py knows.
setup: need-python
	@$(PYTHON) bootstrap.py dev

need-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  version=$$($(PYTHON) --version 2>/dev/null) || version="not installed"; \
	  echo "Millrace needs Python 3.11 or newer; $(PYTHON) is $$version." \
	       "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }

demo: need-python
	@$(PYTHON) bootstrap.py demo
	@$(BIN)/python examples/demo.py $(if $(SECONDS),--seconds $(SECONDS))

server: need-python
	@$(PYTHON) bootstrap.py server

test: setup
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# A copy without compiled files comes first on the path, for the tests and for every process they start.
test-pure: setup
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	tar -cf - --exclude='./$(VENV)*' --exclude=./build --exclude=./.git --exclude='*.so' --exclude='*.pyd' . | tar -xf - -C "$$copy"; \
	python="$$PWD/$(BIN)/python"; cd "$$copy"; \
	MILLRACE_NO_KERNELS=1 PYTHONPATH="$$copy/server:$$copy/operators:$$copy/protocol" "$$python" -m pytest -n auto --dist loadfile --no-loadscope-reorder -p no:cacheprovider

check: lint types test

fuzz: setup
	@files=$$(grep -rlE --include='test_*.py' '@given|RuleBasedStateMachine' tests); \
	for ((time = 1; time <= $(or $(TIMES),20); time++)); do \
	  echo "fuzz: time $$time of $(or $(TIMES),20)"; MILLRACE_FUZZ=1 $(BIN)/python -m pytest -q -m hypothesis $$files; \
	done

fuzz-long: setup
	@$(BIN)/python -m tests.fuzz $(TARGETS) --seconds $$(( $(or $(MINUTES),120) * 60 / 9 ))

check-api: setup
	@MILLRACE_API_QUESTIONS=$(or $(QUESTIONS),500) $(BIN)/python -m pytest tests/server/test_openapi.py

torture: setup
	@$(BIN)/python -m tests.torture.world --kills $(or $(KILLS),200) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

soak: setup
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),10)

attacks: setup
	@$(BIN)/python -m bench.attacks --seconds $(or $(SECONDS),20)

# The distribution's Chromium, and Playwright's package without browsers of its own.
console-browser: setup
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { \
	  apt-get update --quiet && apt-get install --quiet --yes --no-install-recommends chromium; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/console.lock
	@mkdir -p build/console
	@$(BIN)/python deploy/console/vendor.py --axe build/console

check-console: console-browser
	@$(BIN)/python deploy/console/vendor.py --check
	@MILLRACE_BROWSER=required $(BIN)/python -m pytest tests/console/test_*.py tests/console/check_*.py

record-console: console-browser
	@$(BIN)/python -m tests.console.pictures

measure-console: console-browser
	@$(BIN)/python -m tests.console.measures

check-deploy: setup
	@deploy/check.sh $(BIN)/python build/prove-image

check-spark: setup
	@$(BIN)/python -m pytest tests/spark/check_*.py

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python docs/prose.py --check

types: setup
	@$(BIN)/mypy

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup
	@$(BIN)/python docs/generate.py

record: setup
	@$(BIN)/python -m docs.record

# These tools get an environment each: nothing else needs them.
SITE_VENV := .venv-docs
SUPPLY_VENV := .venv-supply

.venv-%/.installed: requirements/%.lock | need-python
	@echo "$*: installing $$(grep -c == $<) packages of $<"
	@if command -v uv >/dev/null; then \
	  uv venv --quiet --clear --python $(PYTHON) $(@D); \
	  uv pip install --quiet --python $(@D)/bin/python --require-hashes --requirement $<; \
	else \
	  $(PYTHON) -m venv $(@D); \
	  $(@D)/bin/pip install --quiet --no-compile --disable-pip-version-check --require-hashes --requirement $<; \
	fi
	@touch $@

docs-site: $(SITE_VENV)/.installed
	@NO_MKDOCS_2_WARNING=1 $(SITE_VENV)/bin/mkdocs build --strict
	@echo "docs-site: open $(CURDIR)/build/site/index.html"

bench: setup
	@$(BIN)/python -m bench

race: setup
	@nice $(BIN)/python -m bench race $(LINES) --tuples $(or $(TUPLES),5000000)

figures: setup
	@$(BIN)/python -m bench.papers $(PAPERS)

simulate: setup
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0)
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0) --styles 1 --clocks
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0) --styles 1 --updates
	@$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0) --styles 1 --sql
	@$(BIN)/python -m tests.journal --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0)
	@$(BIN)/python -m tests.disk --seeds $(or $(SEEDS),1000) --from $(or $(FROM),0)

sbom: $(SUPPLY_VENV)/.installed
	@mkdir -p build
	@PYTHONWARNINGS=ignore $(SUPPLY_VENV)/bin/cyclonedx-py requirements requirements/server.lock --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --output-format JSON --output-file build/sbom.json
	@echo "sbom: $$(grep -c '"purl"' build/sbom.json) packages of a server in build/sbom.json (CycloneDX)"

# Asks a database of known faults over the network; it fails if that does not know a package.
audit: $(SUPPLY_VENV)/.installed
	@for lock in server dev; do \
	  echo "audit: requirements/$$lock.lock"; \
	  $(SUPPLY_VENV)/bin/pip-audit --require-hashes --disable-pip --strict --progress-spinner off --requirement requirements/$$lock.lock; \
	done

# Settings of this machine (an index, a folder of wheels) must not reach the lock files: pip is told to forget them.
COMPILE := env -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null \
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host

LIKE_DEV := --constraint requirements/dev.lock

# dev: `make check`. backfill: Spark beside it. server, build: what an image runs, and what makes its wheel (Dockerfile).
lock: setup
	@echo "lock: resolving (minutes)"
	@$(COMPILE) --all-build-deps --extra dev --output-file requirements/dev.lock pyproject.toml
	@$(COMPILE) --all-build-deps --extra backfill $(LIKE_DEV) --output-file requirements/backfill.lock pyproject.toml
	@$(COMPILE) --extra server $(LIKE_DEV) --output-file requirements/server.lock pyproject.toml
	@$(COMPILE) --only-build-deps --build-deps-for wheel $(LIKE_DEV) --output-file requirements/build.lock pyproject.toml
	@$(COMPILE) $(LIKE_DEV) --output-file requirements/deploy.lock requirements/deploy.in
	@$(COMPILE) $(LIKE_DEV) --output-file requirements/docs.lock requirements/docs.in
	@$(COMPILE) $(LIKE_DEV) --output-file requirements/supply.lock requirements/supply.in

clean:
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	@find operators \( -name '*.so' -o -name '*.pyd' -o -name '*.so.new' \) -delete

distclean: clean
	@rm -rf $(VENV) $(SITE_VENV) $(SUPPLY_VENV)
