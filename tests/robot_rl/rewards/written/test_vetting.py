"""Written rewards: vetting on scripted episodes, the loop with a model, files, the environment and the commands."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.assistant import ModelConfig, ReplyModel, fenced
from robot_rl.cli.main import main
from robot_rl.cli.reward import default_file
from robot_rl.recipes.job import open_job
from robot_rl.rewards.written import vetting as vetting_module
from robot_rl.rewards.written.code import compile_reward, evaluate
from robot_rl.rewards.written.file import RewardWrapper, WrittenReward, load_reward, read_reward, save_reward
from robot_rl.rewards.written.sandbox import check_rewards
from robot_rl.rewards.written.vetting import BEHAVIOURS, STARTS, Played, Vetting, auc, measure, play
from robot_rl.rewards.written.views import Views
from robot_rl.rewards.written.writer import conversation, revision, write
from robot_rl.util.errors import ConfigError, UserError
from sim.demonstrators import demonstrator
from sim.make import make

REPLIES = Path(__file__).parents[1] / "replies"
TASK = "testbed:reach"
GOOD = Vetting(1.0, 1.0, 120, 120, 40, 3.0, -1.0)


def reply(name: str) -> str:
    return (REPLIES / f"{name}.md").read_text()


def env(count: int = STARTS) -> Any:
    return make(TASK, count)


@pytest.fixture(scope="module")
def played() -> Played:
    reach = env()
    return play(reach, lambda seed: demonstrator(reach, "STEADY", seed), 0)


def vetted(source: str, played: Played) -> Vetting:
    return measure(check_rewards(compile_reward(source), played.transitions), played)


@pytest.fixture
def without_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try rewards in this process, since starting one takes seconds; `test_code` covers the sandbox."""

    def try_reward(source: str, transitions: Any) -> torch.Tensor:
        return check_rewards(compile_reward(source, transitions["now"]), transitions)

    monkeypatch.setattr(vetting_module, "try_reward", try_reward)


def test_all_behaviours_play_the_same_starts(played: Played) -> None:
    count = STARTS * len(BEHAVIOURS)
    assert len(played.success) == count >= 200 and played.last.sum() == count
    target = {}
    for row, episode in enumerate(played.episode.tolist()):
        target.setdefault(episode, played.transitions["before"]["target_position"][row])
    assert all(torch.equal(target[k], target[k % STARTS]) for k in range(count))
    assert played.transitions["action"].abs().max() <= 1
    success = dict(zip(BEHAVIOURS, played.success.float().view(-1, STARTS).mean(1).tolist(), strict=True))
    assert success["shown"] > 0.9 and success["still"] == 0 and success["given up late"] < 0.5


def test_vetting_accepts_good_rewards_and_rejects_hovering(played: Played) -> None:
    good, hovers = (vetted(fenced(reply(name)), played) for name in ("reach", "reach-hovers"))
    assert good.passed and good.auc > 0.98 and good.success_return > good.failure_return
    assert not hovers.passed and hovers.auc < 0.6 and hovers.last_auc > 0.95, "its last reward is right"
    distance = 'def reward(now, before, action):\n    return {}now["target_to_tip"].norm(dim=1)\n'
    assert vetted(distance.format("-"), played).passed
    assert vetted(distance.format(""), played).auc < 0.1
    constant = vetted("def reward(now, before, action):\n    return 0.0 * action[:, 0]\n", played)
    assert constant.auc == constant.last_auc == 0.5
    assert auc(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0])) == 0.875


def test_vetting_needs_a_demonstrator_that_succeeds() -> None:
    reach = env()

    class Idle:
        def reset(self, ids: torch.Tensor) -> None: ...

        def act(self, observation: Any) -> torch.Tensor:
            return torch.zeros(STARTS, 2)

    with pytest.raises(ConfigError, match=r"\d of 336 scripted episodes of testbed:reach succeed.*--skill or --policy"):
        play(reach, lambda seed: Idle(), 0)


@pytest.mark.usefixtures("without_child")
def test_a_model_gets_feedback_until_its_reward_passes(played: Played, model_server: Any, model_config: Any) -> None:
    model_server.answers = [reply(name) for name in ("reach-imports", "reach-hovers", "reach")]
    log: list[str] = []
    messages = conversation(env(1), "reach")
    written = write(ReplyModel(model_config), messages, played, 4, log.append)
    assert written.vetting.passed and written.rounds == 3 and len(written.rejected) == len(log) == 2
    prompts = [request["messages"][-1]["content"] for request in model_server.asked]
    assert "'target_to_tip': (n, 2) in m: x, y" in prompts[0] and "Longest episode: 50 periods" in prompts[0]
    assert "remove the import" in prompts[1]
    assert "is larger for the success in" in prompts[2] and "pays failures for their length" in prompts[2]
    offline = ReplyModel(ModelConfig("http://127.0.0.1:9/v1#canned", model_config.replies))
    assert write(offline, messages, played, 4, log.append) == written, "from stored replies, without a server"
    assert "says: move slowly" in revision(messages, written.source, "move slowly")[-1]["content"]


