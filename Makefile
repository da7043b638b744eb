# make picture   makes a picture from a prompt twice, plainly and speculatively, into out/
# make demo      serves the demo on this machine, until Ctrl-C; with PORT=7861 at another port
# make test      runs every check: style, types, tests; with SLOW=1 also the tests that take long, with
#                SLOW=0/8 to SLOW=7/8 an eighth of them
# make docs      builds the site of the pages and the API reference into site/
# make dist      builds wheel and sdist into dist/ and checks them: what they hold, and all that integrations does
# make integrations   types the page of integrations in empty environments, into which it downloads PyTorch
# make speculators   reads the draft heads that mmspec writes with the package speculators
# make mutants   puts small faults into the code and sees whether the tests beside it notice
#
# Each sets up .venv first if need be. PYTHON=python3.12 chooses another Python.

PYTHON ?= python3
PORT ?= 7860
BIN := .venv/bin
CHROMIUM := $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
TESTS := not gpu and not speculators and not llama_cpp and not fresh$(if $(CHROMIUM),, and not browser)$(if $(SLOW),, and not slow)
READY := .venv/.ready

.PHONY: picture demo test docs dist integrations mutants speculators

picture: $(READY)
	@echo "Making a picture twice, plainly and speculatively ..."
	@$(BIN)/mmspec generate "a photo of a purple triangle" \
		--method scd --compare -o out/
	@echo "Done: the pictures, both side by side, and stats.json are in out/"

demo: $(READY)
	@echo "Starting the demo at port $(PORT); make demo PORT=... takes another"
	@$(BIN)/mmspec demo --port $(PORT)

test: $(READY)
	@echo "Checking style ..."
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "Checking types ..."
	@$(BIN)/mypy
	@echo "Running the tests, one process on each core ..."
	@$(BIN)/python -m pytest -n logical --dist worksteal -m "$(TESTS)" \
		$(if $(findstring /,$(SLOW)),--slow-part $(SLOW))
	@echo "Done: all checks passed"

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Done: open site/index.html; its search wants a server, python -m http.server -d site"

dist: $(READY)
	@rm -rf dist
	@$(BIN)/python -m build
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/python -m pytest -m "slow or not slow" tests/test_packaging.py
	@WHEEL="$$(ls dist/*.whl)" $(BIN)/python -m pytest -m fresh tests/test_integrations_page.py
	@echo "Done: wheel and sdist are in dist/"

integrations: $(READY)
	@$(BIN)/python -m pytest -m fresh tests/test_integrations_page.py

mutants: $(READY)
	@$(BIN)/python tests/mutants.py

# an environment of its own, since the package wants older versions of others; what suits it is the
# first one's
SITE = import sysconfig; print(sysconfig.get_path("purelib"))
speculators:
	@$(PYTHON) -m venv .venv-speculators
	@$(BIN)/python -c '$(SITE)' > "$$(.venv-speculators/bin/python -c '$(SITE)')/first.pth"
	@.venv-speculators/bin/python -m pip install --editable . 'speculators==0.9.*'
	@.venv-speculators/bin/python -m pytest -m speculators tests/models/heads/formats

# what they need beside the package
demo: .venv/.with-demo
docs: .venv/.with-docs
test dist integrations mutants speculators: .venv/.with-eval,train,demo,serve,docs,dev

.venv/.with-%: $(READY)
	@$(BIN)/python -m pip install --editable '.[$*]'
	@touch '$@'

# Some systems ship Python without the pip that a new environment needs; the system's pip then
# puts one in.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("mmspec needs Python 3.10 or newer, and $(PYTHON) is %d.%d; \
	name another one: make PYTHON=..." % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	@echo "Setting up .venv; the first time this downloads PyTorch, which takes some minutes"
	@echo "(on Linux it brings CUDA along: some 6 GB of disk) ..."
	@$(PYTHON) -m venv .venv >/dev/null 2>&1 || \
		{ $(PYTHON) -m venv --clear --without-pip .venv && \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
	@$(BIN)/python -m pip install --quiet 'pip>=21.3' # the first that knows editable pyproject.toml
	@$(BIN)/python -m pip install --editable .
	@touch $@
