"""Checks of methods that improve a small vision-language-action policy."""

from robot_rl.bench.checks.check import EVERY, Arm, Check, flags

TOLD = flags(
    EVERY, "--training.updates 1500 --policy.horizon 4 --policy.execute 4",
    "--policy.encoder.width 64 --policy.encoder.channels 16 32 --policy.encoder.layers 1",
)
EITHER = flags("--skill STEADY --episodes 600 --num-envs 50 --keep-failures")
"""Data for discs: half of the episodes go to the wrong disc."""
WRITES, FLOWS = Arm("vla-tokens", TOLD), Arm("vla-sft", TOLD)
CORRECTED = flags("--training.steps 50000 --training.demo-share 0")
"""No demonstration on discs-beside succeeds."""
STEERED = flags("--training.steps 50000 --training.num-envs 32 --training.updates-per-step 0.15")
ROUNDS = flags("--training.rounds 100")

VLA_CHECKS: dict[str, Check] = {
    "vla-rl": Check(
        "Rewards move the tokens of a policy that goes to either disc to the right disc.",
        "testbed:discs", Arm("vla-rl", flags("--training.steps 50000 --training.rollout 20")), WRITES, EITHER, WRITES,
        at_least=0.6, second=Arm("vla-rl", flags("--training.steps 50000 --training.rollout 20 --agent.critic-only 0")),
    ),
    "srpo": Check(
        "Comparison with other episodes from the same start moves the policy to the right disc.",
        "testbed:discs", Arm("srpo", ROUNDS), WRITES, EITHER, WRITES, at_least=0.6,
        second=Arm("srpo", flags(ROUNDS, "--agent.no-shaping")),
    ),
    "grape": Check(
        "Preference of the better episodes from the same start moves the policy to the right disc.",
        "testbed:discs", Arm("grape", ROUNDS), WRITES, EITHER, WRITES, at_least=0.6,
        second=Arm("srpo", flags(ROUNDS, "--agent.no-shaping --agent.no-baseline")),
    ),
    "dsrl-vla": Check(
        "Learned noise steers a frozen vision-language-action policy to the right disc.",
        "testbed:discs",
        Arm("dsrl", STEERED), FLOWS,
        EITHER, FLOWS, at_least=0.6, second=Arm("resfit", flags("--training.steps 50000")),
    ),
    "resfit-vla": Check(
        "A residual on a frozen vision-language-action policy corrects its error of calibration; its noise cannot.",
        "testbed:discs-beside", Arm("resfit", CORRECTED), FLOWS, EITHER, FLOWS, at_least=0.6,
        second=Arm("dsrl", STEERED),
    ),
    "rlt": Check(
        "Edits of a frozen policy's chunks, from a few of its features, correct its error of calibration.",
        "testbed:discs-beside", Arm("rlt", STEERED), FLOWS, EITHER, FLOWS, at_least=0.6, second=Arm("dsrl", STEERED),
    ),
}  # fmt: skip
