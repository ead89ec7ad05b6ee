"""Vision-language-action policies: vision and language towers, a transformer trunk, and action heads."""
