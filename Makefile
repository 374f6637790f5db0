# Every target is one visible command. PYTHON is the interpreter the environment is made with (3.11 or newer).
PYTHON ?= python3
VENV := .venv
ESCKIT := $(VENV)/bin/esckit

.PHONY: setup quickstart real real-supporter real-epitome real-seeker test lint format clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(None if sys.version_info >= (3, 11) else 'esckit needs Python 3.11 or newer; name one: make PYTHON=python3.12 setup')"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

quickstart: setup  ## fresh machine to a finished report
	$(ESCKIT) quickstart

real: setup  ## the same chain on real data: ESCKIT_REAL_DATA names the folder
	$(VENV)/bin/python -m eval.real_esconv

real-supporter: setup  ## a supporter with strategies on ESConv
	$(VENV)/bin/python -m eval.real_supporter

real-epitome: setup  ## a scorer of three mechanisms of empathy
	$(VENV)/bin/python -m eval.real_epitome

real-seeker: setup  ## a tuned and a prompted seeker beside real ones
	$(VENV)/bin/python -m eval.real_seeker

test: setup
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n 2 --dist loadfile

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache *.egg-info
