# Two commands: `make lab` measures, `make test` proves. Each line is one a user could type.
PYTHON ?= python3
DATA ?= data/photos
HDD ?=
SSD ?=
NVME ?=
MODE ?= quick
BIN := .venv/bin
# Processes that test at the same time.
AT_ONCE ?= 2
# --allow-root is refused by nobody but root, and only root needs it.
ROOT := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

# pip compiles nothing here (see below), so Python has to keep what it compiles itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lab jupyter test test-all report clean

lab: .venv/core
	$(BIN)/python data_scripts/make_photos.py "$(DATA)" --or-adopt
	$(BIN)/labkit doctor --write --data "$(DATA)" $(if $(HDD),--hdd "$(HDD)") \
		$(if $(SSD),--ssd "$(SSD)") $(if $(NVME),--nvme "$(NVME)")
	$(BIN)/labkit run --mode $(MODE) --data "$(DATA)"
	$(BIN)/labkit report
	@echo "Open results/index.html, then go on with: make jupyter"

jupyter: .venv/core
	$(BIN)/jupyter lab --ServerApp.ip=127.0.0.1 $(ROOT) notebooks/00_start.ipynb

# Two files of tests at a time; then what measures, alone.  A failure in the first is no reason to
# leave out the second.
define tests
status=0; \
$(BIN)/pytest -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder -m "not alone and $(1)" || status=1; \
$(BIN)/pytest -m "alone and $(1)" || status=1; \
exit $$status
endef

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --verify notebooks/*.ipynb
	$(call tests,not thorough)

# Everything: half an hour and more.
test-all: test
	$(call tests,thorough)

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
