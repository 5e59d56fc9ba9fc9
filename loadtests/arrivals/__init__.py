"""When sessions begin: closed loop, open loop, steps, ramps, spikes, traces."""
