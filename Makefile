# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
ARCH ?= vm
KEEP ?=
ONLY ?=
SCENARIO ?=
SOAK ?=
SEED ?=
STEPS ?=
# Never the environment's: it adds a commit to a branch.
VERSION :=
PY := .venv/bin/python
SOURCES := core/tpu_core agent/tpu_agent infra bootstrap training/tpu_training localcloud/localcloud tpustack policy tools bench tests
# mypy takes packages; it checks each of the programs next to them alone, as all have one name.
PACKAGES := $(foreach source,$(SOURCES),$(or $(wildcard $(source)/tpu_$(source)),$(source)))

# Every command starts a Python; where its modules are compiled again each time, that takes seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-deploy toolchain demo chaos test unit oldest newest next frameworks soak lint format docs catalog site bench wheel release sbom audit secrets lock clean
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

setup:  ## Make .venv with the locked dependencies
	@$(PYTHON) tools/make_venv.py

setup-deploy:  ## Make .venv for deploying and the local cloud: no TensorFlow, no test tools
	@$(PYTHON) tools/make_venv.py --deploy

toolchain: setup-deploy  ## Find, download or build the Pulumi engine
	@$(PY) tools/install.py

demo: setup  ## From nothing to a trained model (ARCH=vm|node, KEEP=1 leaves it up)
	@$(PY) -m tpustack demo --architecture $(ARCH) $(if $(KEEP),--keep)

chaos: setup  ## Train while things go wrong (SCENARIO=file STEPS=200, or SOAK=200 SEED=0)
	@$(PY) -m tests.chaos $(if $(STEPS),--steps $(STEPS)) \
	  $(if $(SOAK),--soak $(SOAK) --seed $(or $(SEED),0),$(or $(SCENARIO),docs/chaos/lost-tpu.yaml))

test: setup  ## Run the whole suite
	@$(PY) -m pytest -n 5 --dist loadgroup tests/e2e tests/integration tests/unit

unit: setup  ## Run the quick tests: no engine, server or training, nothing slow (3 minutes of CPU)
	@# A tenth of the examples by chance. A file of which every test is left out would be imported all
	@# the same, with TensorFlow.
	@$(PY) -m pytest -n 2 --hypothesis-profile=quick \
	  -m 'not engine and not server and not training and not slow' tests/unit \
	  $$(grep -rlE '^pytestmark = .*(server|training|"cluster")' tests/unit | sed 's/^/--ignore=/')

oldest: setup  ## Test training/ with the oldest TensorFlow it runs with (ONLY="file file" for some)
	@test -d .venv-oldest || .venv/bin/uv venv --quiet --python '>=3.10,<3.12' .venv-oldest
	@.venv/bin/uv pip install --quiet --python .venv-oldest --require-hashes \
	  -r requirements-oldest.txt
	@.venv/bin/uv pip install --quiet --python .venv-oldest --no-deps --no-build-isolation \
	  --editable training
	@.venv-oldest/bin/python -m pytest -n 2 --dist loadgroup $(or $(ONLY),tests/unit/training)

newest: setup  ## Test training/ with the newest TensorFlow (ONLY="file file" for some)
	@test -d .venv-newest || .venv/bin/uv venv --quiet --python '>=3.10,<3.13' .venv-newest
	@.venv/bin/uv pip install --quiet --python .venv-newest --require-hashes \
	  -r requirements-newest.txt
	@.venv/bin/uv pip install --quiet --python .venv-newest --no-deps --no-build-isolation \
	  --editable training
	@.venv-newest/bin/python -m pytest -n 2 --dist loadgroup $(or $(ONLY),tests/unit/training)

next: setup  ## Test and type-check infra/ with the next generation of Google's provider
	@test -d .venv-next || .venv/bin/uv venv --quiet --python '>=3.10,<3.13' .venv-next
	@.venv/bin/uv pip install --quiet --python .venv-next --require-hashes \
	  -r requirements-next.txt
	@# Those tests that need no local cloud and do not go by chance: their libraries are not here.
	@PYTHONPATH=core:agent:infra .venv-next/bin/python -m pytest \
	  $$(grep -rLE 'localcloud|tests.compiled|\.replay|hypothesis' --include='test_*.py' \
	  tests/unit/infra)
	@.venv-next/bin/python -m mypy --config-file mypy-next.ini infra/tpu_infra

frameworks: setup  ## Run the examples of all frameworks (their environments take 8 GB, once)
	@$(PY) -m pytest -m frameworks tests/integration/test_frameworks.py

soak: setup  ## Train through twenty faults by chance (some minutes)
	@$(PY) -m pytest -m soak tests/e2e/test_chaos.py

lint: setup  ## Run ruff, the strict type checker, the prose and structure checks
	@$(PY) -m ruff check $(SOURCES) examples
	@$(PY) -m ruff format --check $(SOURCES) examples
	@$(PY) -m mypy $(PACKAGES)
	@for program in bootstrap infra policy; do $(PY) -m mypy $$program/__main__.py || exit; done
	@$(PY) tools/prose.py
	@$(PY) -m pytest -q tests/unit/structure tests/unit/tools/test_form.py

format: setup  ## Format the code
	@$(PY) -m ruff check --fix $(SOURCES) examples
	@$(PY) -m ruff format $(SOURCES) examples

docs: setup  ## Generate docs/settings.md, docs/commands.md and docs/errors.md from the code
	@$(PY) -m tpustack settings --markdown > docs/settings.md
	@$(PY) tools/commands_page.py > docs/commands.md
	@$(PY) -m tpustack doctor --markdown > docs/errors.md

