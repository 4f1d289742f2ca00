# Two commands do all the set-up: `make demo` and `make test`. PIP_ARGS is passed on to pip (a mirror, a wheel folder).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt $(PIP_ARGS)

.PHONY: demo test test-oracles lint primer chaos clean

demo: $(VENV)/.installed-plot  ## train, watch, generate: about two and a half minutes
	@$(BIN)/foretell demo

test: $(VENV)/.installed-dev  ## formatting, types and all tests
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/pyrefly check --summary=none
	$(BIN)/pytest

test-oracles: $(VENV)/.installed-dev $(VENV)/.installed-oracles  ## what llama.cpp, built from source, makes of our files
	$(BIN)/pytest -m oracles -rs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

primer: $(VENV)/.installed-plot  ## make the shipped model again, from its recipe
	$(BIN)/python -m foretell.primer.make

chaos: $(VENV)/.installed-dev  ## 100 real kills and 10,000 damages, in a few minutes
	$(BIN)/python bench/chaos.py

# A stamp a set of extras, so that what is installed is not installed again
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing foretell[$*] into $(VENV) (torch is the large part)"
	@$(INSTALL) --editable '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
