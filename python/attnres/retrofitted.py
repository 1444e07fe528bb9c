"""Retrofitted models where transformers loads them: classes that code in their folders names."""

import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from .checkpoints import MODEL_TYPE
from .retrofit import place_mixing


class RetrofittedConfig(PretrainedConfig):
    """A folder's config.json: `base` is the model's own, `depth_mixing` a recipe's setting."""

    model_type = MODEL_TYPE

    def __init__(self, base_model_type="", base=None, depth_mixing=None, **kwargs):
        self.base_model_type, self.base = base_model_type, base or {}
        self.depth_mixing = depth_mixing or {}
        super().__init__(**kwargs)


class RetrofittedModel(PreTrainedModel):
    """Loads a folder, and is no model itself: what comes is one of `base`'s class, retrofitted."""

    config_class = RetrofittedConfig

    @classmethod
    def from_pretrained(cls, folder, *arguments, config=None, **options):
        if not isinstance(config, RetrofittedConfig):
            config = RetrofittedConfig.from_pretrained(folder)
        name = config.base["architectures"][0]
        base_class = getattr(transformers, name, None)
        if base_class is None:
            raise ValueError(f"{folder}: transformers {transformers.__version__} has no {name}")
        own = _own_config(config, options)
        retrofitted = _retrofitted(base_class, config.depth_mixing)
        with_info = options.pop("output_loading_info", False)
        model, info = retrofitted.from_pretrained(
            folder, *arguments, config=own, output_loading_info=True, **options
        )
        missing = sorted(name for name in info["missing_keys"] if "depth_attention." in name)
        if missing:
            raise ValueError(f"{folder}: {', '.join(missing[:4])} are missing")
        model.__class__ = base_class
        return (model, info) if with_info else model


def _own_config(config, options: dict) -> PretrainedConfig:
    """The base's configuration, with those options that are keys of it, as transformers has it."""
    own = AutoConfig.for_model(config.base_model_type, **config.base)
    own._attn_implementation = config._attn_implementation
    for key in [key for key in options if hasattr(own, key) and key != "dtype"]:
        setattr(own, key, options.pop(key))
    return own


def _retrofitted(base_class: type, mixing: dict) -> type:
    """The class with depth attention there before the weights are read."""

    def init(self, *arguments, **options):
        base_class.__init__(self, *arguments, **options)
        place_mixing(self, mixing)

    return type(base_class.__name__, (base_class,), {"__init__": init})
