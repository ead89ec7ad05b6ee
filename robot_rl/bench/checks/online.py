"""Checks of methods that learn from scratch in an environment, some with a few demonstrations."""

from robot_rl.bench.checks.check import SUCCESS, TEN, Arm, Check, flags

CHEETAH = flags("--training.steps 20000")
PAIR = flags("--training.num-envs 64 --training.rollout 50 --training.steps 300000", "--policy.history 1")
PENDULUM = flags("--training.steps 6000 --agent.anneal-updates 4000")
SLOW = flags("--training.steps 15000 --training.reward task --agent.tau 0.001")
LARGE = flags("--training.steps 8000 --training.reward-scale 10")
VARIED = flags("--training.num-envs 256 --training.rollout 25 --training.steps 1500000")
PUSHED = flags("--training.num-envs 256 --training.rollout 25 --training.steps 1000000")
WALK = flags("--training.steps 1500000")
TROT = flags("--skill STEADY --episodes 2 --num-envs 2 --keep-failures")
OWN_STATES = flags("--references.links 0 --references.uniform 1")
OBSERVED = flags(
    "--training.steps 12000 --training.num-envs 4 --training.updates-per-step 0.5 --training.batch 128",
    "--agent.hidden 128 128 --policy.hidden 128 128 --agent.initial-temperature 0.05",
)
"""Settings of ads for minutes on one core. A temperature of 1 outweighs the rewards, which are about 1, for long."""
UNSCHEDULED = flags(OBSERVED, "--imitation.no-schedule")
CAREFUL = flags("--training.steps 20000 --agent.range-steps 15000")
LONG = flags("--training.steps 40000 --agent.critics 4 --agent.hidden 128 128", "--policy.hidden 128 128")
"""Many steps with small networks: a step takes about a quarter of the time with ten critics of 256 by 256 units."""
MOVES = flags("--training.steps 600000")
REACH = flags("--policy.history 1 --training.num-envs 64 --training.rollout 25", "--training.steps 360000")

GOALS = flags(
    "--training.steps 30000 --training.batch 128 --agent.hidden 128 128 --policy.hidden 128 128",
    "--agent.discount 0.95 --training.reward-scale 50",
)

