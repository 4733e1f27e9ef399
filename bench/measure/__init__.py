"""Measuring: start ranks, time collectives, verify data. The only place that imports torch.

The parent's side (launcher, supervisor, blame, sweep, environment, doctor) imports no torch either: it
starts in a fraction of a second, while a fork server loads torch for the ranks. In a job of several processes
(job, lead, follower, crew, admission, channel) each of them is such a parent.
The ranks' side (worker, group, collectives, timing, sampling, faults) runs in their processes.
"""
