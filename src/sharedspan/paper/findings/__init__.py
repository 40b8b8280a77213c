"""Findings beyond the paper: ``sharedspan reproduce findings``.

A finding is an experiment that asks a question of our own and answers it in a paragraph, whose
sentences are computed from its table.
"""
