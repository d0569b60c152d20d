"""Measurements. Ratios between contenders on one machine count; absolute numbers are this machine's only."""
