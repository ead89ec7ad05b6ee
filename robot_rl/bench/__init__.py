"""Checks of methods: whether a method shows the effect that its paper claims."""
