# `make demo` and `make test` do everything, set-up included.
# Another Python: make PYTHON=python3.12. Options for a command: make test ARGS="-k launch".
PYTHON ?= python3
ARGS ?=
COMMA := ,
BIN := .venv/bin
# With rclpy from wheels, unless a ROS 2 is sourced, whose libraries would mix with theirs.
EXTRAS ?= all$(if $(AMENT_PREFIX_PATH),,$(COMMA)ros2)
unexport PYTHONDONTWRITEBYTECODE  # tests start many processes, which would compile every module again
STAMP := .venv/.installed
SIMS := .venv-sims/.installed
LEROBOT := .venv-lerobot/.installed
PEERS := .venv-peers/.installed

.DEFAULT_GOAL := install
.PHONY: install demo demo-go2 demo-vla sims peers test check clean

install: $(STAMP)  ## set up .venv (default)

demo: $(STAMP)  ## learn, deploy, correct, report
	$(BIN)/robot-rl demo $(ARGS)

demo-go2: $(STAMP)  ## a quadruped learns to walk, walks in Genesis and on its own topics
	$(BIN)/robot-rl demo go2 $(ARGS)

demo-vla: $(STAMP)  ## a small policy learns to see and read, practises, and is told what to do
	$(BIN)/robot-rl demo vla $(ARGS)

sims: $(SIMS) $(LEROBOT)  ## simulators of Franka's protocol and of Fetch, Unitree's SDK, LeRobot, which pin older packages

peers: $(PEERS)  ## LeRobot's trainer and policies, for `bench peers`

# A busy computer misses deadlines now and then, a defect always: real-time tests get three tries, listed as reruns.
test: $(STAMP) $(SIMS) $(LEROBOT)  ## in parallel, then the real-time tests alone
	$(BIN)/python -m pytest -m "not realtime" -n 2 --max-worker-restart 0 $(ARGS)
	$(BIN)/python -m pytest -m realtime --reruns 2 -r fER $(ARGS)

check: $(STAMP)  ## style, types, import layers
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

clean:  ## forget the environment and the caches; runs/ and datasets/ stay
	rm -rf .venv .venv-sims .venv-lerobot .venv-peers build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml constraints.txt setup.py setup.cfg
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || { \
	  echo "robot-rl needs Python 3.11, 3.12 or 3.13, not $$($(PYTHON) -V 2>&1); name one: make PYTHON=python3.12" >&2; exit 1; }
	@.ci/system-packages $(PYTHON)
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

# Unitree's SDK comes without OpenCV, which it requires but does not import.
$(SIMS): Makefile
	@test -x .venv-sims/bin/pip || $(PYTHON) -m venv .venv-sims
	.venv-sims/bin/python -m pip install --disable-pip-version-check franka-sim==1.1.7 franky-sim==1.0.4 cyclonedds==11.0.1 \
	  gymnasium-robotics==1.4.2
	.venv-sims/bin/python -m pip install --disable-pip-version-check --no-deps unitree-sdk2py-dimos==1.0.3
	@touch $@

# LeRobot with what its robots need, which is neither torch nor its data sets.
$(LEROBOT): Makefile
	@test -x .venv-lerobot/bin/pip || $(PYTHON) -m venv .venv-lerobot
	.venv-lerobot/bin/python -m pip install --disable-pip-version-check \
	  'deepdiff<9' draccus==0.10.0 feetech-servo-sdk==1.0.0 'huggingface-hub<0.36' numpy tqdm
	.venv-lerobot/bin/python -m pip install --disable-pip-version-check --no-deps lerobot==0.4.4
	@touch $@

# LeRobot with what its trainer and its policies of states import. It asks for an older torch, and for packages of robots,
# cameras and video. torchvision is for its imports alone (see robot_rl/bench/peers/lerobot_process.py).
$(PEERS): Makefile
	@test -x .venv-peers/bin/pip || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --disable-pip-version-check \
	  torch==2.13.0 accelerate==1.15.0 av==18.1.0 datasets==4.1.1 'deepdiff<9' diffusers==0.35.2 draccus==0.10.0 einops==0.8.2 \
	  'gymnasium<2' 'huggingface-hub<0.36' imageio jsonlines pyserial termcolor
	.venv-peers/bin/python -m pip install --disable-pip-version-check --no-deps lerobot==0.4.4 torchvision==0.28.0
	@touch $@
