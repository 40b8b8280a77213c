"""What a person sees: figures and tables."""
