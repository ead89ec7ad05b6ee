"""Client of language and vision-language models that are served as OpenAI chat completions."""

from robot_rl.assistant.model import (
    Counts,
    Message,
    ModelConfig,
    ModelFailure,
    Replies,
    ReplyModel,
    data_url,
    fenced,
    message,
)
