"""Sessions on a robot: deploy a policy, fine-tune it, record demonstrations.

Building a session loads and checks everything (configure); `activate` starts the stream of commands; `run` moves the
robot; `close` stops it and writes what was recorded.
"""
