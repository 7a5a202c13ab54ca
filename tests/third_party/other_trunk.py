"""DrQ-v2 with update() as it is, but another trunk in actor and critic, and a hook that watches the encoder.

The critic's trunk has two spectrally normalised layers. If the features that the hook saw have hardly changed,
exploration may repeat the last action.
"""

import numpy as np
import torch
import torch.nn as nn
import utils
from torch.nn.utils.parametrizations import spectral_norm

from drqv2 import DrQV2Agent


class OtherTrunkAgent(DrQV2Agent):
    def __init__(
        self,
        obs_shape,
        action_shape,
        device,
        lr,
        feature_dim,
        hidden_dim,
        critic_target_tau,
        num_expl_steps,
        update_every_steps,
        stddev_schedule,
        stddev_clip,
        use_tb,
        trunk_dim,
        repeat_below,
    ):
        super().__init__(
            obs_shape,
            action_shape,
            device,
            lr,
            feature_dim,
            hidden_dim,
            critic_target_tau,
            num_expl_steps,
            update_every_steps,
            stddev_schedule,
            stddev_clip,
            use_tb,
        )
        self.repeat_below = repeat_below
        self.features: dict = {}
        self.typical_norm = None
        self.hook = self.encoder.register_forward_hook(self.keep_features)
        self.encoder(torch.zeros(1, *obs_shape, device=device))  # how wide are its features?
        repr_dim = self.features["update"].shape[1]
        self.actor.trunk = nn.Sequential(
            nn.Dropout(0.1),
            nn.Linear(repr_dim, feature_dim),
            nn.LayerNorm(feature_dim),
            nn.Tanh(),
        )
        for critic in (self.critic, self.critic_target):
            critic.trunk = nn.Sequential(
                spectral_norm(nn.Linear(repr_dim, trunk_dim)),
                nn.ReLU(inplace=True),
                spectral_norm(nn.Linear(trunk_dim, feature_dim)),
                nn.LayerNorm(feature_dim),
            )
        self.actor.trunk.apply(utils.weight_init)
        self.actor.to(device)
        self.critic.to(device)
        self.critic_target.to(device)
        self.critic_target.load_state_dict(self.critic.state_dict())
        # the old optimizers hold the old trunks
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=lr)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=lr, weight_decay=1e-5)

        self.seen = None
        self.last_action = np.zeros(action_shape, dtype=np.float32)
        self.num_repeats = 0
        self.train()

    def keep_features(self, module, inputs, output):
        self.features["update" if module.training else "act"] = output
        if module.training:
            norm = output.detach().norm(dim=-1).mean()
            self.typical_norm = norm if self.typical_norm is None else 0.9 * self.typical_norm + 0.1 * norm

    def act(self, obs, step, eval_mode):
        action = super().act(obs, step, eval_mode)
        if eval_mode:
            return action
        if self.seen is not None:
            change = (self.features["act"] - self.seen).norm() / self.typical_norm
            if change < self.repeat_below and np.random.rand() < 0.5:
                action = self.last_action
                self.num_repeats += 1
        self.seen = self.features["act"]
        self.last_action = action
        return action
