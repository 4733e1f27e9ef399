"""Draw conclusions on recorded jobs and on replays of their steps."""
