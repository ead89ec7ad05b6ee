"""Checks of methods that improve a policy by its own practice, or with a person."""

from robot_rl.bench.checks.check import DENSE, EVERY, EXPERT, HALF, SINGLE, SUCCESS, TEN, Arm, Check, flags, goal

MIXED = flags("--skill MIXED --episodes 100 --num-envs 50")
"""Data with a constant gain of the actions per episode, from half strength the wrong way to full the right way."""
ONE_SIDE = flags("--skill STEADY --episodes 100 --num-envs 50 --keep-failures")
"""Data for fork-right and fork-fast-right: half of the episodes pass on the left, without success."""
OFFERS = flags(HALF, "--policy.flow.hidden 128 128 --policy.flow.sample-steps 5")
"""Smaller networks than published: an update with 32 candidates of 256 rows in ten steps takes 0.5 s on one core."""
EDITS = flags(
    OFFERS, "--policy.candidates 4 --training.offline-updates 3000 --training.steps 5000 --agent.critics 4",
    "--training.updates-per-step 2 --agent.tau 0.02 --agent.discount 0.95",
)
OFFLINE_THEN = flags(DENSE, "--training.offline-updates 3000 --training.steps 6000 --training.batch 128")
SPARSE_PPO = flags("--training.reward success --training.num-envs 64 --training.rollout 60 --policy.history 1")
WATCHED = flags("--training.steps 15000 --training.batch 128 --training.updates-per-step 1", "--operator.patience 10")
NOTHING = flags(
    "--agent.imitation 0.3 --agent.l2 0 --agent.n-step 1 --agent.initial-temperature 0.01", "--agent.target-entropy -1",
)
"""Settings of hil-serl without a base: as published, plus weak cloning of corrections."""
CARELESS = flags("--operator.skill WEAK")
JUDGED = flags(
    "--training.steps 15000 --training.batch 128 --operator.rule true-gap",
    "--operator.gap 0.85 --operator.length 4 --operator.reaction 1",
    "--training.updates-per-step 2 --agent.critics 4 --agent.hidden 128 128", "--gaussian.hidden 128 128",
)
"""The operator reacts after the bad action, so that the reward is that action's, and errs in 5 % of the steps."""
FAR = flags("--range goal.x=0.4:1")
"""Goals of island that have no demonstrations."""
PLAN = flags(goal("--training.goal"), "--training.rounds 0 --policy.weight 0 --training.updates 3000")
PRACTISE = flags(
    goal("--training.goal"), FAR, "--training.horizon 60 --training.updates 2000 --training.finetune 2000",
    "--training.episodes 512 --training.proposer.random 1 --training.noise 0.1",
)

