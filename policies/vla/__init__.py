"""Vision-language-action policies: towers for pictures and words, a trunk that joins them, and heads for actions."""
