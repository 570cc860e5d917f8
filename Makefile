# `make lab` measures, `make test` and, with an NVIDIA GPU, `make gpu` prove. Each line is one a user
# could type.
PYTHON ?= python3
DATA ?= data/photos
HDD ?=
SSD ?=
NVME ?=
MODE ?= quick
BIN := .venv/bin
# Processes that test at the same time: twice two cores, as many tests wait for a device.
AT_ONCE ?= 4
# --allow-root is refused by nobody but root, and only root needs it.
ROOT := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

# pip compiles nothing here (see below), so Python has to keep what it compiles itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lab jupyter test gpu environments report clean

lab: .venv/core
	$(BIN)/python data_scripts/make_photos.py "$(DATA)" --or-adopt
	$(BIN)/labkit doctor --write --data "$(DATA)" $(if $(HDD),--hdd "$(HDD)") \
		$(if $(SSD),--ssd "$(SSD)") $(if $(NVME),--nvme "$(NVME)")
	$(BIN)/labkit run --mode $(MODE) --data "$(DATA)"
	$(BIN)/labkit report
	@echo "Open results/index.html, then go on with: make jupyter"

jupyter: .venv/core
	$(BIN)/jupyter lab --ServerApp.ip=127.0.0.1 $(ROOT) notebooks/00_start.ipynb

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify notebooks/*.ipynb
	$(BIN)/pytest -n $(AT_ONCE) --dist loadscope --no-loadscope-reorder -m "not alone"
	$(BIN)/pytest -m alone $$(grep -rl --include='*.py' mark.alone tests)

gpu: .venv/dev
	$(BIN)/python -m benchmarks.gpu

environments: .venv/core
	$(BIN)/python -m benchmarks.environments

report: .venv/core
	$(BIN)/labkit report

clean:
	rm -rf .venv build *.egg-info

# pip would compile every module of every package, half a minute for what nobody imports; so the
# big ones are imported once instead, which compiles what is used.
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable .
	@$(BIN)/python -c "import cv2, matplotlib.figure, pandas, scipy.special, torch"
	@touch $@

.venv/dev: .venv/core
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
