"""The table of checks: each method against a control on a task where the two should differ.

A check that its control passes as well proves nothing, and fails: change the task. Steps are chosen so that an arm
takes at most about eight minutes alone on one core, and most take fewer than three.
"""

from __future__ import annotations

from dataclasses import dataclass

EXPERT = "expert"
"""Recipe of an arm that is the task's scripted demonstrator, only evaluated."""


@dataclass(frozen=True)
class Arm:
    """One side of a check."""

    recipe: str
    """A recipe, or "expert"."""
    flags: tuple[str, ...] = ()
    """Further flags of `robot-rl train`; of `robot-rl evaluate` for "expert"."""


@dataclass(frozen=True)
class Check:
    """A claim about a method, and what measures it."""

    claim: str
    """What should differ, in one short sentence."""
    task: str
    method: Arm
    control: Arm
    data: tuple[str, ...] = ()
    """Flags of `robot-rl collect TASK`: the dataset of each seed; (): none."""
    base: Arm | None = None
    """Trained first with the same data and seed; both arms get it as --base if they need it."""
    figure: str = "success"
    """Figure of `robot-rl evaluate` that is compared: success, return, or a metric of the task."""
    at_least: float = 0.0
    """What the method must reach as well, and the control must not."""
    evaluate: tuple[str, ...] = ()
    """Further flags of `robot-rl evaluate` for both arms."""
    paper: str = ""
    """Authors, year and arXiv number of an option, where the recipe's are others."""


WEAK = ("--skill", "WEAK", "--episodes", "300", "--num-envs", "50", "--keep-failures")
"""Data of mixed quality: of these episodes about four in ten succeed."""
MANY = ("--skill", "WEAK", "--episodes", "3000", "--num-envs", "100", "--keep-failures")
"""The same for a task of one or two steps per episode, where 300 episodes are soon memorized."""
MIXED = ("--skill", "MIXED", "--episodes", "100", "--num-envs", "50")
"""Each episode has a habit, from half strength in the wrong direction to full strength in the right one."""
BOTH_SIDES = ("--skill", "STEADY", "--episodes", "50")
ONE_SIDE = ("--skill", "STEADY", "--episodes", "100", "--num-envs", "50", "--keep-failures")
"""Of fork-right and fork-fast-right: half of these episodes pass on the left, which does not count."""
SINGLE = ("--policy.horizon", "1", "--policy.execute", "1")
EVERY = ("--training.demos", "all")
OFFLINE = ("--training.offline-updates", "15000")
FEW = ("--training.offline-updates", "7000")
HALF = ("--training.batch", "128", "--agent.hidden", "128", "128")
OFFERS = (*HALF, "--policy.flow.hidden", "128", "128", "--policy.flow.sample-steps", "5")
"""With 32 candidates of 256 rows in ten steps, as published, an update takes half a second on a core."""
EDITS = (
    *OFFERS, "--policy.candidates", "4", "--training.offline-updates", "3000", "--training.steps", "5000",
    "--agent.critics", "4",
)  # fmt: skip
DENSE = ("--training.reward", "task")
OFFLINE_THEN = (
    *DENSE, "--training.offline-updates", "3000", "--training.steps", "6000", "--training.batch", "128",
)  # fmt: skip
CHEETAH = ("--training.steps", "20000")
PAIR = (
    "--training.num-envs", "64", "--training.rollout", "50", "--training.steps", "300000", "--policy.history", "1",
)  # fmt: skip
PENDULUM = ("--training.steps", "4000")
TEN = ("--training.steps", "10000")
LONG = (
    "--training.steps", "40000", "--agent.critics", "4", "--agent.hidden", "128", "128",
    "--policy.hidden", "128", "128",
)  # fmt: skip
"""Many steps of small networks; each takes about a quarter of the time of ten critics of 256 by 256."""
SUCCESS = ("--training.reward", "success")
SPARSE = ("--training.steps", "7000")
OFFLINE_BINS = ("--training.offline-updates", "4000", "--training.steps", "0", "--agent.imitation", "0")
WATCHED = (
    "--training.steps", "15000", "--training.batch", "128", "--training.updates-per-step", "1",
    "--operator.patience", "10",
)  # fmt: skip
NOTHING = (
    "--agent.imitation", "0.3", "--agent.l2", "0", "--agent.n-step", "1", "--agent.initial-temperature", "0.01",
    "--agent.target-entropy", "-1",
)  # fmt: skip
"""hil-serl from nothing: as published, but for a little cloning of corrections."""
REACH = (
    "--policy.history", "1", "--training.num-envs", "64", "--training.rollout", "25", "--training.steps", "360000",
)  # fmt: skip
TOLD = (
    *EVERY, "--training.updates", "1500", "--policy.horizon", "4", "--policy.execute", "4",
    "--policy.encoder.width", "64", "--policy.encoder.channels", "16", "32", "--policy.encoder.layers", "1",
)  # fmt: skip
EITHER = ("--skill", "STEADY", "--episodes", "600", "--num-envs", "50", "--keep-failures")
"""Of discs: half of these episodes go to the disc that does not count."""
WRITES, FLOWS = Arm("vla-tokens", TOLD), Arm("vla-sft", TOLD)
"""Starts of practice. All methods practise about 6,400 episodes, 50,000 steps."""
ROUNDS = ("--training.rounds", "100")
AIMLESS = ("--skill", "RANDOM", "--episodes", "300", "--num-envs", "50", "--keep-failures")
CARELESS = ("--operator.skill", "WEAK")
JUDGED = (
    "--training.steps", "15000", "--training.batch", "128",
    "--operator.rule", "value-gap", "--operator.gap", "0.99", "--operator.rate", "0", "--operator.length", "1",
    "--training.updates-per-step", "2", "--agent.critics", "4", "--agent.hidden", "128", "128",
    "--gaussian.hidden", "128", "128",
)  # fmt: skip
"""One wasted step costs 2 % of the value here, so that nothing is worth less than the published 95 % of the best."""


