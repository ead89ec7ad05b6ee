"""Actor-critics beside a flow that clones the behavior in the data."""

from __future__ import annotations

import torch
from torch import Tensor

from policies.generative import FlowActor
from robot_rl.data.replay import Batch
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.parts.objectives import masked_mean


class BehaviorFlow(ActorCritic):
    """An actor-critic that also updates a flow by the velocity error of the data's actions."""

    def clone_with(self, flow: FlowActor) -> None:
        """Set the flow that is updated."""
        self.flow = flow
        self.flow_optimizer = torch.optim.Adam(flow.parameters(), self.config.actor_lr, fused=True)
        self.extra |= {"flow": flow, "flow_optimizer": self.flow_optimizer}

    def _update_models(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            features = self.policy.features(batch)
        loss = masked_mean(self.flow.loss(features, batch["action"], self.rng), batch)
        self.flow_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.flow_optimizer.step()
        return {"flow/loss": loss.detach()}