@pytest.mark.usefixtures("without_child")
def test_the_best_of_failing_rewards_is_returned(played: Played, model_server: Any, model_config: Any) -> None:
    messages = conversation(env(1), "reach")
    model_server.answers = [reply("reach-hovers"), "I cannot help with that."]
    best = write(ReplyModel(model_config), messages, played, 2, lambda text: None)
    assert not best.vetting.passed and best.rounds == 1 and len(best.rejected) == 2
    model_server.answers = ["Sorry."]
    with pytest.raises(UserError, match=r"wrote no reward that can be run in 1 rounds; the last one: line 1.*--rounds"):
        write(ReplyModel(model_config), [*messages, messages[-1]], played, 1, lambda text: None)


def test_views_have_the_true_state_in_simulation() -> None:
    lift = make("panda-lift", 1)
    views, observation = Views.of(lift), lift.reset(seed=0)[0]
    true = lift.true.objects["cube"].clone()
    lift.close()
    assert torch.equal(views(observation)["true:cube"], true)
    assert views.fields["true:cube"].dims == ("x", "y", "z", "qw", "qx", "qy", "qz")
    assert "'cube_position': (n, 3) in m, base frame: x, y, z" in views.describe()


# ---- files and training ---------------------------------------------------------------------------------------------
def save(path: Path, source: str = "", vetting: Vetting = GOOD, task: str = TASK) -> Path:
    save_reward(WrittenReward(source or fenced(reply("reach")), task, vetting), path)
    return path


