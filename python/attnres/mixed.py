"""Objects whose class becomes one of ours over their own, and stays so in copies and pickles."""

from functools import cache


class Mixed:
    """The first base of such a class, which `become` makes."""

    _parts = ()
    _prefix = ""  # of the class's name; without one transformers takes it for what it was

    def __reduce_ex__(self, protocol):
        _, _, *state = super().__reduce_ex__(protocol)
        return _new, self._parts, *state


def become(thing: object, mixin: type[Mixed]) -> None:
    """Puts the mixin's methods before those of the thing's class."""
    thing.__class__ = _mixed(mixin, type(thing))


@cache
def _mixed(mixin: type[Mixed], base: type) -> type:
    name = f"{mixin._prefix}{base.__name__}"
    members = {"_parts": (mixin, base), "__module__": base.__module__, "__doc__": base.__doc__}
    return type(base)(name, (mixin, base), members)


def _new(mixin: type[Mixed], base: type) -> object:
    made = _mixed(mixin, base)
    return made.__new__(made)
