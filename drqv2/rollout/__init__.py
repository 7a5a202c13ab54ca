"""Steps of live environments, to be learnt from once: segments for PPO, rollouts of actors for IMPALA."""
