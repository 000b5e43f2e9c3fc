# `make demo` runs the main job, `make test` the whole suite; each makes its own .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TORCHRL := $(VENV)/torchrl
SOURCES := $(wildcard csrc/*) CMakeLists.txt pyproject.toml requirements-dev.txt

# Threads that spin while they wait ruin each other on shared cores: training is three times as fast without.
export OMP_WAIT_POLICY := passive

.PHONY: demo test torchrl docs pictures examples sanitize clean

demo: $(STAMP)
	$(BIN)/replaybank demo

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	TD_CHECK_INVARIANTS=1 $(BIN)/pytest
	tests/sanitize.sh --short
	$(MAKE) torchrl
	$(MAKE) docs

# torchrl's transforms in our buffers. Its Python part is enough, in a folder that nothing else sees; where it
# cannot be fetched, the tests are skipped and say so.
torchrl: $(STAMP)
	test -e $(TORCHRL)/torchrl || $(BIN)/python -m pip install --quiet --no-deps --target $(TORCHRL) \
		"torchrl==0.14.1" packaging || rm -rf $(TORCHRL)
	PYTHONPATH=$(TORCHRL) $(BIN)/pytest -q tests/buffers/test_torchrl_transforms.py

docs: $(STAMP)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b doctest docs docs/_build/doctest

# Each of them in full, one after the other; `make -j 2 examples` runs two at a time.
EXAMPLES := $(wildcard examples/*.py)
examples: $(EXAMPLES:%=run/%)
.PHONY: $(EXAMPLES:%=run/%)
$(EXAMPLES:%=run/%): run/%: $(STAMP)
	$(BIN)/python $*

# The pictures of the documentation, drawn and taken anew; needs a Chromium.
pictures: $(STAMP)
	$(BIN)/python docs/pictures/draw.py docs/pictures
	$(BIN)/python docs/pictures/report.py docs/pictures

# The native core's tests under the address and undefined-behaviour sanitizers (gcc); some minutes.
sanitize: $(STAMP)
	tests/sanitize.sh

$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.11" "nanobind>=2.8" cmake ninja
	$(BIN)/python -m pip install --quiet --no-build-isolation -e ".[dev,docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build
