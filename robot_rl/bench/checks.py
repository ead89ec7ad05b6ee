"""Table of checks: every method against a control on a task where the two should differ.

A check whose control passes as well proves nothing and fails: its task must be changed. An arm takes at most about
eight minutes on one idle core; most arms take less than three minutes.
"""

import shlex
from dataclasses import dataclass

EXPERT = "expert"
"""Name in place of a recipe for an arm that evaluates the task's scripted demonstrator."""


@dataclass(frozen=True)
class Arm:
    """Method or control of a check."""

    recipe: str
    """Name or import path of a recipe, or "expert" for the scripted demonstrator."""
    flags: tuple[str, ...] = ()
    """Additional flags of `robot-rl train`, or of `robot-rl evaluate` if the recipe is "expert"."""


@dataclass(frozen=True)
class Check:
    """A claim about a method, and its measurement."""

    claim: str
    """Expected difference between method and control, in one short sentence."""
    task: str
    method: Arm
    control: Arm
    """Usually the method without its mechanism."""
    data: tuple[str, ...] = ()
    """Flags of `robot-rl collect TASK`, which collects one dataset per seed, after the name of its task if that is not
    `task`; (): no dataset."""
    base: Arm | None = None
    """Arm that is trained first, with the data and seed of the other arms. Arms that need a base get it as --base."""
    base_data: tuple[str, ...] = ()
    """Flags of `robot-rl collect TASK`, which collects the base's own dataset; (): the base gets that of the arms."""
    figure: str = "success"
    """Compared figure of `robot-rl evaluate`: success, return, or a metric of the task."""
    at_least: float = 0.0
    """Threshold of the figure that the method must reach and the control must not reach; 0: no threshold."""
    evaluate: tuple[str, ...] = ()
    """Additional flags of `robot-rl evaluate` for both arms."""
    paper: str = ""
    """Authors, year and arXiv number of the claim's paper, if it is not the paper of the recipe."""
    second: Arm | None = None
    """Second control: the next best simple method, with the same data and steps. A method passes both."""
    parity: bool = False
    """Whether the method passes if its mean is not below the control's interval; else it must be better."""

    def collected(self, data: tuple[str, ...]) -> tuple[str, ...]:
        """Return the words of `robot-rl collect` for `data` or `base_data`."""
        return data if data and not data[0].startswith("--") else (self.task, *data)

    @property
    def arms(self) -> dict[str, Arm]:
        """Return the arms in the order in which they are trained."""
        second = {"second": self.second} if self.second else {}
        return {"control": self.control} | second | {"method": self.method}


