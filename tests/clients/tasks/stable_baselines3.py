"""PPO, A2C, DQN and SAC on an environment without chance: learn, predict, save and load."""

from __future__ import annotations

import numpy as np

from tests.clients.inputs import fill, folder, numbers

PACKAGES = "stable-baselines3"


def environment(*, continuous):
    import gymnasium
    from gymnasium import spaces

    class Line(gymnasium.Env):
        """A point that shall come to the middle."""

        observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
        action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if continuous else spaces.Discrete(3)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place, self.steps = 1.0, 0
            return self.seen(), {}

        def step(self, action):
            move = float(action[0]) if continuous else float(action) - 1.0
            self.place = float(np.clip(self.place + 0.2 * move, -4, 4))
            self.steps += 1
            return self.seen(), -abs(self.place), False, self.steps >= 16, {}

        def seen(self):
            return np.array([self.place, self.steps / 16], np.float32)

    return Line()


def learned(kind, steps, *, continuous=False, **options):
    import stable_baselines3

    algorithm = getattr(stable_baselines3, kind)
    begin = algorithm(
        "MlpPolicy", environment(continuous=continuous), seed=0, device="cpu", **options
    )
    fill(begin.policy)
    seen = np.clip(numbers(6, 2), -4, 4)
    first = begin.predict(seen, deterministic=True)[0]
    begin.learn(steps)
    path = folder() / "model.zip"
    begin.save(path)
    again = algorithm.load(path, env=environment(continuous=continuous), device="cpu")
    same = np.array_equal(
        begin.predict(seen, deterministic=True)[0], again.predict(seen, deterministic=True)[0]
    )
    again.learn(steps // 2)
    finite = all(p.isfinite().all().item() for p in again.policy.parameters())
    return {"first": first, "is saved": same, "is finite": finite, "steps": begin.num_timesteps}


def task_ppo(torch):
    return learned("PPO", 128, n_steps=64, batch_size=32, n_epochs=2)


def task_a2c(torch):
    return learned("A2C", 80)


def task_dqn(torch):
    return learned("DQN", 128, learning_starts=32, batch_size=16)


def task_sac(torch):
    return learned("SAC", 96, continuous=True, learning_starts=32, batch_size=16)


def task_policy_gradient(torch):
    """The losses of PPO's policy on a given batch, which no draw enters."""
    from stable_baselines3 import PPO

    model = PPO("MlpPolicy", environment(continuous=True), seed=0, device="cpu")
    policy = fill(model.policy)
    seen, done = torch.tensor(numbers(8, 2)), torch.tensor(numbers(8, 1, seed=1))
    losses = []
    for _ in range(3):
        values, log_share, entropy = policy.evaluate_actions(seen, done)
        loss = (values.flatten() - 1).square().mean() - log_share.mean() - 0.01 * entropy.mean()
        policy.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        policy.optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "weight": policy.action_net.weight}
