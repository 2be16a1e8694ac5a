"""Scripts like cleanrl's: PPO and DQN in one file each, with SummaryWriter, on CartPole."""

from __future__ import annotations

import numpy as np

from tests.clients.inputs import fill, folder, integers, numbers, shares

PACKAGES = "gymnasium tensorboard"


def layer(torch, inputs, outputs):
    made = torch.nn.Linear(inputs, outputs)
    torch.nn.init.orthogonal_(made.weight, np.sqrt(2))
    torch.nn.init.constant_(made.bias, 0.0)
    return made


def agent_of(torch):
    nn = torch.nn

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = nn.Sequential(layer(torch, 4, 16), nn.Tanh(), layer(torch, 16, 1))
            self.actor = nn.Sequential(layer(torch, 4, 16), nn.Tanh(), layer(torch, 16, 2))

        def act(self, x, action=None):
            shares_of = torch.distributions.Categorical(logits=self.actor(x))
            action = shares_of.sample() if action is None else action
            return action, shares_of.log_prob(action), shares_of.entropy(), self.critic(x)

    return fill(Agent())


def task_ppo(torch):
    import gymnasium
    from torch.utils.tensorboard import SummaryWriter

    path = folder()
    writer = SummaryWriter(path)
    writer.add_text("hyperparameters", "|param|value|\n|-|-|\n|seed|1|")
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    seen = torch.Tensor(envs.reset(seed=1)[0])
    done = torch.zeros(2)
    agent = agent_of(torch)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
    steps, losses = 16, []
    for update in range(2):
        obs, actions = torch.zeros(steps, 2, 4), torch.zeros(steps, 2)
        rewards, dones, values, logs = (torch.zeros(steps, 2) for _ in range(4))
        for step in range(steps):
            obs[step], dones[step] = seen, done
            action = torch.tensor(integers(2, 2, seed=step))  # both libraries act alike
            with torch.no_grad():
                _, logs[step], _, value = agent.act(seen, action)
            values[step], actions[step] = value.flatten(), action
            now, reward, ended, cut, _ = envs.step(action.cpu().numpy())
            rewards[step] = torch.tensor(reward).view(-1)
            seen, done = torch.Tensor(now), torch.Tensor(np.logical_or(ended, cut))
        with torch.no_grad():
            following, advantages, last = agent.critic(seen).reshape(-1), torch.zeros(steps, 2), 0
            for t in reversed(range(steps)):
                alive = 1.0 - (done if t == steps - 1 else dones[t + 1])
                ahead = following if t == steps - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * ahead * alive - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * alive * last
            returns = advantages + values
        flat = [x.reshape(-1, *x.shape[2:]) for x in (obs, actions, logs, advantages, returns)]
        places = np.arange(steps * 2)
        for begin in range(0, len(places), 8):
            o, a, old, gain, wanted = (x[places[begin : begin + 8]] for x in flat)
            _, new, entropy, value = agent.act(o, a.long())
            ratio = (new - old).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy = torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2)).mean()
            loss = policy + 0.25 * (value.view(-1) - wanted).pow(2).mean() - 0.01 * entropy.mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
            losses.append(loss.item())
        writer.add_scalar("losses/total", loss.item(), update)
    writer.close()
    sampled = agent.act(seen)[0]
    return {"losses": losses, "files": len(list(path.iterdir())), "shape": tuple(sampled.shape)}


def task_dqn(torch):
    nn, F = torch.nn, torch.nn.functional
    network, target = (
        nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(2)
    )
    fill(network)
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    losses = []
    for step in range(6):
        seen, after = (torch.tensor(numbers(8, 4, seed=step + k)) for k in (0, 9))
        actions = torch.tensor(integers(2, 8, 1, seed=step))
        reward = torch.tensor(shares(8, seed=step))
        with torch.no_grad():
            best, _ = target(after).max(dim=1)
            wanted = reward + 0.99 * best
        loss = F.mse_loss(wanted, network(seen).gather(1, actions).squeeze())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for one, two in zip(target.parameters(), network.parameters(), strict=True):
            one.data.copy_(0.9 * two.data + 0.1 * one.data)
        losses.append(loss.item())
    return {"losses": losses, "target": target[0].weight}
