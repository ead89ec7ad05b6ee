"""Scripted demonstrators and operators: functions of the observation, like any policy."""