def goal(option: str) -> tuple[str, ...]:
    """Return flags that say where the maze's state tells goals."""
    return (f"{option}.achieved", "position", f"{option}.difference", "", f"{option}.tolerance", "0.1")


checks: dict[str, Check] = {
    "diffusion-bc": Check(
        "A diffusion policy keeps to one of two ways, regression runs into the obstacle between them.",
        "testbed:fork-fast", Arm("diffusion-bc"), Arm("bc"), BOTH_SIDES, at_least=0.9,
    ),
    "flow-bc": Check(
        "A flow policy keeps to one of two ways, regression runs into the obstacle between them.",
        "testbed:fork-fast", Arm("flow-bc"), Arm("bc"), BOTH_SIDES, at_least=0.9,
    ),
    "iql": Check(
        "Values tell good habits from bad ones, a clone mixes them.",
        "testbed:swing", Arm("iql", (*OFFLINE, *DENSE, "--agent.temperature", "3")), Arm("bc", EVERY), MIXED,
        figure="return", at_least=-800,
    ),
    "td3-bc": Check(
        "Values tell good habits from bad ones, a clone mixes them.",
        "testbed:swing", Arm("td3-bc", (*OFFLINE, *DENSE)), Arm("bc", EVERY), MIXED, figure="return", at_least=-800,
    ),
    "cal-ql": Check(
        "Values tell good habits from bad ones, a clone mixes them.",
        "testbed:swing", Arm("cal-ql", (*FEW, *HALF, *DENSE, "--agent.value-low", "-1700")), Arm("bc", EVERY), MIXED,
        figure="return", at_least=-800,
    ),
    "fql": Check(
        "Values tell good habits from bad ones, a clone mixes them.",
        "testbed:swing", Arm("fql", (*FEW, *DENSE, "--training.batch", "128", "--agent.alpha", "0.1")),
        Arm("bc", EVERY), MIXED, figure="return", at_least=-800,
    ),
    "ofql": Check(
        "Values choose the side that counts from demonstrations of both; a clone passes on either.",
        "testbed:fork-fast-right", Arm("ofql", FEW), Arm("ofql", (*FEW, "--agent.eta", "0")), ONE_SIDE, at_least=0.9,
    ),
    "cfgrl": Check(
        "Guidance to better actions improves on the clone that the same network also is.",
        "testbed:fork-fast-right", Arm("cfgrl", FEW), Arm("cfgrl", (*FEW, "--policy.guidance", "0")), ONE_SIDE,
        at_least=0.9,
    ),
    "qc": Check(
        "Values of chunks choose better than the clone that offers them.",
        "testbed:fork-fast-right", Arm("qc", (*FEW, *OFFERS, "--policy.candidates", "16")),
        Arm("qc", (*FEW, *OFFERS, "--policy.candidates", "1")), ONE_SIDE, at_least=0.9,
    ),
    "dsrl": Check(
        "Noise steers a frozen policy that passes on either side to the one that counts.",
        "testbed:fork-fast-right", Arm("dsrl", ("--training.steps", "5000")), Arm("flow-bc", EVERY), ONE_SIDE,
        Arm("flow-bc", EVERY), at_least=0.9,
    ),
    "consistency": Check(
        "One step distilled from ten keeps to one of two ways, one step of a diffusion policy takes their mean.",
        "testbed:fork-fast", Arm("consistency"), Arm("diffusion-bc", ("--policy.sample-steps", "1")), BOTH_SIDES,
        Arm("diffusion-bc"), at_least=0.9,
    ),
    "dppo": Check(
        "Rewards move the denoising steps of a policy that passes on either side to the one that counts.",
        "testbed:fork-right", Arm("dppo"), Arm("diffusion-bc", EVERY), ONE_SIDE, Arm("diffusion-bc", EVERY),
        at_least=0.85,
    ),
    "adpo": Check(
        "Rewards move the denoising steps of a policy that passes on either side to the one that counts.",
        "testbed:fork-right", Arm("adpo"), Arm("diffusion-bc", EVERY), ONE_SIDE, Arm("diffusion-bc", EVERY),
        at_least=0.85,
    ),
    "slim": Check(
        "A critic for each term learns all of them, one critic of their sum hears the largest.",
        "testbed:pair", Arm("slim", PAIR), Arm("ppo", PAIR), at_least=0.9,
    ),
    "gorl": Check(
        "Rewards move the noise of a flow that passes on either side, and the flow, to the side that counts.",
        "testbed:fork-right",
        Arm("gorl", (
            "--training.reward", "success", "--training.num-envs", "64", "--training.rollout", "60",
            "--training.steps", "150000", "--policy.history", "1", "--agent.stage", "10",
        )),
        Arm("flow-bc", (*EVERY, *SINGLE)), ONE_SIDE, Arm("flow-bc", (*EVERY, *SINGLE)), at_least=0.9,
    ),
    "rl-100": Check(
        "Offline and online rewards move a clone that passes on either side to the side that counts, in one step.",
        "testbed:fork-right", Arm("rl-100", ("--imitation.demos", "all", "--training.steps", "20000")),
        Arm("diffusion-bc", EVERY), ONE_SIDE, at_least=0.85,
    ),
    "rlpd": Check(
        "With 20 demonstrations a sparse reward is learned in steps that are too few without.",
        "testbed:reach", Arm("rlpd", LONG), Arm("sac", (*LONG, *SUCCESS)), ("--episodes", "20"), at_least=0.8,
    ),
    "porl": Check(
        "Practice alone improves a clone that mixes good habits with bad ones.",
        "testbed:swing", Arm("porl", (*TEN, *DENSE, "--agent.critics", "4", "--agent.hidden", "128", "128")),
        Arm("bc", EVERY), MIXED, Arm("bc", EVERY), figure="return", at_least=-400.0,
    ),
    "expo": Check(
        "Edits reach actions that the clone of a weak operator does not offer.",
        "testbed:reach", Arm("expo", EDITS), Arm("expo", (*EDITS, "--policy.scale", "0")), WEAK, at_least=0.7,
    ),
    "chunks-to-steps": Check(
        "Single steps take over where the chunks that a clone offers are not good enough.",
        "testbed:swing",
        Arm("chunks-to-steps", (
            *OFFLINE_THEN, "--chunk.candidates", "8", "--chunk.flow.hidden", "128", "128",
            "--chunk.flow.sample-steps", "5", "--agent.chunks.hidden", "128", "128",
            "--agent.steps.hidden", "128", "128", "--agent.steps.critics", "4",
            "--agent.first", "1000", "--agent.last", "3000",
        )),
        Arm("qc", (
            *OFFLINE_THEN, "--policy.candidates", "8", "--policy.flow.hidden", "128", "128",
            "--policy.flow.sample-steps", "5", "--agent.hidden", "128", "128",
        )),
        MIXED, figure="return", at_least=-400.0,
    ),
    "dsac-t": Check(
        "Values with their own step size learn to run sooner than those of sac with as many updates.",
        "gym:HalfCheetah-v5", Arm("dsac-t", CHEETAH), Arm("sac", CHEETAH), figure="return", at_least=2000.0,
    ),
    "annealed-q": Check(
        "Values of the best action learn to swing up sooner than those of the policy.",
        "gym:Pendulum-v1", Arm("annealed-q", ("--training.steps", "3000", "--agent.anneal-updates", "2250")),
        Arm("sac", ("--training.steps", "3000")), figure="return", at_least=-400.0,
    ),
    "i-qn": Check(
        "Values several Bellman updates ahead learn to swing up sooner than those of one.",
        "gym:Pendulum-v1", Arm("i-qn", PENDULUM), Arm("i-qn", (*PENDULUM, "--agent.iterates", "1")), figure="return",
        at_least=-400.0,
    ),
    "srl": Check(
        "Who plans eight actions can decide at every eighth step; to hold one action so long is too coarse.",
        "testbed:swing", Arm("srl", TEN), Arm("sac", TEN), figure="return", at_least=-400.0,
        evaluate=("--interval", "8"),
    ),
    "flash-sac": Check(
        "Normalized critics without target networks learn to run in steps that are too few for sac.",
        "gym:HalfCheetah-v5", Arm("flash-sac", CHEETAH), Arm("sac", CHEETAH), figure="return", at_least=2000.0,
    ),
    "mr-q": Check(
        "An embedding that predicts what follows learns to run in steps that are too few for td3.",
        "gym:HalfCheetah-v5", Arm("mr-q", TEN), Arm("td3", TEN), figure="return", at_least=500.0,
    ),
    "hl-gauss": Check(
        "Classified values learn a sparse reward in fewer steps than regressed ones.",
        "testbed:push", Arm("rlpd", (*SPARSE, "--agent.head", "hl-gauss")), Arm("rlpd", SPARSE), ("--episodes", "20"),
        at_least=0.8, paper="Farebrother et al. 2024, arXiv 2403.03950",
    ),
    "cqn": Check(
        "With 20 demonstrations, bins learn a sparse reward in steps that are too few without.",
        "testbed:reach", Arm("cqn", ("--training.steps", "24000")),
        Arm("cqn", ("--training.steps", "24000", "--training.demo-share", "0", "--training.no-keep-successes")),
        ("--episodes", "20"), at_least=0.9,
    ),
    "arsq": Check(
        "Dimensions in turn tell good pairs from bad mixes of the same parts; independent ones average them.",
        "testbed:stones", Arm("arsq", OFFLINE_BINS), Arm("arsq", (*OFFLINE_BINS, "--policy.no-conditional")), MANY,
        at_least=0.9,
    ),
    "hil-serl": Check(
        "With an operator's corrections a sparse reward is learned from 5 demonstrations, by practice alone it is not.",
        "testbed:push", Arm("hil-serl", (*WATCHED, *NOTHING)),
        Arm("hil-serl", (*WATCHED, *NOTHING, "--operator.rule", "none")), ("--episodes", "5"), at_least=0.9,
    ),
    "hil-serl-cloned": Check(
        "Values go on where cloning the same weak operator's corrections ends.",
        "testbed:push", Arm("hil-serl", (*WATCHED, *NOTHING, *CARELESS)),
        Arm("hg-dagger", ("--training.steps", "15000", "--operator.patience", "10", *CARELESS)), ("--episodes", "5"),
        at_least=0.6,
    ),
    "rlif": Check(
        "Who acts so that a weak operator does not take over does better than that operator.",
        "testbed:reach", Arm("rlif", (*CARELESS, *JUDGED)),
        Arm(EXPERT, ("--skill", "WEAK")), ("--episodes", "20"), Arm("rlpd", LONG), at_least=0.78,
    ),
    "text2reward": Check(
        "A reward that was written and vetted teaches in steps that are too few for success alone.",
        "testbed:reach", Arm("ppo", (*REACH, "--reward", "benchmarks/rewards/reach.py")),
        Arm("ppo", (*REACH, *SUCCESS)), at_least=0.6, paper="Xie et al. 2023, arXiv 2309.11489",
    ),
    "soar": Check(
        "Three rounds of practice in hindsight improve a clone of five demonstrations.",
        "testbed:reach", Arm("soar"), Arm("soar", ("--training.rounds", "0")), ("--episodes", "5"), at_least=0.5,
    ),
    "hilp": Check(
        "Distances find the way round walls in aimless episodes; cloned in hindsight, these lead where they went.",
        "testbed:maze",
        Arm("hilp", (
            *goal("--goal"), "--training.updates", "16000", "--training.batch", "128", "--policy.hidden", "128", "128",
            "--agent.skills.hidden", "128", "128",
        )),
        Arm("soar", (
            *goal("--training.goal"), "--training.rounds", "0", "--training.within", "50", "--training.updates", "6000",
        )),
        AIMLESS, at_least=0.7,
    ),
    "vla-rl": Check(
        "Rewards move the tokens of a policy that goes to either disc to the one that counts.",
        "testbed:discs", Arm("vla-rl", ("--training.steps", "50000", "--training.rollout", "20")), WRITES, EITHER,
        WRITES, at_least=0.6,
    ),
    "srpo": Check(
        "Episodes that fare better than others from the same start move it to the disc that counts.",
        "testbed:discs", Arm("srpo", ROUNDS), WRITES, EITHER, WRITES, at_least=0.6,
    ),
    "grape": Check(
        "Preferring the better episodes of a start moves it to the disc that counts.",
        "testbed:discs", Arm("grape", ROUNDS), WRITES, EITHER, WRITES, at_least=0.6,
    ),
    "dsrl-vla": Check(
        "Noise steers a frozen policy that sees and reads to the disc that counts.",
        "testbed:discs",
        Arm("dsrl", (
            "--training.steps", "50000", "--training.num-envs", "32", "--training.updates-per-step", "0.15",
        )),
        FLOWS, EITHER, FLOWS, at_least=0.6,
    ),
    "resfit-vla": Check(
        "Corrections of a frozen policy that sees and reads reach the disc that counts.",
        "testbed:discs", Arm("resfit", ("--training.steps", "50000")), FLOWS, EITHER, FLOWS, at_least=0.6,
    ),
    "resfit": Check(
        "A residual learned online corrects a coarse cloned base.",
        "testbed:insert", Arm("resfit", ("--training.steps", "30000")), Arm("diffusion-bc"), ("--episodes", "5"),
        Arm("diffusion-bc"), at_least=0.8,
    ),
}  # fmt: skip
"""By name: the method's recipe, or recipe plus option."""
