"""Runs on other machines: Ray and Slurm place them, watch them and bring them back. Nothing here imports torch."""
