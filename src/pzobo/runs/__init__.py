"""What is kept of a run? Its folder, its environment, random numbers, progress, and who hears of it."""
