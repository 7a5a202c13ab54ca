"""Episodes without exploration, their statistics, and the agents of finished runs."""
