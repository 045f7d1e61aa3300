"""Speed of ogive against its peers, as ratios of one run. ``python -m bench --help``."""
