"""Run folders: their files, how records are encoded in them, and who may write."""
