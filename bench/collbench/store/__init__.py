"""Read and write run folders: their files, the encoding of records in them, and the locks of writers."""