def flags(*parts: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of command-line parts; a part is a text to split or a tuple of words."""
    return tuple(word for part in parts for word in (shlex.split(part) if isinstance(part, str) else part))


MANY = flags("--skill WEAK --episodes 3000 --num-envs 100 --keep-failures")
"""Data of mixed quality, for tasks of one or two steps, where 300 episodes would be memorized."""
MIXED = flags("--skill MIXED --episodes 100 --num-envs 50")
"""Data with a constant gain of the actions per episode, from half strength the wrong way to full the right way."""
CHANGING = flags("--skill CHANGING --episodes 100 --num-envs 50")
"""Data with a gain that changes every few steps. No episode is good all the way, so clones of the best ones fail."""
BOTH_SIDES = flags("--skill STEADY --episodes 50")
ONE_SIDE = flags("--skill STEADY --episodes 100 --num-envs 50 --keep-failures")
"""Data for fork-right and fork-fast-right: half of the episodes pass on the left, without success."""
SINGLE = flags("--policy.horizon 1 --policy.execute 1")
EVERY = flags("--training.demos all")
BEST = Arm("bc", flags("--training.demos best"))
OFFLINE = flags("--training.offline-updates 15000")
FEW = flags("--training.offline-updates 7000")
HALF = flags("--training.batch 128 --agent.hidden 128 128")
OFFERS = flags(HALF, "--policy.flow.hidden 128 128 --policy.flow.sample-steps 5")
"""Smaller networks than published: an update with 32 candidates of 256 rows in ten steps takes 0.5 s on one core."""
EDITS = flags(
    OFFERS, "--policy.candidates 4 --training.offline-updates 3000 --training.steps 5000 --agent.critics 4",
    "--training.updates-per-step 2 --agent.tau 0.02 --agent.discount 0.95",
)
DENSE = flags("--training.reward task")
ADVANTAGES = flags(HALF, DENSE, "--training.offline-updates 3000")
OFFLINE_THEN = flags(DENSE, "--training.offline-updates 3000 --training.steps 6000 --training.batch 128")
CHEETAH = flags("--training.steps 20000")
PAIR = flags("--training.num-envs 64 --training.rollout 50 --training.steps 300000", "--policy.history 1")
PENDULUM = flags("--training.steps 6000 --agent.anneal-updates 4000")
SLOW = flags("--training.steps 15000 --training.reward task --agent.tau 0.001")
LARGE = flags("--training.steps 8000 --training.reward-scale 10")
TEN = flags("--training.steps 10000")
SPARSE_PPO = flags("--training.reward success --training.num-envs 64 --training.rollout 60 --policy.history 1")
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
PUSHES = flags("--training.offline-updates 4000 --training.batch 128")
SUCCESS = flags("--training.reward success")
OFFLINE_BINS = flags("--training.offline-updates 4000 --training.steps 0 --agent.imitation 0")
WATCHED = flags("--training.steps 15000 --training.batch 128 --training.updates-per-step 1", "--operator.patience 10")
NOTHING = flags(
    "--agent.imitation 0.3 --agent.l2 0 --agent.n-step 1 --agent.initial-temperature 0.01", "--agent.target-entropy -1",
)
"""Settings of hil-serl without a base: as published, plus weak cloning of corrections."""
MOVES = flags("--training.steps 600000")
REACH = flags("--policy.history 1 --training.num-envs 64 --training.rollout 25", "--training.steps 360000")
TOLD = flags(
    EVERY, "--training.updates 1500 --policy.horizon 4 --policy.execute 4",
    "--policy.encoder.width 64 --policy.encoder.channels 16 32 --policy.encoder.layers 1",
)
EITHER = flags("--skill STEADY --episodes 600 --num-envs 50 --keep-failures")
"""Data for discs: half of the episodes go to the wrong disc."""
WRITES, FLOWS = Arm("vla-tokens", TOLD), Arm("vla-sft", TOLD)
"""Base policies for discs. All methods on discs practise about 6,400 episodes, which are 50,000 steps."""
CORRECTED = flags("--training.steps 50000 --training.demo-share 0")
"""No demonstration on discs-beside succeeds."""
STEERED = flags("--training.steps 50000 --training.num-envs 32 --training.updates-per-step 0.15")
ROUNDS = flags("--training.rounds 100")
EITHER_WAY = flags("--skill STEADY --episodes 1000 --num-envs 100")
"""Data for fork-goal: half of the episodes pass on either side. With fewer, clones memorize the side of each start."""
AIMLESS = flags("--skill RANDOM --episodes 300 --num-envs 50 --keep-failures")
CARELESS = flags("--operator.skill WEAK")
JUDGED = flags(
    "--training.steps 15000 --training.batch 128 --operator.rule true-gap",
    "--operator.gap 0.85 --operator.length 4 --operator.reaction 1",
    "--training.updates-per-step 2 --agent.critics 4 --agent.hidden 128 128", "--gaussian.hidden 128 128",
)
"""The operator reacts after the bad action, so that the reward is that action's, and errs in 5 % of the steps."""


FEW_LABELS = flags("--skill STEADY --episodes 210 --num-envs 42")
TENTH = flags(
    "--labelled 10 --training.updates 1000 --training.batch 64 --agent.lr 2e-3 --agent.warmup 50",
    "--policy.hidden 128 128 --policy.encoder.shift 2",
)
"""The actions of 200 of the 210 episodes are not used."""


def goal(option: str) -> tuple[str, ...]:
    """Return the flags, which begin with `option`, for the goal fields of the state of maze and fork-goal."""
    return (f"{option}.achieved", "position", f"{option}.difference", "", f"{option}.tolerance", "0.1")


FAR = flags("--range goal.x=0.4:1")
"""Goals of island that have no demonstrations."""
PLAN = flags(goal("--training.goal"), "--training.rounds 0 --policy.weight 0 --training.updates 3000")
PRACTISE = flags(
    goal("--training.goal"), FAR, "--training.horizon 60 --training.updates 2000 --training.finetune 2000",
    "--training.episodes 512 --training.proposer.random 1 --training.noise 0.1",
)


checks: dict[str, Check] = {
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
            ("ofql", flags(FEW, DENSE), "Values move a flow of one step to good actions; without values it is a clone.",
             "--agent.eta 0", BEST),
            ("cfgrl", flags(FEW, DENSE), "Guidance beyond the better actions improves on a clone of them and of all.",
             "--policy.guidance 0", Arm("cfgrl", flags(FEW, DENSE, "--policy.guidance 1"))),
            ("qc", flags(FEW, DENSE, OFFERS, "--policy.candidates 16"),
             "Selection by values of chunks improves on the clone that proposes the chunks.",
             "--policy.candidates 1", BEST),
        )
    },
    "awac": Check(
        "Advantages of TD critics move a clone of mixed data to its good actions; cloning all or the best does not.",
        "testbed:swing", Arm("awac", ADVANTAGES), Arm("awac", flags(ADVANTAGES, "--agent.temperature 1e9")), CHANGING,
        figure="return", at_least=-800, second=BEST,
    ),
    "dsrl": Check(
        "Learned noise steers a frozen policy that passes on either side to the successful side.",
        "testbed:fork-fast-right", Arm("dsrl", flags("--training.steps 5000")), Arm("flow-bc", EVERY), ONE_SIDE,
        Arm("flow-bc", EVERY), at_least=0.9, second=Arm("sac", flags(SUCCESS, "--training.steps 5000")),
    ),
    "consistency": Check(
        "One step distilled from ten commits to one of two ways; one step of a diffusion policy takes their mean.",
        "testbed:fork-fast", Arm("consistency"), Arm("diffusion-bc", flags("--policy.sample-steps 1")), BOTH_SIDES,
        Arm("diffusion-bc"), at_least=0.9, second=Arm("flow-bc", flags("--policy.sample-steps 1")),
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
    "slim": Check(
        "With one critic per reward term all terms are learned; one critic of the sum neglects the small term.",
        "testbed:pair", Arm("slim", PAIR), Arm("ppo", PAIR), at_least=0.9, second=Arm("ppo", flags(PAIR, SUCCESS)),
    ),
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
    "rlpd": Check(
        "Half of each batch from 20 demonstrations and LayerNorm learn a sparse reward, also better than each alone.",
        "testbed:reach", Arm("rlpd", LONG), Arm("sac", flags(LONG, SUCCESS, "--training.demo-share 0.5")),
        flags("--episodes 20"), at_least=0.8, second=Arm("rlpd", flags(LONG, "--agent.no-layer-norm")),
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
    "mirrored": Check(
        "Mirror images of 20 demonstrations teach more than the demonstrations alone, and than a clone of them.",
        "testbed:push", Arm("iql", flags(PUSHES, "--training.mirror 0.5")), Arm("iql", PUSHES), flags("--episodes 20"),
        second=Arm("bc"), paper="Corrado and Hanna 2024, arXiv 2310.17786",
    ),
    "cqn": Check(
        "With 20 demonstrations, bins learn a sparse reward in fewer steps than without.",
        "testbed:reach", Arm("cqn", flags("--training.steps 40000")),
        Arm("cqn", flags("--training.steps 40000 --training.demo-share 0 --training.no-keep-successes")),
        flags("--episodes 20"), at_least=0.9, second=Arm("sac", flags(LONG, SUCCESS, "--training.demo-share 0.5")),
    ),
    "arsq": Check(
        "Conditional action dimensions separate good pairs from bad mixes of the same parts; independent ones do not.",
        "testbed:stones", Arm("arsq", OFFLINE_BINS), Arm("arsq", flags(OFFLINE_BINS, "--policy.no-conditional")), MANY,
        at_least=0.9, second=Arm("flow-bc", SINGLE),
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
    "soar": Check(
        "Three rounds of practice with hindsight goals improve a clone of five demonstrations.",
        "testbed:reach", Arm("soar"), Arm("soar", flags("--training.no-hindsight")), flags("--episodes 5"),
        at_least=0.5, second=Arm("soar", flags("--training.proposer.random 1")),
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
    "sail": Check(
        "A prior of other obstacles and own practice reach goals without demonstrations; neither does alone.",
        "testbed:island", Arm("sail", PRACTISE), Arm("sail", flags(PRACTISE, "--policy.weight 0")),
        flags("--skill WEAK --episodes 60 --num-envs 60 --range goal.x=-1:0.2"), Arm("sail", PLAN),
        base_data=flags("--skill STEADY --episodes 500 --num-envs 100 --range radius=0:0.45"),
        evaluate=FAR, second=Arm("sail", flags(PRACTISE, "--policy.weight 1")),
    ),
    "act-jepa": Check(
        "Pictures of 200 episodes without actions help to clone 10 demonstrations, by features more than by pixels.",
        "testbed:discs", Arm("act-jepa", TENTH), Arm("act-jepa", flags(TENTH, "--agent.jepa 0")), FEW_LABELS,
        second=Arm("act-jepa", flags(TENTH, "--agent.target pictures")),
    ),
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
    "resfit": Check(
        "A residual learned online corrects a coarse cloned base.",
        "testbed:insert", Arm("resfit", flags("--training.steps 30000")), Arm("diffusion-bc"), flags("--episodes 5"),
        Arm("diffusion-bc"), at_least=0.8,
        second=Arm("rlpd", flags(HALF, "--training.steps 30000 --agent.critics 4 --policy.hidden 128 128")),
    ),
}  # fmt: skip
"""Checks by name. A name is the method's recipe, or the recipe with an option."""
