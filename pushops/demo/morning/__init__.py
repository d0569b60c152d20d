"""The third part of the demo: the letters that a night's outage left, and an operator who sends some again."""
