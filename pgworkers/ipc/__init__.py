"""What master, supervisors and workers exchange: scoreboard, tickets, frames, packets and the lease deadline."""
