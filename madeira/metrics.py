"""Every metric that Madeira has, its name, its labels and what they may be. Nobody else names one."""
