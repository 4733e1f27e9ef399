"""The gradient benchmark for people and programs: tables, reports, pictures. Computes nothing but layout."""
