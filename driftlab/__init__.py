"""driftlab: what fine-tuning does to the abilities a language model was not trained on."""

__version__ = "0.4.0"
