"""Statistics: numbers in, numbers out. Nothing here knows a case, a run or a backend."""