ONLINE_CHECKS: dict[str, Check] = {
    "slim": Check(
        "With one critic per reward term all terms are learned; one critic of the sum neglects the small term.",
        "testbed:pair", Arm("slim", PAIR), Arm("ppo", PAIR), at_least=0.9, second=Arm("ppo", flags(PAIR, SUCCESS)),
    ),
    "rlpd": Check(
        "Half of each batch from 20 demonstrations and LayerNorm learn a sparse reward, also better than each alone.",
        "testbed:reach", Arm("rlpd", LONG), Arm("sac", flags(LONG, SUCCESS, "--training.demo-share 0.5")),
        flags("--episodes 20"), at_least=0.8, second=Arm("rlpd", flags(LONG, "--agent.no-layer-norm")),
    ),
    "dsac-t": Check(
        "Values with their own step size learn to swing up when rewards are ten times as large.",
        "testbed:swing", Arm("dsac-t", LARGE), Arm("sac", LARGE), figure="return", at_least=-400.0,
        second=Arm("td3", LARGE),
    ),
    "annealed-q": Check(
        "Values of the best action learn to swing up sooner than values of the policy, if they are given up later.",
        "gym:Pendulum-v1", Arm("annealed-q", PENDULUM), Arm("sac", flags("--training.steps 6000")),
        figure="training return",
        second=Arm("annealed-q", flags("--training.steps 6000 --agent.anneal-updates 1000000")),
    ),
    "i-qn": Check(
        "Values of several Bellman updates ahead learn to swing up sooner than values of one, with slow targets.",
        "testbed:swing", Arm("i-qn", SLOW), Arm("i-qn", flags(SLOW, "--agent.iterates 1")), figure="training return",
        second=Arm("i-qn", flags(SLOW, "--agent.iterates 1 --agent.critics 8")),
    ),
    "adr": Check(
        "Ranges that grow teach what the whole ranges, from the start, and the nominal dynamics do not.",
        "testbed:swing-varied", Arm("ppo", flags(VARIED, "--curriculum adr:-4:-2:reward:10:0.1:0.3")),
        Arm("ppo", VARIED), figure="return", paper="OpenAI et al. 2019, arXiv 1910.07113",
        second=Arm("ppo", flags(VARIED, "--range pendulum.mass=1 --range pendulum.damping=0")),
    ),
    "qarl": Check(
        "An adversary that becomes rational teaches to withstand an attacker better than one that is, and than chance.",
        "testbed:swing", Arm("ppo", flags(PUSHED, "--curriculum qarl:-900")),
        Arm("ppo", flags(PUSHED, "--curriculum rarl")), figure="return", evaluate=flags("--attack 2000"),
        paper="Reddi et al. 2024, arXiv 2311.01642",
        second=Arm("ppo", flags(PUSHED, "--curriculum random-forces")),
    ),
    "latent-priors": Check(
        "Directions of one scripted gait teach to walk in fewer steps than all actions.",
        "go2-flat", Arm("latent-priors", WALK), Arm("ppo", flags(WALK, "--policy.initial-std 0.5")), TROT,
        figure="return", second=Arm("ppo", flags(WALK, "--policy.initial-std 0.25")),
    ),
    "skillmimic": Check(
        "Starts in states of another skill teach to go over to a skill; starts in its own, or at random, do not.",
        "testbed:clips-switch", Arm("skillmimic"), Arm("skillmimic", flags(OWN_STATES, "--references.noisy 0")),
        flags("testbed:clips --skill STEADY --episodes 10"), at_least=0.7,
        second=Arm("skillmimic", flags(OWN_STATES, "--references.noisy 1 --references.noise 1")),
    ),
    "ads": Check(
        "With a discount that rises, demonstrated states are followed in order, without actions and rewards.",
        "testbed:carry", Arm("ads", OBSERVED), Arm("ads", flags(UNSCHEDULED, "--agent.discount 0.99")),
        flags("--skill STEADY --episodes 5"),
        second=Arm("ads", flags(UNSCHEDULED, "--agent.discount 0.85")),
    ),
    "tce": Check(
        "Movements learn sooner from the rewards of their segments than from those of episodes, or than single steps.",
        "testbed:via", Arm("tce", MOVES), Arm("tce", flags(MOVES, "--agent.credit episode")), figure="training success",
        second=Arm("ppo", flags(MOVES, "--policy.history 1 --training.num-envs 64 --training.rollout 60")),
    ),
    "aprl": Check(
        "A range of actions that grows teaches to hop better than all actions do, and than a range that stays small.",
        "gym:Hopper-v5", Arm("aprl", CAREFUL), Arm("aprl", flags(CAREFUL, "--agent.penalty 0")), figure="return",
        second=Arm("aprl", flags(CAREFUL, "--agent.range-end 0.35")),
    ),
    "srl": Check(
        "A plan of eight actions allows a decision at every eighth step; holding one action that long is too coarse.",
        "testbed:swing", Arm("srl", TEN), Arm("sac", TEN), figure="return", at_least=-400.0,
        evaluate=flags("--interval 8"),
        second=Arm("sac", flags("--training.action-repeat 8 --training.updates-per-step 8 --training.steps 1250",
                                "--training.warmup 125 --training.learning-starts 125")),
    ),
    "flash-sac": Check(
        "Normalized critics without target networks learn to run in fewer steps than sac.",
        "gym:HalfCheetah-v5", Arm("flash-sac", CHEETAH), Arm("sac", CHEETAH), figure="return", at_least=2000.0,
        second=Arm("sac", flags(
            CHEETAH, "--agent.critic-lr 1e-3 --agent.actor-lr 1e-3 --agent.initial-temperature 0.01",
            "--agent.entropy-per-action -0.48",
        )),
    ),
    "mr-q": Check(
        "An embedding that predicts the next state learns to run in fewer steps than td3.",
        "gym:HalfCheetah-v5", Arm("mr-q", TEN), Arm("td3", TEN), figure="return", at_least=500.0,
        second=Arm("td3", flags("--training.steps 40000")),
    ),
    "hl-gauss": Check(
        "Values by smooth classification learn a sparse reward sooner than values by regression, or by bins alone.",
        "testbed:reach", Arm("rlpd", flags(LONG, "--agent.head hl-gauss")), Arm("rlpd", LONG),
        flags("--episodes 20"), figure="training success", paper="Farebrother et al. 2024, arXiv 2403.03950",
        second=Arm("rlpd", flags(LONG, "--agent.head c51")),
    ),
    "hindsight": Check(
        "Goals that were achieved teach a sparse reward without demonstrations, sooner than the distance to the goal.",
        "testbed:reach", Arm("sac", flags(GOALS, SUCCESS, "--training.hindsight 4")), Arm("sac", flags(GOALS, SUCCESS)),
        at_least=0.6, paper="Andrychowicz et al. 2017, arXiv 1707.01495",
        second=Arm("sac", flags(GOALS, "--reward benchmarks/rewards/reach_distance.py")),
    ),
    "cqn": Check(
        "With 20 demonstrations, bins learn a sparse reward in fewer steps than without.",
        "testbed:reach", Arm("cqn", flags("--training.steps 40000")),
        Arm("cqn", flags("--training.steps 40000 --training.demo-share 0 --training.no-keep-successes")),
        flags("--episodes 20"), at_least=0.9, second=Arm("sac", flags(LONG, SUCCESS, "--training.demo-share 0.5")),
    ),
    "text2reward": Check(
        "A written and vetted reward is learned in fewer steps than success alone.",
        "testbed:reach", Arm("ppo", flags(REACH, "--reward benchmarks/rewards/reach.py")),
        Arm("ppo", flags(REACH, SUCCESS)), at_least=0.6, paper="Xie et al. 2023, arXiv 2309.11489",
        second=Arm("ppo", flags(REACH, "--reward benchmarks/rewards/reach_distance.py")),
    ),
    "perceptual-rewards": Check(
        "A reward of stages, found in the states of 10 demonstrations, is learned in fewer steps than success alone.",
        "testbed:reach", Arm("ppo", flags(REACH, "--reward benchmarks/rewards/reach_stages.py")),
        Arm("ppo", flags(REACH, SUCCESS)), at_least=0.6, paper="Sermanet et al. 2017, arXiv 1612.06699",
        second=Arm("ppo", flags(REACH, "--reward benchmarks/rewards/reach_last_step.py")),
    ),
}  # fmt: skip
