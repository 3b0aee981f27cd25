# The two commands of the README are `make demo` and `make test`; everything they need is set up in .venv first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test browser-test check format clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/umpteen demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --ignore=tests/browser

# Needs chromium (Debian: apt-get install chromium).
browser-test: .venv/installed
	UMPTEEN_BROWSER_TESTS=required $(BIN)/python -m pytest tests/browser

check: .venv/installed
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

format: .venv/installed
	$(BIN)/ruff check --fix src tests benchmarks scripts
	$(BIN)/ruff format src tests benchmarks scripts

clean:
	rm -rf .venv build dist runs
