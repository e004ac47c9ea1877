# `make demo` and `make test` need only Python (3.11 to 3.13) and make: each creates an environment in .venv first.
# PYTHON=/path/to/python chooses the interpreter.

BIN := .venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

export OMP_NUM_THREADS ?= 1

KILLS ?= 200

.PHONY: help install-all demo reproduce test test-all mutants storm lint evidence docs clean

help:
	@echo "make demo      compare iCaRL with and without flashback on a small benchmark: three seeds, a few minutes"
	@echo "make reproduce make the table of four hosts on the small benchmark as the evidence was made: runs, then a report"
	@echo "make test      run the fast tests; run them before every commit"
	@echo "make test-all  run every test: also kills, fuzzing, every snippet of the docs, and the report in a browser"
	@echo "make mutants   break the code in one line at a time and check that the fast tests notice"
	@echo "make lint      check style and types"
	@echo "make storm     kill commands KILLS=200 times, let every file operation fail, and check that nothing is lost"
	@echo "make evidence  fill in docs/evidence.md and its appendix from the records in results/"
	@echo "make docs      build the pages of docs/ into site/"
	@echo "make clean     remove .venv and the runs of demo and reproduce"

install-all: $(INSTALLED)
	@$(PIP) -e '.[dev,docs,browser]'

demo: $(INSTALLED)
	@rm -rf runs/demo
	@$(BIN)/flashback compare icarl --benchmark split-fashion-mini --seeds 3 --jobs 2 --out runs/demo
	@$(BIN)/flashback report runs/demo >runs/demo/answers.txt && tail -n 1 runs/demo/answers.txt

reproduce: $(INSTALLED)
	@$(BIN)/flashback sweep reproduction/embedded.yaml --jobs 2 --out runs/reproduce
	@$(BIN)/flashback report runs/reproduce --references reproduction/paper-values.yaml

test: $(INSTALLED)
	@$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(INSTALLED)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { echo "error: chromium or chromedriver is missing; install them (Debian and Ubuntu: apt install chromium chromium-driver)" >&2; exit 1; }
	@$(BIN)/python -c 'import selenium' 2>/dev/null || $(PIP) -e '.[browser]'
	@$(BIN)/python -m pytest -n 2

mutants: $(INSTALLED)
	@$(BIN)/python tools/mutants.py

storm: $(INSTALLED)
	@$(BIN)/python tools/storm.py --kills $(KILLS) --faults

lint: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

evidence: $(INSTALLED)
	@$(BIN)/python reproduction/evidence.py

docs: $(INSTALLED)
	@$(BIN)/python -c 'import mkdocs, mkdocstrings' 2>/dev/null || $(PIP) -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf .venv runs/demo runs/reproduce

define INSTALL
fail() { echo "error: $$1" >&2; exit 1; }
for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python); do
  if "$$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    python="$$candidate"
    break
  fi
done
[ -n "$$python" ] || fail "Python 3.11, 3.12 or 3.13 is missing; install one, or name it: make PYTHON=/path/to/python"
"$$python" -c 'import ensurepip, venv' 2>/dev/null ||
  fail "$$python lacks the venv module; install it (Debian and Ubuntu: apt install python3-venv)"
if ! $(BIN)/python -c '' 2>/dev/null; then
  "$$python" -m venv --clear .venv || fail "$$python could not make an environment in .venv"
fi
echo "installing into .venv ..."
$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' >.venv/install.log 2>&1 ||
  fail "the packages could not be installed: is there a network connection, or a package index? (.venv/install.log)"
touch $(INSTALLED)
endef
export INSTALL

$(INSTALLED): pyproject.toml constraints.txt
	@sh -c "$$INSTALL"
