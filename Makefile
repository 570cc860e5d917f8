# Each line is one a user could type.
PYTHON ?= python3
DATA ?= data/photos
HDD ?=
SSD ?=
NVME ?=
MODE ?= quick
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
# Processes that test at the same time: twice two cores, as many tests wait for a device.
AT_ONCE ?= 4
# --allow-root is refused by nobody but root, and only root needs it.
ROOT := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

# pip compiles nothing here (see below), so Python has to keep what it compiles itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: lab jupyter test test-long gpu notebooks docs wheel environments report headless clean

lab: .venv/lab
	$(BIN)/python data_scripts/make_photos.py "$(DATA)" --or-adopt
	$(BIN)/labkit doctor --write --data "$(DATA)" $(if $(HDD),--hdd "$(HDD)") \
		$(if $(SSD),--ssd "$(SSD)") $(if $(NVME),--nvme "$(NVME)")
	$(BIN)/labkit run --mode $(MODE) --data "$(DATA)"
	$(BIN)/labkit report
	@echo "Open results/index.html, then go on with: make jupyter"

jupyter: .venv/lab
	$(BIN)/jupyter lab --ServerApp.ip=127.0.0.1 $(ROOT) notebooks/00_start.ipynb

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m benchmarks.notebooks --check
	$(BIN)/pytest -n $(AT_ONCE) --dist loadscope --no-loadscope-reorder -m "not alone and not long"
	$(BIN)/pytest -m alone $$(grep -rl --include='*.py' mark.alone tests)

# What takes long, and of which shorter tests cover most.
test-long: .venv/dev
	$(BIN)/pytest -n $(AT_ONCE) --dist loadscope --no-loadscope-reorder -m long

gpu: .venv/dev
	$(BIN)/python -m benchmarks.gpu

# Draws the charts and the page of results/examples, and writes the outputs of the notebooks, which show these runs.
notebooks: .venv/dev
	$(BIN)/python -m benchmarks.notebooks --charts

docs: .venv/docs
	$(BIN)/sphinx-build -W --keep-going --quiet --fresh-env -c docs . build/docs
	cp build/docs/README.html build/docs/index.html
	@echo "Open build/docs/index.html"

wheel: .venv/dev
	$(BIN)/python -m benchmarks.wheel

environments: .venv/dev
	$(BIN)/python -m benchmarks.environments

report: .venv/lab
	$(BIN)/labkit report

# opencv-python needs the libraries of a screen, which a server lacks; the other one is the same cv2.
headless:
	$(BIN)/pip uninstall --quiet --yes opencv-python
	$(INSTALL) --force-reinstall --no-deps \
		opencv-python-headless==$$(sed -n 's/^opencv-python==//p' constraints.txt)

clean:
	rm -rf .venv build *.egg-info

# pip would compile every module of every package, half a minute for what nobody imports; so the
# big ones are imported once instead, which compiles what is used.
.venv/lab: pyproject.toml constraints.txt
	@echo "Installing the lab into .venv: downloads 0.4 GB with torch's CPU build, 3 GB with its CUDA build"
	@command -v nvidia-smi >/dev/null || echo "No NVIDIA GPU found: the CPU build is enough; README says how to choose it"
	$(PYTHON) -m venv .venv
	$(INSTALL) 'pip>=23.1'  # an older one runs the deprecated setup.py of prefetch_generator
	$(INSTALL) --editable '.[lab]'
	@$(BIN)/python -c "import cv2" 2>/dev/null || $(MAKE) headless
	@$(BIN)/python -c "import cv2, matplotlib.figure, pandas, scipy.special, torch"
	@touch $@

.venv/dev: .venv/lab
	$(INSTALL) --editable '.[dev]'
	@touch $@

.venv/docs: .venv/lab
	$(INSTALL) --editable '.[docs]'
	@touch $@
