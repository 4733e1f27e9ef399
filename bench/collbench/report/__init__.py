"""Show conclusions as text, tables and pictures. This package computes no conclusions."""
