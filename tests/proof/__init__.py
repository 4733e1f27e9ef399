"""What proves measured numbers against something known: real links of known rate and delay."""