catalog: setup  ## Generate what other packages know of TPUs and machines from infra/tpu_infra/catalog
	@$(PY) tools/local_catalog.py
	@$(PY) tools/training_catalog.py

# Its release, if no later one is tagged; v0.3.0a1, b1 and rc1 come before one.
LATEST = $(if $(filter v$(VERSION).%,$(shell git tag --sort=version:refname --list 'v*' | \
  grep -v '[abc]' | tail -n 1)),latest)

site: setup  ## Build the documentation site into build/site (VERSION=0.2 adds it to the branch gh-pages)
ifdef VERSION
	@NO_MKDOCS_2_WARNING=1 PATH=".venv/bin:$$PATH" mike deploy --update-aliases $(VERSION) $(LATEST)
	@.venv/bin/mike set-default --allow-undefined latest
else
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --clean
	@echo "To read it, with search: $(PY) -m http.server --bind 127.0.0.1 --directory build/site"
endif

bench: setup  ## Measure, side by side in one run (ONLY="name name" for some)
	@$(PY) -m bench $(ONLY)

wheel: setup-deploy  ## Build the training wheel into dist/
	@$(PY) -m tpustack wheel

release: setup-deploy  ## Build wheels and sources of all distributions, and their digests, into dist/
	@rm -rf dist
	@# Each wheel is built from the source distribution, so that neither lacks what the other has.
	@set -e; for source in . core training localcloud tpustack; do SOURCE_DATE_EPOCH=315532800 .venv/bin/uv build --quiet \
	  --no-build-isolation --python $(PY) --out-dir dist $$source; done
	@cd dist && sha256sum *.whl *.tar.gz > SHA256SUMS && cat SHA256SUMS

release-tools: setup-deploy
	@test -d .venv-release || .venv/bin/uv venv --quiet --python '>=3.10,<3.13' .venv-release
	@.venv/bin/uv pip install --quiet --python .venv-release --require-hashes \
	  -r requirements-release.txt

BOM := .venv-release/bin/cyclonedx-py requirements --output-reproducible --pyproject

sbom: release-tools  ## List what a deployment and a machine install, as CycloneDX, in dist/
	@mkdir -p dist
	@$(BOM) pyproject.toml --output-file dist/deployment.cdx.json requirements-deploy.txt
	@$(BOM) training/pyproject.toml --output-file dist/machine.cdx.json \
	  agent/tpu_agent/locks/tensorflow-cpu-2.19.1.txt

# Users choose older releases of TensorFlow, and only newer ones fix their advisories.
AUDITED := $(foreach lock,requirements requirements-deploy requirements-newest requirements-next \
  requirements-release agent/tpu_agent/locks/tensorflow-cpu-2.19.1 \
  agent/tpu_agent/locks/tensorflow-tpu-2.19.1 agent/tpu_agent/locks/tensorflow-cpu-jax-2.19.1 infra/tpu_infra/template/requirements,$(lock).txt) $(wildcard examples/*/requirements.txt)

# Each exception has its reason in .pip-audit.txt.
audit: release-tools  ## Ask the advisory databases about every locked package (needs the network)
	@for lock in $(AUDITED); do echo $$lock; \
	  .venv-release/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off \
	  $$(sed -n 's/^\([A-Z][A-Z0-9a-z-]*\) .*/--ignore-vuln \1/p' .pip-audit.txt) \
	  --requirement $$lock || failed=1; done; test -z "$$failed"

secrets: setup-deploy  ## Look for secrets in every commit
	@$(PY) tools/scan.py gitleaks git --no-banner --redact

LOCK := .venv/bin/uv pip compile --quiet --python-version 3.10 --generate-hashes \
  --no-emit-index-url --custom-compile-command 'make lock' \
  --no-emit-package tpu-stack-core \
  --no-emit-package tpu-stack-training --no-emit-package tpu-stack-localcloud

lock: setup  ## Pin the dependencies again, with hashes
	@$(LOCK) --universal pyproject.toml --group pyproject.toml:dev --output-file requirements.txt
	@$(LOCK) --universal pyproject.toml --group pyproject.toml:setup \
	  --constraint requirements.txt --output-file requirements-deploy.txt
	@$(LOCK) requirements-oldest.in --output-file requirements-oldest.txt
	@$(LOCK) requirements-newest.in --output-file requirements-newest.txt
	@$(LOCK) --universal requirements-next.in --output-file requirements-next.txt
	@# A new project's: as for deploying, but the newest provider. With TPU Nodes, the entries of 8.
	@sed -n '/^[ #]/d; /^pulumi-gcp=/d; s/ \\$$//p' requirements-deploy.txt > .new-project.txt
	@grep -o '^pulumi-gcp==[^ ]*' requirements-next.txt >> .new-project.txt
	@$(LOCK) --universal --no-annotate pyproject.toml --group pyproject.toml:setup \
	  --constraint .new-project.txt --output-file infra/tpu_infra/template/requirements.txt
	@rm .new-project.txt
	@printf 'parver\npulumi-gcp\n' | $(LOCK) --universal --no-annotate --no-deps - \
	  --constraint requirements.txt --output-file infra/tpu_infra/locks/pulumi-gcp-8.txt
	@$(LOCK) --universal requirements-release.in --output-file requirements-release.txt
	@$(PY) tools/lock_machines.py

clean:  ## Stop the local cloud and remove all that was made here, except .venv
	@if [ -x $(PY) ]; then $(PY) -m localcloud stop; $(PY) -m tpustack.engine.toolchain; fi
	@rm -rf .demo .localcloud .state dist build
