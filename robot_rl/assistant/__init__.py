"""One interface to a language or vision-language model, of any URL that speaks OpenAI's chat completions."""

from robot_rl.assistant.messages import Message, data_url, message
from robot_rl.assistant.model import Counts, ModelConfig, ModelFailure, ReplyModel, fenced
from robot_rl.assistant.replies import Replies
