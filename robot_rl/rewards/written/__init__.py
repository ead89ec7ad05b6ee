"""Rewards that a language model wrote, after Xie et al. 2023, "Text2Reward: Reward Shaping with Language Models for
Reinforcement Learning" (arXiv 2309.11489).

A reward is one function of named views of the state, in a small part of Python (`code`). It is tried in a process of
its own (`sandbox`), must rank success above failure on scripted episodes (`vetting`), and is saved with its hash and
those figures (`file`). Only then an environment pays it (`env`).
"""
