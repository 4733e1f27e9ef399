"""The verb `bits`: compare results of the same sum bit by bit."""
