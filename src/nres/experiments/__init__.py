"""The paper's applications: its settings, and the figures drawn from them."""
