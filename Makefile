# Every target works on a fresh machine with Python 3.11+, pip and make alone.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.locktender-installed
BROWSER := .venv/.locktender-browser

.PHONY: setup constraints test test-fast test-portable test-long check demo picture vendor bench bench-record bench-peers docs docs-serve clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "locktender needs Python 3.11 or newer")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv"
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable . --group dev
	@touch $(STAMP)

# The newest versions of what tests and checks need; make check and make test say whether they fit.
constraints:
	rm -rf .venv/newest
	$(PYTHON) -m venv .venv/newest
	.venv/newest/bin/python -m pip install -qq --upgrade 'pip>=25.1'
	.venv/newest/bin/python -m pip install -qq --editable . --group dev
	(head -n 1 constraints.txt && .venv/newest/bin/python -m pip freeze --exclude-editable) > .venv/constraints.txt
	mv .venv/constraints.txt constraints.txt
	rm -rf .venv/newest

# Tests of the UI read it in a real browser. Where none can be installed, they are skipped and say so.
$(BROWSER): $(STAMP)
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
		(apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
			chromium fonts-dejavu-core) >/dev/null 2>&1 || echo "chromium cannot be installed: tests/browser is skipped"; \
	fi
	@touch $(BROWSER)

# Compiled first: tests start hundreds of processes, and where Python may not write what it compiled
# (PYTHONDONTWRITEBYTECODE) each would compile all of it again. worksteal: what a module of tests
# shares is set up once, not in all processes. Three at a time on two cores: tests of processes wait
# for half of their time.
test: $(STAMP) $(BROWSER)
	$(BIN)/python -m compileall -q src
	$(BIN)/pytest -n 3 --dist worksteal

# The inner loop: kernel, flows, store and the basics of the command line, in about a minute. What takes
# seconds for a test (statistics, clients that are stopped, other stores of values) is left to make test.
CLI_BASICS := $(addprefix tests/cli/test_,no_store.py run.py run_views.py workers.py)
NOT_FAST := $(addprefix --ignore=tests/,kernel/test_simulated_spread.py store/test_blob_url.py \
	store/test_postgres_failures.py store/test_postgres_frozen_clients.py store/test_sqlite_processes.py)
test-fast: $(STAMP)
	$(BIN)/pytest -q -n 3 --dist worksteal $(NOT_FAST) tests/kernel tests/store $(CLI_BASICS)

# Everything, with what only Linux has removed (tests/support/without_linux). Tests of that are skipped.
test-portable: $(STAMP)
	$(BIN)/python -m compileall -q src
	PYTHONPATH=$(CURDIR)/tests/support/without_linux $(BIN)/pytest -q -n 3 --dist worksteal

# Everything, with the whole of what `make test` has a sample of.
test-long: $(STAMP) $(BROWSER)
	$(BIN)/python -m compileall -q src
	$(BIN)/pytest -n 3 --dist worksteal -m ''

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/mypy --strict examples tests/typed
	$(BIN)/python tools/verify_types.py
	$(BIN)/python tools/check_gates.py
	$(BIN)/python tools/check_layout.py
	$(BIN)/lint-imports

demo: $(STAMP)
	$(BIN)/locktender demo

# docs/demo.svg, from what the demo prints now.
picture: $(STAMP)
	$(BIN)/python tools/demo_picture.py

# Scripts of others that the UI loads: by npm, checked against tools/vendor.lock.json. Nothing else needs npm.
vendor: $(STAMP)
	$(BIN)/python tools/vendor.py

# Ours alone, at most five minutes; PARTS="backlog take_over sleepers" for the longer parts.
bench: $(STAMP)
	$(BIN)/python -m bench $(PARTS)

# The same, and bench/record.json has the figures from then on.
bench-record: $(STAMP)
	$(BIN)/python -m bench $(PARTS) --record

# Ours and the peers in turns, each peer in an environment of its own in .bench/; about 15 minutes.
# ARGS="--only absurd,server --rounds 3", "--quick", "--write" (docs/benchmarks-peers.md and its picture).
bench-peers: $(STAMP)
	$(BIN)/python -m bench.peers $(ARGS)

# The site, in .docs/html; a broken link fails it.
docs: $(STAMP)
	$(BIN)/python -m tools.site.build

# The same, on http://127.0.0.1:8480/.
docs-serve: $(STAMP)
	$(BIN)/python -m tools.site.build --serve 8480

clean:
	rm -rf .venv .bench .docs .pytest_cache .ruff_cache .hypothesis
