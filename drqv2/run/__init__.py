"""What every regime's Workspace is made of."""