def test_only_unchanged_rewards_with_passed_vetting_are_loaded(tmp_path: Path) -> None:
    file = save(tmp_path / "reward.py")
    loaded = load_reward(file)
    assert loaded.reads == ["target_to_tip"] and loaded.vetting == GOOD
    bad = save(tmp_path / "bad.py", vetting=Vetting(0.6, 0.9, 120, 120, 40, 1.0, 2.0))
    assert read_reward(bad).vetting.auc == 0.6
    few = save(tmp_path / "few.py", vetting=Vetting(1.0, 1.0, 20, 20, 20, 1.0, 0.0))
    forged = "import os\ndef reward(now, before, action):\n    return action[:, 0]\n"
    for path, words in (
        (bad, r"bad.py: .* in 60.0%, and at least 90% are needed"),
        (few, "vetted on 20 successes and 20 failures, and 200 are needed"),
        (save(tmp_path / "forged.py", forged), r"forged.py is no allowed reward: line 1: Import"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_reward(path)
    file.write_text(file.read_text().replace("5.0", "6.0"))
    with pytest.raises(ConfigError, match="was changed since it was vetted.*robot-rl reward vet testbed:reach"):
        load_reward(file)
    described = tmp_path / "bad.json"
    for damage, said in (("{", "damaged"), ('{"format": 9}', "format 9"), ('{"format": 1}', "lacks 'vetting'")):
        described.write_text(damage)
        with pytest.raises(ConfigError, match=said):
            read_reward(bad)
    described.unlink()
    with pytest.raises(ConfigError, match=r"bad.json is missing; make it with"):
        read_reward(bad)


def test_the_environment_gives_the_written_reward_also_in_final_steps(tmp_path: Path) -> None:
    written = load_reward(save(tmp_path / "reward.py"))
    plain, paying = env(8), RewardWrapper(env(8), written)
    expert = demonstrator(plain, "STEADY", 0)
    observation, _ = plain.reset(seed=3)
    assert torch.equal(paying.reset(seed=3)[0]["observation.state"], observation["observation.state"])
    views, won = Views.of(plain), 0
    for _ in range(30):
        action = expert.act(observation)
        following, _, terminated, truncated, infos = plain.step(action)
        _, paid, *_ = paying.step(action)
        done = terminated | truncated
        last = {k: torch.where(done[:, None], infos.get("final_obs", following)[k], v) for k, v in following.items()}
        assert torch.equal(paid, evaluate(written.function, views(last), views(observation), action))
        assert (paid[infos["success"]] > 1.5).all(), "the bonus of the final state, not of the next episode"
        won += int(infos["success"].sum())
        observation = following
    assert won > 8
    state = paying.state_dict()
    action = expert.act(observation)
    again = RewardWrapper(env(8), written)
    again.load_state_dict(state)
    assert torch.equal(paying.step(action)[1], again.step(action)[1])


def test_rewards_of_other_tasks_with_missing_views_or_non_finite_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="vetted on testbed:push, not testbed:reach"):
        RewardWrapper(env(1), load_reward(save(tmp_path / "push.py", task="testbed:push")))
    other = "def reward(now, before, action):\n    return now['puck'][:, 0]\n"
    with pytest.raises(ConfigError, match="reads 'puck', which testbed:reach no longer shows"):
        RewardWrapper(env(1), load_reward(save(tmp_path / "puck.py", other)))
    root = "def reward(now, before, action):\n    return (now['target_to_tip'][:, 0] - 9).sqrt()\n"
    with pytest.raises(UserError, match="is not finite in 1 of 1 environments"):
        paying = RewardWrapper(env(1), load_reward(save(tmp_path / "root.py", root)))
        paying.reset(seed=0)
        paying.step(torch.zeros(1, 2))


TRAIN = ["--training.num-envs", "4", "--training.rollout", "5", "--training.steps", "40", "--threads", "1"]


def test_training_uses_a_vetted_reward_and_refuses_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, run = save(tmp_path / "reward.py"), tmp_path / "run"
    command = ["train", TASK, "--recipe", "ppo", "--reward", str(file), "--out", str(run), *TRAIN]
    assert main([*command, "--json"]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["reward"] == str(file) and config["inputs"]["reward"] == load_reward(file).sha256
    job = open_job(config, None, lambda *_: None)
    assert isinstance(job.make_env(1), RewardWrapper) and job.info.rewards == ()
    save(file, fenced(reply("reach-gentle")))
    assert main([*command, "--resume"]) == 2, "the reward has changed"
    assert str(file) in capsys.readouterr().err
    unpaid = [word for word in command if word not in ("--reward", str(file))]
    assert main([*unpaid, "--resume"]) == 2 and "reward was" in capsys.readouterr().err
    save(file, vetting=Vetting(0.5, 0.5, 120, 120, 40, 0.0, 0.0))
    for words, said in (
        (["--recipe", "ppo"], "nothing is learned from"),
        (["--recipe", "sac", "--training.reward", "success"], "add --training.reward task"),
        (["--recipe", "bc"], "does nothing with --reward"),
        (["--recipe", "rlpd", "--training.reward", "task"], "also learns from demonstrations"),
        (["--recipe", "hg-dagger"], "learns from no reward"),
    ):
        assert main(["train", TASK, *words, "--reward", str(file), "--out", str(tmp_path / "other")]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.usefixtures("without_child")
def test_commands_write_show_and_vet_rewards(tmp_path: Path, model_server: Any, model_config: Any, capsys: Any) -> None:
    out, answer = tmp_path / "reward.py", tmp_path / "answer.md"
    model_server.answers = [reply("reach"), reply("reach-gentle")]
    asking = ["--model", model_config.model, "--replies", str(model_config.replies), "--out", str(out), "--json"]
    assert main(["reward", "write", TASK, *asking]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["vetted"] and shown["rounds"] == 1 and shown["model_answered"] == 1
    assert main(["reward", "write", TASK, *asking]) == 2 and "revise it with --feedback" in capsys.readouterr().err
    assert main(["reward", "write", TASK, *asking, "--feedback", "move slowly"]) == 0
    revised = read_reward(out)
    assert "0.02 * effort" in revised.source and revised.provenance["feedback"] == "move slowly"
    assert "0.01 * effort" in revised.provenance["history"][0]["source"]
    assert main(["reward", "show", str(out)]) == 0 and "move slowly" in capsys.readouterr().out
    answer.write_text(reply("reach-hovers"))
    assert main(["reward", "vet", TASK, str(answer), "--json"]) == 1
    output = capsys.readouterr()
    assert not json.loads(output.out)["vetted"] and "answer.py: of a success and a failure" in output.err
    assert main(["reward", "prompt", TASK]) == 0 and "brings its tip to the target" in capsys.readouterr().out
    for words, said_of in (
        (["vet", "tabletop", str(answer), "--out", str(tmp_path / "f.py")], "asks for one of several things"),
        (["vet", "testbed:swing", str(answer), "--out", str(tmp_path / "f.py")], "reports no success"),
        (["vet", "testbed:fork", str(answer), "--out", str(tmp_path / "f.py")], "say it with --goal"),
    ):
        assert main(["reward", *words]) in (1, 2)
        assert said_of in capsys.readouterr().err
    assert str(default_file(TASK)) == "rewards/testbed-reach.py"