IMPROVED_CHECKS: dict[str, Check] = {
    "dsrl": Check(
        "Learned noise steers a frozen policy that passes on either side to the successful side.",
        "testbed:fork-fast-right", Arm("dsrl", flags("--training.steps 5000")), Arm("flow-bc", EVERY), ONE_SIDE,
        Arm("flow-bc", EVERY), at_least=0.9, second=Arm("sac", flags(SUCCESS, "--training.steps 5000")),
    ),
    **{
        recipe: Check(
            claim, "testbed:fork-right", Arm(recipe), Arm("diffusion-bc", EVERY), ONE_SIDE, Arm("diffusion-bc", EVERY),
            at_least=0.85, second=other,
        )
        for recipe, claim, other in (
            ("dppo", "Rewards move the denoising steps of a policy that passes on either side to the successful side.",
             Arm("ppo", flags(SPARSE_PPO, "--training.steps 150000"))),
            ("adpo", "A mix of Adam and RMSProp moves the denoising steps further than Adam alone.", Arm("dppo")),
        )
    },
    "gorl": Check(
        "Rewards move a flow that passes on either side, and its noise, to the successful side.",
        "testbed:fork-right",
        Arm("gorl", flags(SPARSE_PPO, "--training.steps 150000 --agent.stage 10")),
        Arm("flow-bc", flags(EVERY, SINGLE)), ONE_SIDE, Arm("flow-bc", flags(EVERY, SINGLE)), at_least=0.9,
        second=Arm("ppo", flags(SPARSE_PPO, "--training.steps 150000")),
    ),
    "rl-100": Check(
        "Offline and online rewards move a clone that passes on either side to the successful side, in one step.",
        "testbed:fork-right", Arm("rl-100", flags("--imitation.demos all --training.steps 20000")),
        Arm("diffusion-bc", EVERY), ONE_SIDE, Arm("diffusion-bc", EVERY), at_least=0.85,
        second=Arm("dppo", flags("--training.steps 20000")),
    ),
    "porl": Check(
        "Practice improves a clone of demonstrations with good and bad habits.",
        "testbed:swing", Arm("porl", flags(TEN, DENSE, "--agent.critics 4 --agent.hidden 128 128")), Arm("bc", EVERY),
        MIXED, Arm("bc", EVERY), figure="return", at_least=-400.0,
        second=Arm("porl", flags(TEN, DENSE, "--agent.critics 4 --agent.hidden 128 128 --training.warmup 0")),
    ),
    "expo": Check(
        "Edits reach actions that a coarse clone of five demonstrations does not propose, also not twice as often.",
        "testbed:insert", Arm("expo", EDITS), Arm("expo", flags(EDITS, "--policy.scale 0")), flags("--episodes 5"),
        at_least=0.7, second=Arm("expo", flags(EDITS, "--policy.scale 0 --policy.candidates 8")),
    ),
    "chunks-to-steps": Check(
        "Single steps improve on chunks that a clone proposes.",
        "testbed:swing",
        Arm("chunks-to-steps", flags(
            OFFLINE_THEN, "--chunk.candidates 8 --chunk.flow.hidden 128 128 --chunk.flow.sample-steps 5",
            "--agent.chunks.hidden 128 128 --agent.steps.hidden 128 128 --agent.steps.critics 4",
            "--agent.first 1000 --agent.last 3000",
        )),
        Arm("qc", flags(
            OFFLINE_THEN, "--policy.candidates 8 --policy.flow.hidden 128 128 --policy.flow.sample-steps 5",
            "--agent.hidden 128 128",
        )), MIXED, figure="return", at_least=-400.0,
        second=Arm("rlpd", flags(OFFLINE_THEN, EVERY, "--agent.critics 4 --agent.hidden 128 128")),
    ),
    "hil-serl": Check(
        "With an operator's corrections, a sparse reward is learned from 5 demonstrations; without, it is not.",
        "testbed:push", Arm("hil-serl", flags(WATCHED, NOTHING)),
        Arm("hil-serl", flags(WATCHED, NOTHING, "--operator.rule none")), flags("--episodes 5"), at_least=0.9,
        second=Arm("hil-serl", flags(WATCHED, NOTHING, "--agent.imitation 0")),
    ),
    "hil-serl-cloned": Check(
        "Values improve on cloning the same weak operator's corrections.",
        "testbed:push", Arm("hil-serl", flags(WATCHED, NOTHING, CARELESS, "--agent.imitation 0")),
        Arm("hg-dagger", flags("--training.steps 15000 --operator.patience 10", CARELESS)), flags("--episodes 5"),
        at_least=0.6, second=Arm("hil-serl", flags(WATCHED, NOTHING, "--agent.imitation 0 --operator.rule none")),
    ),
    "rlif": Check(
        "A policy that learns to avoid interventions of a weak operator succeeds more often than the operator.",
        "testbed:reach", Arm("rlif", flags(CARELESS, JUDGED)), Arm(EXPERT, flags("--skill WEAK")),
        flags("--episodes 20"), at_least=0.78,
        second=Arm("hg-dagger", flags(
            "--training.steps 15000 --operator.rule true-gap",
            "--operator.gap 0.85 --operator.length 4 --operator.reaction 1", CARELESS,
        )),
    ),
    "soar": Check(
        "Three rounds of practice with hindsight goals improve a clone of five demonstrations.",
        "testbed:reach", Arm("soar"), Arm("soar", flags("--training.no-hindsight")), flags("--episodes 5"),
        at_least=0.5, second=Arm("soar", flags("--training.proposer.random 1")),
    ),
    "sail": Check(
        "A prior of other obstacles and own practice reach goals without demonstrations; neither does alone.",
        "testbed:island", Arm("sail", PRACTISE), Arm("sail", flags(PRACTISE, "--policy.weight 0")),
        flags("--skill WEAK --episodes 60 --num-envs 60 --range goal.x=-1:0.2"), Arm("sail", PLAN),
        base_data=flags("--skill STEADY --episodes 500 --num-envs 100 --range radius=0:0.45"),
        evaluate=FAR, second=Arm("sail", flags(PRACTISE, "--policy.weight 1")),
    ),
    "resfit": Check(
        "A residual learned online corrects a coarse cloned base.",
        "testbed:insert", Arm("resfit", flags("--training.steps 30000")), Arm("diffusion-bc"), flags("--episodes 5"),
        Arm("diffusion-bc"), at_least=0.8,
        second=Arm("rlpd", flags(HALF, "--training.steps 30000 --agent.critics 4 --policy.hidden 128 128")),
    ),
}  # fmt: skip
