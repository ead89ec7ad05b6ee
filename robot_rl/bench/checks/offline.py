"""Checks of methods that learn from a dataset alone."""

from robot_rl.bench.checks.check import DENSE, EVERY, HALF, SINGLE, Arm, Check, flags, goal

MANY = flags("--skill WEAK --episodes 3000 --num-envs 100 --keep-failures")
"""Data of mixed quality, for tasks of one or two steps, where 300 episodes would be memorized."""
CHANGING = flags("--skill CHANGING --episodes 100 --num-envs 50")
"""Data with a gain that changes every few steps. No episode is good all the way, so clones of the best ones fail."""
BOTH_SIDES = flags("--skill STEADY --episodes 50")
BEST = Arm("bc", flags("--training.demos best"))
OFFLINE = flags("--training.offline-updates 15000")
FEW = flags("--training.offline-updates 7000")
PAIRS = flags(
    FEW, DENSE, "--training.batch 128 --agent.critics 4 --policy.candidates 8 --policy.flow.horizon 2",
    "--policy.flow.hidden 128 128 --policy.flow.sample-steps 5",
)
"""Chunks of two actions: the gain of the data seldom lasts for five."""
ADVANTAGES = flags(HALF, DENSE, "--training.offline-updates 3000")
PUSHES = flags("--training.offline-updates 4000 --training.batch 128")
OFFLINE_BINS = flags("--training.offline-updates 4000 --training.steps 0 --agent.imitation 0")
EITHER_WAY = flags("--skill STEADY --episodes 1000 --num-envs 100")
"""Data for fork-goal: half of the episodes pass on either side. With fewer, clones memorize the side of each start."""
AIMLESS = flags("--skill RANDOM --episodes 300 --num-envs 50 --keep-failures")
FEW_LABELS = flags("--skill STEADY --episodes 210 --num-envs 42")
TENTH = flags(
    "--labelled 10 --training.updates 1000 --training.batch 64 --agent.lr 2e-3 --agent.warmup 50",
    "--policy.hidden 128 128 --policy.encoder.shift 2",
)
"""The actions of 200 of the 210 episodes are not used."""

OFFLINE_CHECKS: dict[str, Check] = {
    "diffusion-bc": Check(
        "A diffusion policy commits to one of two ways; regression hits the obstacle between them.",
        "testbed:fork-fast", Arm("diffusion-bc"), Arm("bc"), BOTH_SIDES, at_least=0.9,
        second=Arm("diffusion-bc", SINGLE),
    ),
    "flow-bc": Check(
        "A flow policy commits to one of two ways; regression hits the obstacle between them.",
        "testbed:fork-fast", Arm("flow-bc"), Arm("bc"), BOTH_SIDES, at_least=0.9,
        second=Arm("flow-bc", SINGLE),
    ),
    **{
        recipe: Check(
            "Values separate good actions from bad actions; a clone mixes them, also one of the best episodes.",
            "testbed:swing", Arm(recipe, own), Arm("bc", EVERY), CHANGING, figure="return", at_least=-800, second=BEST,
        )
        for recipe, own in {
            "iql": flags(OFFLINE, DENSE, "--agent.temperature 3"),
            "td3-bc": flags(OFFLINE, DENSE),
            "cal-ql": flags(FEW, HALF, DENSE, "--agent.value-low -1700"),
            "fql": flags(FEW, DENSE, "--training.batch 128 --agent.alpha 0.1"),
        }.items()
    },
    **{
        recipe: Check(
            claim, "testbed:swing", Arm(recipe, own), Arm(recipe, own + flags(off)), CHANGING, figure="return",
            at_least=-800, second=other,
        )
        for recipe, own, claim, off, other in (
            ("ofql", flags(FEW, DENSE, "--agent.eta 5"),
             "Values move a flow of one step to good actions; without values it is a clone.", "--agent.eta 0", BEST),
            ("cfgrl", flags(FEW, DENSE), "Guidance beyond the better actions improves on a clone of them and of all.",
             "--policy.guidance 0", Arm("cfgrl", flags(FEW, DENSE, "--policy.guidance 1"))),
            ("qc", PAIRS, "Selection by values of chunks improves on the clone that proposes the chunks.",
             "--policy.candidates 1", BEST),
        )
    },
    "awac": Check(
        "Advantages of TD critics move a clone of mixed data to its good actions; cloning all or the best does not.",
        "testbed:swing", Arm("awac", ADVANTAGES), Arm("awac", flags(ADVANTAGES, "--agent.temperature 1e9")), CHANGING,
        figure="return", at_least=-800, second=BEST,
    ),
    "consistency": Check(
        "One step distilled from ten commits to one of two ways; one step of a diffusion policy takes their mean.",
        "testbed:fork-fast", Arm("consistency"), Arm("diffusion-bc", flags("--policy.sample-steps 1")), BOTH_SIDES,
        Arm("diffusion-bc"), at_least=0.9, second=Arm("flow-bc", flags("--policy.sample-steps 1")),
    ),
    "mirrored": Check(
        "Mirror images of 20 demonstrations teach more than the demonstrations alone, and than a clone of them.",
        "testbed:push", Arm("iql", flags(PUSHES, "--training.mirror 0.5")), Arm("iql", PUSHES), flags("--episodes 20"),
        second=Arm("bc"), paper="Corrado and Hanna 2024, arXiv 2310.17786",
    ),
    "arsq": Check(
        "Conditional action dimensions separate good pairs from bad mixes of the same parts; independent ones do not.",
        "testbed:stones", Arm("arsq", OFFLINE_BINS), Arm("arsq", flags(OFFLINE_BINS, "--policy.no-conditional")), MANY,
        at_least=0.9, second=Arm("flow-bc", SINGLE),
    ),
    "hilp": Check(
        "Learned distances find the way around walls from aimless episodes; hindsight cloning only repeats them.",
        "testbed:maze",
        Arm("hilp", flags(
            goal("--goal"), "--training.updates 16000 --training.batch 128 --policy.hidden 128 128",
            "--agent.skills.hidden 128 128",
        )),
        Arm("soar", flags(goal("--training.goal"), "--training.rounds 0 --training.within 50 --training.updates 6000")),
        AIMLESS, at_least=0.7,
        second=Arm("soar", flags(
            goal("--training.goal"), "--training.rounds 0 --training.within 20 --training.updates 16000",
        )),
    ),
    "play-lmp": Check(
        "Plans keep the two ways of play to a goal apart; hindsight cloning takes their mean and hits the obstacle.",
        "testbed:fork-goal", Arm("play-lmp", goal("--goal")),
        Arm("soar", flags(goal("--training.goal"), "--training.rounds 0 --training.within 32 --training.updates 5000")),
        EITHER_WAY, at_least=0.7, second=Arm("play-lmp", flags(goal("--goal"), "--policy.plan 0")),
    ),
    "act-jepa": Check(
        "Pictures of 200 episodes without actions help to clone 10 demonstrations, by features more than by pixels.",
        "testbed:discs", Arm("act-jepa", TENTH), Arm("act-jepa", flags(TENTH, "--agent.jepa 0")), FEW_LABELS,
        second=Arm("act-jepa", flags(TENTH, "--agent.target pictures")),
    ),
}  # fmt: skip
