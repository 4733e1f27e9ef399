"""Conclusions as text, tables and pictures. Computes no conclusion."""
