"""Rewards written by a language model, after Xie et al. 2023, "Text2Reward: Reward Shaping with Language Models for
Reinforcement Learning" (arXiv 2309.11489).

A reward is one function of named views of the state, in a small subset of Python (`code`). A reward is tried in a
separate process (`sandbox`), must rank success above failure on scripted episodes (`vetting`), and is saved with its
hash and vetting metrics. Only a vetted reward is used in an environment (`file`).
"""
