"""Plans of training steps: scenarios, buckets, links."""
